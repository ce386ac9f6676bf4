"""The files that a command on datasets makes, on a disk or on a store: all of them, or none."""

from __future__ import annotations

import errno
import functools
import operator
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import __version__
from tokpack.errors import InputError, OutputError
from tokpack.files.blocks import BlockSums, block_sums, checksum_of_sums, read_blocks
from tokpack.files.copying import copy_range
from tokpack.files.durable import (
    UNFINISHED,
    AtomicFiles,
    cannot_write,
    identity,
    make_folder_of,
)
from tokpack.files.outputs import check_not_inputs, remove_partial
from tokpack.indexed.digests import FileDigest, HashingReader, PieceSums, check_piece
from tokpack.indexed.format import bin_path, idx_path, index_chunks, storage_dtype
from tokpack.indexed.manifest import (
    MANIFEST,
    MANIFEST_VERSION,
    PIECES_VERSION,
    TRACK_DTYPES,
    Manifest,
    manifest_path,
    now,
)
from tokpack.indexed.outputs import dataset_outputs, same_data
from tokpack.indexed.scan import scan
from tokpack.indexed.selection import selection_path
from tokpack.indexed.stored import LazyTokens, StoredTokens
from tokpack.indexed.table import dropped_path, table_path
from tokpack.indexed.track import read_tracks, track_path
from tokpack.indexed.track_writer import NewTracks
from tokpack.stores import is_url
from tokpack.stores.outputs import NewObjects, check_unchanged, look
from tokpack.stores.ranges import LocalFile, Range
from tokpack.stores.upload import check_writable, compose, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import BinaryIO

    import numpy.typing as npt

    from tokpack.files.outputs import Output
    from tokpack.indexed.shard import Shard
    from tokpack.stores import StoredObject

_SCRATCH_IN_MEMORY = 16 << 20
_COPY = 64 << 20


