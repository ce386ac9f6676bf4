"""Write ``.bin/.idx`` datasets, whole or not at all."""

from __future__ import annotations

import errno
import os
from array import array
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import (
    MAX_LENGTH,
    best_fitting_dtype,
    bin_path,
    idx_path,
    index_chunks,
    storage_dtype,
)
from tokpack.dataset.manifest import (
    LOSS_TRACKS,
    MANIFEST,
    MANIFEST_VERSION,
    PIECES_VERSION,
    FileDigest,
    Manifest,
    PieceSums,
    is_manifest,
    manifest_path,
    plain_facts,
    write_digested,
)
from tokpack.dataset.mapped import LazyTokens, StoredTokens, scan
from tokpack.dataset.outputs import TRACK
from tokpack.dataset.track import NewTracks, own_tracks, read_tracks, track_path, track_values
from tokpack.errors import InputError, OutputError, UsageError
from tokpack.storage import LocalFile, Range
from tokpack.storage.disk import AtomicFiles, cannot_write, check_outputs, copy_range, identity
from tokpack.storage.disk.blocks import BlockSums, block_sums, checksum_of_sums, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tokpack.dataset.outputs import NewFiles
    from tokpack.dataset.shards import Shard
    from tokpack.storage import StoredObject


_COPY = 64 << 20


class NewDataset:
    """Writes the dataset ``prefix``: ids are appended or copied, then ``complete`` ends it.

    Its files are among those of ``files``, in the order tracks, .bin, .idx, manifest. ``tracks`` of
    a shard are joined or copied with it. ``bin_file`` is the path of the .bin, if it does not have
    the prefix.
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
        """The digest of the .bin for the manifest."""
        return FileDigest(bytes=self._bytes, xxh3_blocks=checksum_of_sums(self._sums.finish()))

    def append(
        self, ids: npt.NDArray[Any], tracks: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> None:
        """Append token ids, which have the dtype of the dataset, and the values of tracks."""
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

        FormatError if it does not match its ``digest``: damaged bytes must not get a new, matching
        checksum.
        """
        size = shard.tokens.nbytes
        if digest is None:
            self.copy(shard, 0, size, "merged", on_bytes)
            return
        sums = PieceSums(bin_path(shard.prefix), digest)
        self.copy(shard, 0, size, "merged", on_bytes, look=sums.add)
        sums.finish()

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
        """Append bytes [begin, end) of a shard's .bin; ``on_bytes`` is told how many were copied.

        ``look`` is called with the bytes, in order. InputError if the shard is replaced meanwhile;
        ``doing`` is what is done with it, in words.
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
                # The kernel copied the bytes, so read them for the checksum: from the new file,
                # which is still in memory.
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
        """Write index and manifest; ``facts`` are the manifest's keys besides files.

        The arrays are those of ``index_chunks``. ``tables`` writes the tables of a dataset with
        this .bin, and returns their entries for the manifest.
        """
        stored = storage_dtype(dtype)
        idx = self.write_index(idx_path(self.prefix), stored, lengths, doc_idx, modes)
        binary = self._digest()
        manifest = Manifest.new(
            facts,
            sequences=len(lengths),
            tokens=self._bytes // stored.itemsize,
            dtype=str(stored),
            bin=binary,
            idx=idx,
            format_version=self._version,
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
        """Write only the index. OutputError if its lengths do not match the size of the .bin."""
        expected = dtype.itemsize * int(lengths.sum(dtype=np.int64)) if len(lengths) else 0
        if expected != self._bytes:
            raise OutputError(
                f"{self._path}: {self._bytes} bytes were written, expected {expected}: an input "
                "changed while it was read; run again"
            )
        return write_digested(path, index_chunks(dtype, lengths, doc_idx, modes), self._files.write)


class JoinedDataset(NewDataset):
    """A NewDataset on a store, which joins the .bin from ranges of others."""

    _version = PIECES_VERSION
    _files: NewFiles

    def _open(self) -> None:
        self._ranges = self._files.joined[self._path] = list[Range]()
        self._pieces: list[FileDigest] = []

    def _digest(self) -> FileDigest:
        return FileDigest(bytes=self._bytes, pieces=self._pieces)

    def join(
        self, shard: Shard, digest: FileDigest | None, on_bytes: Callable[[int], None]
    ) -> None:
        """Note that the .bin of a shard comes next; without a ``digest`` it is read for one.

        Nothing is copied yet; ``publish`` will, and call ``on_bytes``. InputError if the shard is
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
        self._ranges.append(Range(source, 0, size))
        if digest is None:
            sums = scan(
                bin_path(shard.prefix), size, lambda begin, block: block_sums(begin, block.data)
            )
            joined = b"".join(block for _, _, block in sums)
            digest = FileDigest(bytes=size, xxh3_blocks=checksum_of_sums(joined))
        self._pieces += digest.get("pieces", [digest])
        self._bytes += size


