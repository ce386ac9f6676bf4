"""A dataset in the making: appended or copied, then committed whole."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import __version__
from tokpack.errors import InputError, OutputError
from tokpack.files.blocks import BlockSums, block_sums, checksum_of_sums, read_blocks
from tokpack.files.copying import copy_range
from tokpack.files.durable import AtomicFiles, cannot_write, identity, make_folder_of
from tokpack.indexed.format import bin_path, idx_path, index_chunks, storage_dtype
from tokpack.indexed.manifest import (
    MANIFEST_VERSION,
    PIECES_VERSION,
    FileDigest,
    HashingReader,
    Manifest,
    manifest_path,
    now,
)
from tokpack.indexed.scan import scan
from tokpack.indexed.stored import StoredTokens
from tokpack.stores import Reader, shown
from tokpack.stores.ranges import LocalFile, Range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokpack.indexed.shard import Shard
    from tokpack.stores import StoredObject

_SCRATCH_IN_MEMORY = 16 << 20
_COPY = 64 << 20
_FETCH = 4 << 20
_CHUNK = 1 << 20


class NewDataset:
    """The dataset ``prefix`` in the making: ids are appended or copied, then ``complete`` ends it.

    Its files are those of ``staged``, in the order .bin, .idx, manifest.
    """

    _version = MANIFEST_VERSION

    def __init__(self, prefix: str, staged: AtomicFiles) -> None:
        self.prefix = prefix
        make_folder_of(bin_path(prefix))
        self._staged = staged
        self._sums = BlockSums()
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        file = self._staged.create(bin_path(self.prefix))
        self._file = file.fileno()  # written without its buffer

    def _digest(self) -> FileDigest:
        """What the manifest says of the .bin."""
        return FileDigest(bytes=self._bytes, xxh3_blocks=checksum_of_sums(self._sums.finish()))

    def append(self, ids: npt.NDArray[Any]) -> None:
        """Append token ids, which are of the dataset's dtype already."""
        with cannot_write(bin_path(self.prefix)):
            view = np.ascontiguousarray(ids).view(np.uint8).data
            while view:
                count = os.pwrite(self._file, view, self._bytes)
                view = view[count:]
                self._bytes += count
            self._sum()

    def copy(
        self, shard: Shard, begin: int, end: int, doing: str, told: Callable[[int], None]
    ) -> None:
        """Append bytes [begin, end) of a shard's .bin; ``told`` hears how many were copied.

        InputError where it is replaced meanwhile; ``doing`` says what is done then.
        """
        if isinstance(shard.tokens, StoredTokens):
            self._fetch(shard.tokens, begin, end, told)
            return
        with shard.open_bin(doing) as source, cannot_write(bin_path(self.prefix)):
            for at in range(begin, end, _COPY):
                stop = min(at + _COPY, end)
                copy_range(source.fileno(), self._file, at, stop, self._bytes)
                self._bytes += stop - at
                self._sum()
                told(stop - at)

    def _fetch(
        self, tokens: StoredTokens, begin: int, end: int, told: Callable[[int], None]
    ) -> None:
        """The same from a store, with requests ahead."""
        with closing(Reader(tokens.found, begin, end)) as reader:
            while begin < end:
                data = reader.read(min(_FETCH, end - begin))
                if not data:
                    raise InputError(f"{shown(tokens.found.url)}: ends at byte {begin}")
                self.append(np.frombuffer(data, np.uint8))
                begin += len(data)
                told(len(data))

    def _sum(self) -> None:
        """Read back what was written, from the page cache. Raises OSError."""
        for data in read_blocks(self._file, self._sums.at, self._bytes):
            self._sums.add(data)
        if self._sums.at != self._bytes:
            raise OSError(errno.EIO, "the file is shorter than it was")

    def scratch(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array for the index: in memory, or, where it is large, in a file without a name."""
        size = count * np.dtype(dtype).itemsize
        if size <= _SCRATCH_IN_MEMORY:
            return np.zeros(count, dtype)
        with (
            cannot_write(bin_path(self.prefix)),
            tempfile.TemporaryFile(dir=os.path.dirname(self.prefix) or ".") as file,
        ):
            if hasattr(os, "posix_fallocate"):  # a full disk would otherwise kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=(count,))

    def one_each(self, count: int) -> npt.NDArray[np.int64]:
        """The document index of ``count`` documents of one sequence each."""
        index = self.scratch(count + 1, np.int64)
        for begin in range(0, count + 1, _CHUNK):
            end = min(begin + _CHUNK, count + 1)
            index[begin:end] = np.arange(begin, end)
        return index

    def complete(
        self,
        dtype: npt.DTypeLike,
        lengths: npt.NDArray[Any],
        doc_idx: npt.NDArray[Any],
        facts: Mapping[str, Any],
        modes: npt.NDArray[np.int8] | None = None,
    ) -> Manifest:
        """Write index and manifest. ``facts`` are the manifest's keys that files do not tell.

        The arrays are those of ``index_chunks``.
        """
        stored = storage_dtype(dtype)
        tokens = int(lengths.sum(dtype=np.int64)) if len(lengths) else 0
        if tokens * stored.itemsize != self._bytes:
            raise OutputError(
                f"{bin_path(self.prefix)}: {self._bytes} bytes were written, expected "
                f"{tokens * stored.itemsize}: an input changed while it was read; run again"
            )
        index = HashingReader(index_chunks(stored, lengths, doc_idx, modes))
        self._staged.write(idx_path(self.prefix), index)
        manifest = Manifest(
            tokpack_version=__version__,
            created=now(),
            sequences=len(lengths),
            tokens=tokens,
            dtype=str(stored),
            bin=self._digest(),
            idx=index.digest,
            format_version=self._version,
            **facts,
        )
        self._staged.write(manifest_path(self.prefix), manifest.chunks())
        self._staged.seal()
        return manifest


class JoinedDataset(NewDataset):
    """As NewDataset, for a dataset on a store, which makes the .bin of the ``ranges`` of others."""

    _version = PIECES_VERSION

    def _open(self) -> None:
        self.ranges: list[Range] = []
        self._pieces: list[FileDigest] = []

    def _digest(self) -> FileDigest:
        return FileDigest(bytes=self._bytes, pieces=self._pieces)

    def join(self, shard: Shard, digest: FileDigest | None) -> None:
        """Append the .bin of a shard, of which ``digest`` is known; what is not, is read here.

        InputError where it is replaced meanwhile.
        """
        size, path = shard.tokens.nbytes, os.path.abspath(bin_path(shard.prefix))
        if isinstance(shard.tokens, StoredTokens):
            source: StoredObject | LocalFile = shard.tokens.found
        elif found := identity(path):
            source = LocalFile(path, found)
        else:
            raise InputError(f"{path}: was removed while it was merged")
        shard.check_current("merged")
        self.ranges.append(Range(source, 0, size))
        known = digest or FileDigest(
            bytes=size, xxh3_blocks=_checksum(bin_path(shard.prefix), size)
        )
        self._pieces += known.get("pieces", [known])
        self._bytes += size


def _checksum(path: str, size: int) -> str:
    """The checksum of a .bin by its blocks, which are read."""
    chunks = scan(path, size, lambda begin, block: block_sums(begin, block.data))
    return checksum_of_sums(b"".join(sums for _, _, sums in chunks))
