"""Write ``.bin/.idx`` datasets: whole, or not at all."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import __version__
from tokpack.errors import OutputError, UsageError
from tokpack.files.blocks import BlockSums, checksum_of_sums
from tokpack.files.durable import AtomicFiles, cannot_write
from tokpack.files.outputs import check_outputs
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.digests import FileDigest, HashingReader
from tokpack.indexed.format import MAX_LENGTH, index_chunks, storage_dtype
from tokpack.indexed.manifest import MANIFEST, Manifest, is_manifest, manifest_path, now
from tokpack.indexed.outputs import TRACK
from tokpack.indexed.plain import plain_facts
from tokpack.indexed.track import own_tracks, track_path
from tokpack.indexed.track_writer import NewTracks, track_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class MMapIndexedDatasetBuilder:
    """Write a dataset sequence by sequence, as users of fairseq, Megatron and GPT-NeoX know it.

    ``out_file`` is the path of the .bin, ``dtype`` that of the token ids (uint8 to int64):

        builder = MMapIndexedDatasetBuilder("wiki.bin", dtype=best_fitting_dtype(vocab_size))
        builder.add_item([15496, 11, 995, 50256])
        builder.end_document()
        builder.finalize("wiki.idx")

    ``tracks`` name what the dataset has beside its tokens, a value for each: mask (1 for a token
    that is trained, else 0), weights, labels. ``add_item`` takes them by their names, and a
    manifest is written, which names them:

        builder = MMapIndexedDatasetBuilder("chats.bin", dtype=np.int32, tracks=["mask"])
        builder.add_item([9906, 0, 13347, 2], mask=[0, 0, 1, 1])

    Tokens go to a file beside ``out_file`` until ``finalize`` syncs and renames them; ``abandon``
    removes them. As a context manager it abandons what was not finalized. Takes 4 bytes of memory a
    sequence and 8 a document.
    """

    def __init__(
        self,
        out_file: str | os.PathLike[str],
        dtype: npt.DTypeLike = np.int64,
        *,
        tracks: Iterable[str] = (),
    ) -> None:
        self._path = os.fsdecode(out_file)
        self._dtype = storage_dtype(dtype)
        self._range = np.iinfo(self._dtype)
        self._lengths = array("i")
        self._doc_idx = array("q", [0])
        self._bytes = 0
        self._sums = BlockSums()  # of the tokens, where a manifest will tell of them
        self._staged = AtomicFiles()
        self._tracks = NewTracks(os.path.splitext(self._path)[0], tracks, self._staged.create)
        self._file = self._staged.create(self._path)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the token ids, little endian."""
        return self._dtype

    def add_item(self, tensor: npt.ArrayLike, **tracks: npt.ArrayLike) -> None:
        """Append one sequence: a list, an array or a torch tensor of integers, which may be empty.

        ``tracks`` are as many values for each track of the builder. UsageError names the first id
        that does not fit the dtype, and a track that is missing or does not fit the sequence.
        """
        self._check_open()
        tokens = self._convert(tensor)
        values = self._values(tracks, tokens.size)
        self._write(tokens)
        if values:
            self._tracks.append(values)
        self._lengths.append(tokens.size)
        self._bytes += tokens.nbytes

    def end_document(self) -> None:
        """End a document: the sequences since the last end, which may be none."""
        self._check_open()
        self._doc_idx.append(len(self._lengths))

    def merge_file_(self, another_file: str | os.PathLike[str]) -> None:
        """Append the dataset with the prefix ``another_file``, documents and all, once verified.

        Ends an open document first. UsageError where the dtypes differ, or it is multimodal.
        """
        self._check_open()
        with MMapIndexedDataset(another_file, verify=True) as other:
            if other.dtype != self._dtype:
                raise UsageError(
                    f"{other.path_prefix}: token ids are {other.dtype}, those of {self._path} "
                    f"{self._dtype}: datasets of one dtype can be merged"
                )
            if other.modes is not None:
                raise UsageError(
                    f"{other.path_prefix}: is multimodal, and the mode of each sequence would be "
                    "lost: use `tokpack merge`"
                )
            if lost := [name for name in other.tracks if name not in self._tracks.names]:
                raise UsageError(
                    f"{other.path_prefix}: its {' and '.join(lost)} would be lost: name them as "
                    "tracks of the builder"
                )
            self._end_open_document()
            offset = len(self._lengths)
            self._write(other.tokens)
            if names := self._tracks.names:
                self._tracks.append({name: other.shard(0).track(name)[:] for name in names})
            self._bytes += other.tokens.nbytes
            self._lengths.frombytes(other.sizes.astype(np.intc).tobytes())
            self._doc_idx.frombytes((other.doc_idx[1:] + offset).astype(np.int64).tobytes())

    def finalize(self, index_file: str | os.PathLike[str]) -> None:
        """Commit the dataset: its tokens, then its index, under their names.

        ``index_file`` is the path of the .idx. Sequences after the last ``end_document`` make one
        more document. An index of that name, and the manifest of a dataset that is replaced, are
        removed before the tokens appear, so that a crash in between leaves no dataset rather than a
        mixed one. UsageError where there are tracks, which belong to the name of the .bin, and the
        .idx has another one; OutputError where a file of that name is no track or no manifest.
        """
        self._check_open()
        self._end_open_document()
        name = os.fsdecode(index_file)
        lengths = np.frombuffer(self._lengths, np.intc)
        doc_idx = np.frombuffer(self._doc_idx, np.int64)
        with cannot_write(self._path):
            self._file.flush()
        self._check_size()
        prefix = os.path.splitext(name)[0]
        manifest, own = manifest_path(prefix), os.path.splitext(self._path)[0]
        if self._tracks.names and prefix != own:
            raise UsageError(f"{name}: must be {own}.idx, as the dataset has tracks")
        check_outputs(
            [(track_path(prefix, one), TRACK) for one in self._tracks.names]
            + ([(manifest, MANIFEST)] if self._tracks.names else []),
            (),
            overwrite=True,
        )
        index = HashingReader(index_chunks(self._dtype, lengths, doc_idx))
        self._staged.write(name, index)
        if self._tracks.names:
            self._staged.write(manifest, self._manifest(index.digest).chunks())
        old = [manifest] if is_manifest(manifest) else []
        self._staged.commit(stale=[*own_tracks(prefix), *old, name])

    def abandon(self) -> None:
        """Remove what was written; nothing happens after ``finalize``."""
        self._staged.__exit__()

    def __enter__(self) -> MMapIndexedDatasetBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def _write(self, tokens: npt.NDArray[Any]) -> None:
        data = tokens.view(np.uint8).data
        with cannot_write(self._path):
            self._file.write(data)
        if self._tracks.names:
            self._sums.add(data)

    def _values(self, given: Mapping[str, npt.ArrayLike], size: int) -> dict[str, Any]:
        """The values of each track for a sequence of so many tokens."""
        where = f"{self._path}: sequence {len(self._lengths)}"
        if given.keys() != set(self._tracks.names):
            wanted = " and ".join(self._tracks.names) or "none"
            raise UsageError(
                f"{where}: its tracks are {' and '.join(given) or 'none'}, expected {wanted}, "
                "as the builder was told"
            )
        values = {}
        for name in self._tracks.names:
            try:
                values[name] = track_values(name, given[name])
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
            if values[name].size != size:
                raise UsageError(
                    f"{where}: its {name} has {values[name].size} values for {size} tokens"
                )
        return values

    def _manifest(self, index: FileDigest) -> Manifest:
        """What is known of a dataset that was made of ids."""
        documents = len(self._doc_idx) - 1
        tokens = self._bytes // self._dtype.itemsize
        binary = FileDigest(bytes=self._bytes, xxh3_blocks=checksum_of_sums(self._sums.finish()))
        return Manifest(
            tokpack_version=__version__,
            created=now(),
            sequences=len(self._lengths),
            tokens=tokens,
            dtype=str(self._dtype),
            bin=binary,
            idx=index,
            **plain_facts(os.path.splitext(self._path)[0], documents, tokens, self._bytes),
            **self._tracks.finish(tokens),
        )

    def _check_open(self) -> None:
        if self._file.closed:
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
        if ids.size and not np.can_cast(ids.dtype, self._dtype):
            self._check_range(ids, number)
        return np.ascontiguousarray(ids, self._dtype).reshape(-1)

    def _check_range(self, ids: npt.NDArray[Any], number: int) -> None:
        low, high = self._range.min, self._range.max
        if int(ids.min()) >= low and int(ids.max()) <= high:
            return
        bad = next(int(token) for token in ids.flat if not low <= int(token) <= high)
        raise UsageError(
            f"{self._path}: token id {bad} in sequence {number} does not fit {self._dtype} "
            f"({low} to {high}): choose a wider dtype"
        )

    def _end_open_document(self) -> None:
        if self._doc_idx[-1] != len(self._lengths):
            self.end_document()

    def _check_size(self) -> None:
        """Refuse to commit after a write that failed."""
        size = os.fstat(self._file.fileno()).st_size
        if size != self._bytes:
            raise OutputError(
                f"{self._path}: {size} bytes were written, expected {self._bytes}: "
                "an earlier write failed"
            )