class NewFiles(AtomicFiles):
    """New files, checked before and after the work that makes them; ``publish`` names them.

    ``outputs`` are the files that appear together, the one that makes them whole last; ``stale``
    those of an old output that go before. ``inputs`` are the files that the command reads. What is
    for a store is first written to a folder of this machine, which goes at the end. UsageError,
    OutputError as in ``look``; on a store also where nothing can be written.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        inputs: Iterable[str],
        *,
        overwrite: bool,
        stale: Sequence[str] = (),
    ) -> None:
        super().__init__()
        read, paths = tuple(inputs), [path for path, _ in outputs]
        if not is_url(paths[-1]):
            check_not_inputs(paths, read)
            remove_partial(paths)
        self._outputs = outputs
        self._versions = look(outputs, read, overwrite=overwrite)
        self._stale = [path for path in stale if self._versions.get(path)]
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if is_url(paths[-1]):
            check_writable(paths[-1] + UNFINISHED)
            self._folder = scratch_folder(paths[-1])

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._folder:
            self._folder.cleanup()

    def create(self, path: str) -> BinaryIO:
        here = self._here(path)
        make_folder_of(here)
        return super().create(here)

    def scratch(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of zeros: in memory, or, where it is large, in a file without a name."""
        size = count * np.dtype(dtype).itemsize
        if size <= _SCRATCH_IN_MEMORY:
            return np.zeros(count, dtype)
        path = self._here(self._outputs[-1][0])
        make_folder_of(path)
        with (
            cannot_write(path),
            tempfile.TemporaryFile(dir=os.path.dirname(path) or ".") as file,
        ):
            if hasattr(os, "posix_fallocate"):  # a full disk would otherwise kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=(count,))

    def publish(
        self,
        stale: Sequence[str] = (),
        joined: Mapping[str, Sequence[Range]] | None = None,
        on_bytes: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Give the files their names, all or none, after removing old ones and ``stale``.

        ``joined`` has the ranges of which a store makes an object; ``on_bytes`` is called with the
        number of bytes each time that some are there.
        """
        if not self._folder:
            check_unchanged(self._versions)
            self.commit([*self._stale, *stale])
            return
        self.commit()
        check_unchanged(self._versions)
        with NewObjects(self._versions, self._are_made) as objects:
            for url in [*self._stale, *stale]:
                objects.remove(url)
            made = [
                (kind is MANIFEST, url)
                for url, kind in self._outputs
                if (joined and url in joined) or os.path.exists(self._here(url))
            ]
            # Manifests last: by them others know that a dataset is whole.
            for is_last, url in sorted(made, key=operator.itemgetter(0)):
                if is_last:
                    objects.write_last(url, Path(self._here(url)).read_bytes())
                elif joined and url in joined:
                    objects.write(url, functools.partial(compose, url, joined[url], on_bytes))
                else:
                    objects.write(url, functools.partial(send, self._here(url), url))
            objects.check()

    def _here(self, path: str) -> str:
        """Where the file is written that will be ``path``."""
        return os.path.join(self._folder.name, os.path.basename(path)) if self._folder else path

    def _are_made(self) -> bool:
        """Whether datasets of the same bytes are there, in place of those that are to be sent."""
        prefixes = [url.removesuffix(".json") for url, kind in self._outputs if kind is MANIFEST]
        made = [(one, Manifest.find(self._here(one))) for one in prefixes]
        return bool(made) and all(manifest and same_data(one, manifest) for one, manifest in made)


def new_datasets(
    prefixes: Sequence[str],
    inputs: Iterable[str],
    *,
    overwrite: bool,
    views: bool = False,
    tables: bool = False,
    tracks: Iterable[str] = (),
    beside: Sequence[Output] = (),
) -> NewFiles:
    """The files of datasets, with ``tables`` and ``tracks`` or not, or of ``views``, and others.

    What would say something wrong of a new dataset goes before the old one is replaced; tracks,
    tables and a selection go only where they are such. Tracks go first, since only the manifest
    tells that they are some.
    """
    names = (idx_path, manifest_path, table_path, dropped_path, selection_path)
    outputs = [
        output
        for prefix in prefixes
        for output in dataset_outputs(prefix, table=tables, selection=views, tracks=tracks)
    ]
    return NewFiles(
        [*beside, *outputs],
        inputs,
        overwrite=overwrite,
        stale=[
            *(track_path(prefix, name) for prefix in prefixes for name in TRACK_DTYPES),
            *(name(prefix) for prefix in prefixes for name in names),
        ],
    )


def scratch_folder(path: str) -> tempfile.TemporaryDirectory[str]:
    """A new folder in $TMPDIR, else in the current folder, with a name that tells of ``path``.

    A context, at whose end it is removed. Raises OutputError.
    """
    where = os.environ.get("TMPDIR") or os.curdir
    with cannot_write(where):
        os.makedirs(where, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix=f"tokpack-{os.path.basename(path)}-", dir=where, ignore_cleanup_errors=True
        )


class NewDataset:
    """The dataset ``prefix`` in the making: ids are appended or copied, then ``complete`` ends it.

    Its files are among those of ``files``, in the order tracks, .bin, .idx, manifest. It has
    ``tracks``, with the values of what is joined or copied.
    """

    _version = MANIFEST_VERSION

    def __init__(self, prefix: str, files: NewFiles, tracks: Iterable[str] = ()) -> None:
        self.prefix = prefix
        self._files = files
        self._tracks = NewTracks(prefix, tracks, files.create)
        self._sums = BlockSums()
        self._bytes = 0
        self._open()

    def _open(self) -> None:
        file = self._files.create(bin_path(self.prefix))
        self._file = file.fileno()  # written without its buffer

    def _digest(self) -> FileDigest:
        """What the manifest says of the .bin."""
        return FileDigest(bytes=self._bytes, xxh3_blocks=checksum_of_sums(self._sums.finish()))

    def append(
        self, ids: npt.NDArray[Any], tracks: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Append token ids, which are of the dataset's dtype already, and the values of tracks."""
        if tracks:
            self._tracks.append(tracks)
        view = np.ascontiguousarray(ids).view(np.uint8).data
        self._sums.add(view)
        with cannot_write(bin_path(self.prefix)):
            while view:
                count = os.pwrite(self._file, view, self._bytes)
                view = view[count:]
                self._bytes += count

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
        on_bytes: Callable[[int], None],
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
        with shard.open_bin(doing) as source, cannot_write(bin_path(self.prefix)):
            for at, stop in steps:
                copy_range(source.fileno(), self._file, at, stop, self._bytes)
                # The checksum is of what is there now, which is read from the page cache.
                for data in read_blocks(self._file, self._bytes, self._bytes + stop - at):
                    self._sums.add(data)
                    look(data)
                self._bytes += stop - at
                if self._sums.at != self._bytes:
                    raise OSError(errno.EIO, "the file is shorter than it was")
                on_bytes(stop - at)

    def _copy_tracks(self, shard: Shard, begin: int, end: int) -> None:
        for part in read_tracks(shard, self._tracks.names, begin, end):
            self._tracks.append(part)

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
        tokens = int(lengths.sum(dtype=np.int64)) if len(lengths) else 0
        if tokens * stored.itemsize != self._bytes:
            raise OutputError(
                f"{bin_path(self.prefix)}: {self._bytes} bytes were written, expected "
                f"{tokens * stored.itemsize}: an input changed while it was read; run again"
            )
        index = HashingReader(index_chunks(stored, lengths, doc_idx, modes))
        self._files.write(idx_path(self.prefix), index)
        binary = self._digest()
        manifest = Manifest(
            tokpack_version=__version__,
            created=now(),
            sequences=len(lengths),
            tokens=tokens,
            dtype=str(stored),
            bin=binary,
            idx=index.digest,
            format_version=self._version,
            **facts,
            **self._tracks.finish(tokens),
            **tables(binary),
        )
        self._files.write(manifest_path(self.prefix), manifest.chunks())
        self._files.seal()
        return manifest


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
