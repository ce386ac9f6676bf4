"""Write a dataset in other formats."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.dataset.format import document_ends
from tokpack.dataset.manifest import LOSS_TRACKS, TRACK_DTYPES, TRAINED_TRACKS
from tokpack.dataset.outputs import NewFiles
from tokpack.errors import FormatError, OutputError, UsageError, option
from tokpack.formats.lists import (
    arrow_paths,
    bridge_paths,
    write_arrow,
    write_bridge,
    write_parquet,
)
from tokpack.formats.neox import IGNORED, in_step, neox_paths, write_neox
from tokpack.formats.olmo import checked_ids, olmo_mask, olmo_paths, write_documents
from tokpack.progress import ProgressStage
from tokpack.storage import exists, shown
from tokpack.storage.disk import DATA, cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

    from tokpack.formats.foreign import Arrays, ForeignDataset
    from tokpack.progress import Show

_BOUNDS_LOST = (
    "the file does not say where documents end: only their EOD tokens, if they have any, show it"
)


class Content:
    """The content to write: a dataset in any format, with ids of ``dtype``.

    FormatError if lengths and ids are not as the input says.
    """

    def __init__(
        self,
        source: ForeignDataset,
        dtype: np.dtype[Any],
        new: NewFiles,
        *,
        eod: int | None = None,  # the id that ends each document, if known
        seq_length: int | None = None,  # tokens of a row of packed documents
        progress: Show | bool | None = None,
    ) -> None:
        self.source, self.dtype, self.eod, self.seq_length = source, dtype, eod, seq_length
        self.new, self._progress = new, progress
        self._lengths: npt.NDArray[np.int32] | None = None
        if not source.both:
            _ = self.lengths

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sequence: read with the ids, if that saves a second read.

        If they are needed earlier, they are read, and so checked, before any id.
        """
        if self._lengths is None:
            deque(self._with_lengths((part, part) for part in self.source.lengths()), maxlen=0)
        assert self._lengths is not None
        return self._lengths

    @property
    def tokens(self) -> int:
        """The sum of the lengths."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def name(self) -> str:
        """The name of the input, for messages."""
        return self.source.name

    @cached_property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        """First sequence of each document, then S."""
        if self.source.doc_idx is not None:
            return self.source.doc_idx
        index = self.new.scratch(len(self.lengths) + 1, np.int64)
        index[1:] = 1
        return np.cumsum(index, out=index)

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """The end of each document, in ids."""
        return document_ends(self.lengths, self.doc_idx)[1:]

    @property
    def is_masked(self) -> bool:
        """Whether tracks tell which tokens are trained."""
        return not self.source.tracks.keys().isdisjoint(TRAINED_TRACKS)

    def ids(self) -> Arrays:
        """All ids, as many as the lengths say. UsageError for one that does not fit the dtype."""
        total = 0 if self._lengths is None else self.tokens  # 0: unknown
        stage = ProgressStage(self._progress, "convert", total, "tokens")
        read_both = self.source.both if self._lengths is None else None
        done = 0
        for part in self._with_lengths(read_both()) if read_both else self.source.ids():
            if not np.can_cast(part.dtype, self.dtype) and part.size:
                low, high = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
                if int(part.min()) < low or int(part.max()) > high:
                    at = next(n for n, i in enumerate(part.tolist()) if not low <= i <= high)
                    raise UsageError(
                        f"{self.name}: token id {part[at]} (token {done + at} of all) does not fit "
                        f"{self.dtype} ({low} to {high}): choose a wider type with "
                        f"{option('dtype')}"
                    )
            if part.size:
                yield np.ascontiguousarray(part, self.dtype)
            done += part.size
            stage.add(part.size)
        if done != self.tokens:
            raise FormatError(f"{self.name}: {done} ids, expected {self.tokens}")

    def _track(self, name: str) -> Arrays:
        """The values of a track, in its dtype. FormatError for a mask that is not of 0 and 1."""
        first, dtype = 0, TRACK_DTYPES[name]
        for part in self.source.tracks[name]():
            if name == "mask" and part.max(initial=0) > 1:
                at = int(np.argmax(part > 1))
                raise FormatError(
                    f"{self.name}: the mask of token {first + at} is {part[at]}, expected 0 or 1"
                )
            yield np.ascontiguousarray(part, dtype)
            first += len(part)

    def labelled(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Ids with labels, -100 for untrained ones, in parts."""
        for ids, tracks in self.with_tracks(*TRAINED_TRACKS):
            labels = tracks.get("labels", ids).astype(np.int64)
            if "mask" in tracks:
                labels[tracks["mask"] == 0] = IGNORED
            yield ids, labels

    def masks(self) -> Arrays:
        """Whether each token is trained, in parts: uint8."""
        for ids, tracks in self.with_tracks(*TRAINED_TRACKS):
            mask = tracks.get("mask", np.ones(len(ids), np.uint8))
            yield mask & (tracks["labels"] >= 0) if "labels" in tracks else mask

    def with_tracks(
        self, *names: str
    ) -> Iterator[tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]]:
        """Ids with the values of those of some tracks that exist."""
        tracks = [name for name in names if name in self.source.tracks]
        for ids, *values in in_step(self.name, self.ids(), *(self._track(name) for name in tracks)):
            yield ids, dict(zip(tracks, values, strict=True))

    def _with_lengths(self, parts: Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> Arrays:
        """The second of each pair; the first ones are collected as ``lengths``.

        FormatError if their number is not the input's.
        """
        expected, count = self.source.sequences, 0
        lengths: npt.NDArray[np.int32] = self.new.scratch(expected, np.int32)
        for part, values in parts:
            begin, count = count, count + len(part)
            if count <= expected:
                lengths[begin:count] = part
            yield values
        if count != expected:
            raise FormatError(f"{self.name}: {count} sequences, expected {expected}")
        self._lengths = lengths


class Target(NamedTuple):
    """One format: the files of an output, with the main one last, and its dtypes.

    ``write`` is called with the open files, and returns notes for users.
    """

    paths: Callable[[str], list[str]]
    dtypes: tuple[str, ...]  # allowed ones; the first replaces others
    write: Callable[[list[BinaryIO], Content], list[str]]
    holds: tuple[str, ...] = ()  # the tracks it can hold; labels, or only which are trained
    mask: Callable[[str], str] | None = None  # with a mask, one more file, the first
    documents: bool = True  # has only documents, without sequences in them


def _write_datatrove(files: list[BinaryIO], content: Content) -> list[str]:
    metadata, index, ids = _beside_mask(files, 3, content)
    ids.writelines(part.data for part in content.ids())
    index.write(content.ends.astype("<i8", copy=False).data)
    name = content.source.tokenizer or "Unknown Tokenizer"
    text = f"{name}|{content.dtype.itemsize}\n{content.tokens}\n{_metric(content.tokens)}"
    metadata.write(text.encode())
    return []


def _write_olmo(files: list[BinaryIO], content: Content) -> list[str]:
    documents, ids = _beside_mask(files, 2, content)
    ids.writelines(part.data for part in checked_ids(content))
    left_out = write_documents(documents, content.ends)
    return [f"{left_out} documents without ids are left out"] if left_out else []


def _beside_mask(files: list[BinaryIO], count: int, content: Content) -> list[BinaryIO]:
    """The files of ids, the last ``count``; if there is one more, it gets the mask."""
    for mask in files[:-count]:
        mask.writelines(part.data for part in content.masks())
    return files[-count:]


def _write_npy(files: list[BinaryIO], content: Content) -> list[str]:
    text = f"{{'descr': '{content.dtype.str}', 'fortran_order': False, "
    text += f"'shape': ({content.tokens},), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"  # the ids begin at a multiple of 64
    files[0].write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    return _write_raw(files, content)


def _write_raw(files: list[BinaryIO], content: Content) -> list[str]:
    files[0].writelines(part.data for part in content.ids())
    return [_BOUNDS_LOST]


_ANY = ("int32", "uint16", "uint8", "int64", "uint32")
_NARROW = ("uint32", "uint16")
_INT32 = ("int32",)
EXPORTS = {
    "datatrove": Target(
        lambda name: [f"{name}.metadata", f"{name}.index", name],
        _NARROW,
        _write_datatrove,
        holds=("mask",),
        mask=lambda name: f"{name}.loss",
    ),
    "olmo": Target(olmo_paths, _NARROW, _write_olmo, holds=("mask",), mask=olmo_mask),
    "npy": Target(lambda name: [name], _ANY, _write_npy, documents=False),
    "raw": Target(lambda name: [name], _ANY, _write_raw, documents=False),
    "parquet": Target(lambda name: [name], _ANY, write_parquet, holds=TRAINED_TRACKS),
    "arrow": Target(arrow_paths, _INT32, write_arrow, holds=TRAINED_TRACKS),
    "bridge": Target(bridge_paths, _INT32, write_bridge, holds=("mask",)),
    "neox": Target(neox_paths, _INT32, write_neox, holds=TRAINED_TRACKS, documents=False),
}


def export_paths(target: str, output: str, tracks: Iterable[str] = ()) -> list[str]:
    """The files of an output in the format ``target``, a key of EXPORTS, the main one last."""
    form = EXPORTS[target]
    masked = not set(TRAINED_TRACKS).isdisjoint(tracks)
    return [*([form.mask(output)] if form.mask and masked else []), *form.paths(output)]


def new_export(
    target: str, output: str, inputs: Iterable[str], tracks: Iterable[str], *, overwrite: bool
) -> NewFiles:
    """The new files of an output; ``tracks`` are those of the dataset.

    OutputError if an existing mask would be taken for that of a new dataset without one.
    """
    paths = export_paths(target, output, tracks)
    mask = EXPORTS[target].mask
    if mask and (path := mask(output)) not in paths and exists(path):
        raise OutputError(
            f"{shown(path)} exists: it would be taken for the mask of the new dataset; remove it, "
            "or choose another output"
        )
    # The main file of an old dataset is removed before any new file gets its name.
    outputs = [(path, DATA) for path in paths]
    return NewFiles(outputs, inputs, overwrite=overwrite, stale=paths[1:][-1:])


def export(content: Content, target: str, output: str, new: NewFiles) -> list[str]:
    """Write a dataset in the format ``target``. Returns notes for users.

    UsageError if the format needs documents that end with an EOD, and one does not.
    """
    form, tracks = EXPORTS[target], content.source.tracks
    with cannot_write(output):
        files = [new.create(path) for path in export_paths(target, output, tracks)]
        notes = form.write(files, content)
    if form.documents and len(content.lengths) != len(content.ends):
        notes.append("the sequences of a document were joined: the format knows documents only")
    for name in tracks:
        if name == "labels" and form.holds == ("mask",):
            notes.append(f"only which labels count is kept: {target} holds a mask")
        elif name not in form.holds and name in LOSS_TRACKS:
            notes.append(f"{name} of tokens is left out: {target} has no place for it")
    return notes


def export_dtype(target: str, stored: np.dtype[Any], dtype: str | None) -> np.dtype[Any]:
    """The dtype of an output: as requested, else the input's, else the format's first."""
    allowed = EXPORTS[target].dtypes
    if dtype is not None and dtype not in allowed:
        raise UsageError(f"{target} cannot hold {dtype}: choose one of {', '.join(allowed)}")
    kept = stored.newbyteorder("=").name
    return np.dtype(dtype or (kept if kept in allowed else allowed[0])).newbyteorder("<")


def _metric(count: float) -> str:
    """A number of tokens as datatrove writes it: 1.23 MT."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}T"
        count /= 1000
    return f"{count:.3g} PT"