class HasVocabulary(Protocol):
    """A tokenizer; only its size is needed."""

    @property
    def vocab_size(self) -> int:
        """All ids are less than this."""
        ...


class MMapIndexedDatasetBuilder:
    """Write a dataset sequence by sequence, with the interface of fairseq, Megatron and GPT-NeoX.

    ``out_file`` is the path of the .bin, ``dtype`` that of the token ids (uint8 to int64). If None,
    it is the dtype in which ``encode`` stores the ids of ``tokenizer``, any object with a
    ``vocab_size``, or int64 without one:

        builder = MMapIndexedDatasetBuilder("wiki.bin", tokenizer=tokpack.load_tokenizer("gpt2"))
        builder.add_item([15496, 11, 995, 50256])
        builder.end_document()
        builder.finalize("wiki.idx")

    ``tracks`` are values for each token: mask (1 for trained tokens, else 0), weights, labels.
    ``add_item`` takes them by name, and a manifest is written, which lists them:

        builder = MMapIndexedDatasetBuilder("chats.bin", dtype=np.int32, tracks=["mask"])
        builder.add_item([9906, 0, 13347, 2], mask=[0, 0, 1, 1])

    Tokens go to a file beside ``out_file`` until ``finalize`` syncs and renames them; ``abandon``
    removes them. As a context manager it abandons unless finalized. Takes 4 bytes of memory per
    sequence and 8 per document.
    """

    def __init__(
        self,
        out_file: str | os.PathLike[str],
        dtype: npt.DTypeLike | None = None,
        *,
        tracks: Iterable[str] = (),
        tokenizer: HasVocabulary | None = None,
    ) -> None:
        if tokenizer is not None and not hasattr(tokenizer, "vocab_size"):
            raise UsageError(f"tokenizer is {tokenizer!r}: give tokpack.load_tokenizer(...)")
        if dtype is None:
            dtype = best_fitting_dtype(tokenizer.vocab_size) if tokenizer else np.int64
        self._path = os.fsdecode(out_file)
        self._dtype = storage_dtype(dtype)
        self._range = np.iinfo(self._dtype)
        self._lengths = array("i")
        self._doc_idx = array("q", [0])
        self._files = AtomicFiles()
        self._new = NewDataset(os.path.splitext(self._path)[0], self._files, tracks, self._path)
        self._is_open = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self._dtype

    def add_item(self, tensor: npt.ArrayLike, **tracks: npt.ArrayLike) -> None:
        """Append one sequence: a list, an array or a torch tensor of integers, which may be empty.

        ``tracks`` are the values of each track, one per token. UsageError names the first id that
        does not fit the dtype, or a track that is missing or does not fit the sequence.
        """
        self._check_open()
        tokens = self._convert(tensor)
        values = self._values(tracks, tokens.size)
        try:
            self._new.append(tokens, values)
        except OutputError:  # the sequence may have been written in part
            self.abandon()
            raise
        self._lengths.append(tokens.size)

    def end_document(self) -> None:
        """End a document: the sequences since the last end, or none."""
        self._check_open()
        self._doc_idx.append(len(self._lengths))

    def merge_file_(self, another_file: str | os.PathLike[str]) -> None:
        """Append the dataset with the prefix ``another_file`` and its documents, after checking it.

        Ends an open document first. UsageError if the dtypes differ, or it is multimodal.
        """
        self._check_open()
        with MMapIndexedDataset(another_file, verify=True) as other:
            if other.dtype != self._dtype:
                raise UsageError(
                    f"{other.path_prefix}: token ids are {other.dtype}, those of {self._path} "
                    f"{self._dtype}: only datasets of the same dtype can be merged"
                )
            if other.modes is not None:
                raise UsageError(
                    f"{other.path_prefix}: is multimodal, and the mode of each sequence would be "
                    "lost: use `tokpack merge`"
                )
            names = self._new.tracks.names
            if lost := [name for name in other.tracks if name in LOSS_TRACKS and name not in names]:
                raise UsageError(
                    f"{other.path_prefix}: its {' and '.join(lost)} would be lost: name them as "
                    "tracks of the builder"
                )
            self._end_open_document()
            offset = len(self._lengths)
            for shard in other.shards():
                self._new.copy(shard, 0, shard.tokens.nbytes, "merged")
            self._lengths.frombytes(other.sizes.astype(np.intc).tobytes())
            self._doc_idx.frombytes((other.doc_idx[1:] + offset).astype(np.int64).tobytes())

    def finalize(self, index_file: str | os.PathLike[str]) -> None:
        """Commit the dataset: its tokens, then its index, under their names.

        ``index_file`` is the path of the .idx. Sequences after the last ``end_document`` become one
        more document. An old index and manifest are removed before the tokens appear, so that a
        crash in between leaves no dataset rather than a mixed one. UsageError if there are tracks
        and the .idx is not named like the .bin; OutputError if a file to replace is not a track or
        manifest.
        """
        self._check_open()
        self._end_open_document()
        name, home = os.fsdecode(index_file), self._new.prefix
        lengths = np.frombuffer(self._lengths, np.intc)
        doc_idx = np.frombuffer(self._doc_idx, np.int64)
        prefix, tracks = os.path.splitext(name)[0], self._new.tracks.names
        manifest = manifest_path(prefix)
        if tracks and prefix != home:
            raise UsageError(f"{name}: must be {home}.idx, because the dataset has tracks")
        check_outputs(
            [(track_path(prefix, one), TRACK) for one in tracks]
            + ([(manifest, MANIFEST)] if tracks else []),
            (),
            overwrite=True,
        )
        if tracks:
            tokens = int(lengths.sum(dtype=np.int64))
            facts = plain_facts(home, len(doc_idx) - 1, tokens, tokens * self._dtype.itemsize)
            self._new.complete(self._dtype, lengths, doc_idx, facts)
        else:
            self._new.write_index(name, self._dtype, lengths, doc_idx)
        old = [manifest] if is_manifest(manifest) else []
        self._files.commit(stale=[*own_tracks(prefix), *old, name])
        self._is_open = False

    def abandon(self) -> None:
        """Remove what was written. After ``finalize`` this does nothing."""
        self._files.__exit__()
        self._is_open = False

    def __enter__(self) -> MMapIndexedDatasetBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def _values(self, tracks: Mapping[str, npt.ArrayLike], size: int) -> dict[str, Any]:
        """The values of each track for a sequence of so many tokens."""
        where = f"{self._path}: sequence {len(self._lengths)}"
        if tracks.keys() != set(self._new.tracks.names):
            wanted = " and ".join(self._new.tracks.names) or "none"
            raise UsageError(
                f"{where}: its tracks are {' and '.join(tracks) or 'none'}, expected {wanted}, "
                "as given to the builder"
            )
        values = {}
        for name in self._new.tracks.names:
            try:
                values[name] = track_values(name, tracks[name])
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
            if values[name].size != size:
                raise UsageError(
                    f"{where}: its {name} has {values[name].size} values for {size} tokens"
                )
        return values

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(
                f"{self._path}: the builder was finalized or abandoned; make a new one"
            )

    def _convert(self, tensor: npt.ArrayLike) -> npt.NDArray[Any]:
        ids = np.asarray(tensor)
        number = len(self._lengths)
        if ids.size > MAX_LENGTH:
            raise UsageError(
                f"{self._path}: sequence {number} has {ids.size} tokens, more than {MAX_LENGTH}"
            )
        if ids.size and ids.dtype.kind not in "iu":
            raise UsageError(
                f"{self._path}: sequence {number} holds {ids.dtype}, token ids are integers"
            )
        low, high = self._range.min, self._range.max
        fits = not ids.size or np.can_cast(ids.dtype, self._dtype)
        if not fits and not low <= int(ids.min()) <= int(ids.max()) <= high:
            bad = next(int(token) for token in ids.flat if not low <= int(token) <= high)
            raise UsageError(
                f"{self._path}: token id {bad} in sequence {number} does not fit {self._dtype} "
                f"({low} to {high}): choose a wider dtype"
            )
        return np.ascontiguousarray(ids, self._dtype).reshape(-1)

    def _end_open_document(self) -> None:
        if self._doc_idx[-1] != len(self._lengths):
            self.end_document()
