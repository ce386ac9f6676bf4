"""A dataset in the making: ids are appended or copied, then index and manifest follow."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import __version__
from tokpack.errors import InputError, OutputError
from tokpack.files.blocks import BlockSums, block_sums, checksum_of_sums, read_blocks
from tokpack.files.copying import copy_range
from tokpack.files.durable import cannot_write, identity
from tokpack.indexed.digests import FileDigest, HashingReader, PieceSums, check_piece
from tokpack.indexed.format import bin_path, idx_path, index_chunks, storage_dtype
from tokpack.indexed.manifest import (
    MANIFEST_VERSION,
    PIECES_VERSION,
    Manifest,
    manifest_path,
    now,
)
from tokpack.indexed.scan import scan
from tokpack.indexed.stored import LazyTokens, StoredTokens
from tokpack.indexed.track import read_tracks
from tokpack.indexed.track_writer import NewTracks
from tokpack.stores.ranges import LocalFile, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from tokpack.files.durable import AtomicFiles
    from tokpack.indexed.shard import Shard
    from tokpack.stores import StoredObject

_COPY = 64 << 20


class NewDataset:
    """The dataset ``prefix`` in the making: ids are appended or copied, then ``complete`` ends it.

    Its files are among those of ``files``, in the order tracks, .bin, .idx, manifest. It has
    ``tracks``, with the values of what is joined or copied. ``bin_file`` is the path of the .bin
    where it is not that of the prefix.
    """

    _version = MANIFEST_VERSION

    def __init__(
        self, prefix: str, files: AtomicFiles, tracks: Iterable[str] = (), bin_file: str = ""
    ) -> None:
        self.prefix = prefix
        self._path = bin_file or bin_path(prefix)
        self._files = files
        self.tracks = NewTracks(prefix, tracks, files.create)
        self._sums = BlockSums()
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        self._file = self._files.create(self._path)

    def _digest(self) -> FileDigest:
        """What the manifest says of the .bin."""
        return FileDigest(bytes=self._bytes, xxh3_blocks=checksum_of_sums(self._sums.finish()))

    def append(
        self, ids: npt.NDArray[Any], tracks: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Append token ids, which are of the dataset's dtype already, and the values of tracks."""
        if tracks:
            self.tracks.append(tracks)
        view = np.ascontiguousarray(ids).view(np.uint8).data
        with cannot_write(self._path):
            self._file.write(view)
        self._sums.add(view)
        self._bytes += len(view)

    def join(
        self, shard: Shard, digest: FileDigest | None, on_bytes: Callable[[int], None]
    ) -> None:
        """Append the whole .bin of a shard, as ``copy`` does.

        FormatError where it does not have the checksums of its ``digest``: damaged bytes do not
        get a checksum that is right.
        """
        sums = PieceSums(digest) if digest else None
        path = bin_path(shard.prefix)

        def check(data: memoryview) -> None:
            for piece in sums.add(data) if sums else ():
                check_piece(path, piece)

        self.copy(shard, 0, shard.tokens.nbytes, "merged", on_bytes, look=check)
        for piece in sums.finish() if sums else ():
            check_piece(path, piece)

    def copy(
        self,
        shard: Shard,
        begin: int,
        end: int,
        doing: str,
        on_bytes: Callable[[int], None] = lambda size: None,
        *,
        look: Callable[[memoryview], None] = lambda data: None,
    ) -> None:
        """Append bytes [begin, end) of a shard's .bin; ``on_bytes`` hears how many were copied.

        ``look`` is given the bytes, in order. InputError where the shard is replaced meanwhile;
        ``doing`` says what is done then.
        """
        width = shard.dtype.itemsize
        self._copy_tracks(shard, begin // width, end // width)
        steps = [(at, min(at + _COPY, end)) for at in range(begin, end, _COPY)]
        if isinstance(shard.tokens, LazyTokens):
            for at, stop in steps:
                ids = shard.tokens[at // width : stop // width]
                look(ids.view(np.uint8).data)
                self.append(ids)
                on_bytes(stop - at)
            return
        with shard.open_bin(doing) as source, cannot_write(self._path):
            self._file.flush()
            target = self._file.fileno()
            for at, stop in steps:
                copy_range(source.fileno(), target, at, stop, self._bytes)
                # The checksum is of what is there now, which is read from the page cache.
                for data in read_blocks(target, self._bytes, self._bytes + stop - at):
                    self._sums.add(data)
                    look(data)
                self._bytes += stop - at
                if self._sums.at != self._bytes:
                    raise OSError(errno.EIO, "the file is shorter than it was")
                on_bytes(stop - at)
            self._file.seek(self._bytes)

    def _copy_tracks(self, shard: Shard, begin: int, end: int) -> None:
        for part in read_tracks(shard, self.tracks.names, begin, end):
            self.tracks.append(part)

    def complete(
        self,
        dtype: npt.DTypeLike,
        lengths: npt.NDArray[Any],
        doc_idx: npt.NDArray[Any],
        facts: Mapping[str, Any],
        modes: npt.NDArray[np.int8] | None = None,
        *,
        tables: Callable[[FileDigest], Mapping[str, Any]] = lambda binary: {},
    ) -> Manifest:
        """Write index and manifest. ``facts`` are the manifest's keys that files do not tell.

        The arrays are those of ``index_chunks``; ``tables`` writes the tables of a dataset with
        such a .bin, and gives what the manifest says of them.
        """
        stored = storage_dtype(dtype)
        idx = self.write_index(idx_path(self.prefix), stored, lengths, doc_idx, modes)
        binary = self._digest()
        manifest = Manifest(
            tokpack_version=__version__,
            created=now(),
            sequences=len(lengths),
            tokens=self._bytes // stored.itemsize,
            dtype=str(stored),
            bin=binary,
            idx=idx,
            format_version=self._version,
            **facts,
            **self.tracks.finish(self._bytes // stored.itemsize),
            **tables(binary),
        )
        self._files.write(manifest_path(self.prefix), manifest.chunks())
        self._files.seal()
        return manifest

    def write_index(
        self,
        path: str,
        dtype: np.dtype[Any],
        lengths: npt.NDArray[Any],
        doc_idx: npt.NDArray[Any],
        modes: npt.NDArray[np.int8] | None = None,
    ) -> FileDigest:
        """Write the index alone. OutputError where the .bin has other tokens than it says."""
        expected = dtype.itemsize * int(lengths.sum(dtype=np.int64)) if len(lengths) else 0
        if expected != self._bytes:
            raise OutputError(
                f"{self._path}: {self._bytes} bytes were written, expected {expected}: an input "
                "changed while it was read; run again"
            )
        index = HashingReader(index_chunks(dtype, lengths, doc_idx, modes))
        self._files.write(path, index)
        return index.digest


class JoinedDataset(NewDataset):
    """As NewDataset, for a dataset on a store, which makes the .bin of the ``ranges`` of others."""

    _version = PIECES_VERSION

    def _open(self) -> None:
        self.ranges: list[Range] = []
        self._pieces: list[FileDigest] = []

    def _digest(self) -> FileDigest:
        return FileDigest(bytes=self._bytes, pieces=self._pieces)

    def join(
        self, shard: Shard, digest: FileDigest | None, on_bytes: Callable[[int], None]
    ) -> None:
        """Note that the .bin of a shard comes next; without its ``digest`` it is read here.

        Nothing is copied yet: ``publish`` calls ``on_bytes``. InputError where the shard is
        replaced meanwhile.
        """
        size, path = shard.tokens.nbytes, os.path.abspath(bin_path(shard.prefix))
        if isinstance(shard.tokens, StoredTokens):
            source: StoredObject | LocalFile = shard.tokens.stored
        elif file := identity(path):
            source = LocalFile(path, file)
        else:
            raise InputError(f"{path}: was removed while it was merged")
        shard.check_current("merged")
        self._copy_tracks(shard, 0, len(shard.tokens))
        self.ranges.append(Range(source, 0, size))
        if digest is None:
            sums = scan(
                bin_path(shard.prefix), size, lambda begin, block: block_sums(begin, block.data)
            )
            joined = b"".join(block for _, _, block in sums)
            digest = FileDigest(bytes=size, xxh3_blocks=checksum_of_sums(joined))
        self._pieces += digest.get("pieces", [digest])
        self._bytes += size
