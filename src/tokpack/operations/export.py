"""Write a dataset in other formats."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, OutputError, UsageError
from tokpack.files.durable import cannot_write
from tokpack.files.outputs import DATA
from tokpack.indexed.lengths import document_ends
from tokpack.operations.olmo import checked_ids, olmo_paths, write_documents
from tokpack.operations.output import NewFiles
from tokpack.operations.parquet import write_lists
from tokpack.progress import ProgressStage
from tokpack.stores import exists, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

    from tokpack.operations.foreign import Arrays, ForeignDataset
    from tokpack.progress import Show

_BOUNDS_LOST = (
    "the file does not tell where documents end: that is only seen by their EOD tokens, if they "
    "have them"
)


class _Lengths:
    """The lengths of all sequences of a dataset, put together from parts."""

    def __init__(self, source: ForeignDataset, new: NewFiles) -> None:
        self._source = source
        self._lengths: npt.NDArray[np.int32] = new.scratch(source.sequences, np.int32)
        self._count = 0

    def add(self, part: npt.NDArray[Any]) -> None:
        begin, self._count = self._count, self._count + len(part)
        if self._count <= self._source.sequences:
            self._lengths[begin : self._count] = part

    def complete(self) -> npt.NDArray[np.int32]:
        """All of them. FormatError where they are not as many as the input says."""
        name, expected = self._source.name, self._source.sequences
        if self._count != expected:
            raise FormatError(f"{name}: {self._count} sequences, expected {expected}")
        return self._lengths


class Content:
    """What is to be written: a dataset of any format, with ids of ``dtype``.

    FormatError where lengths and ids are not what the input says it has.
    """

    def __init__(
        self,
        source: ForeignDataset,
        dtype: np.dtype[Any],
        new: NewFiles,
        *,
        eod: int | None = None,  # which ends each document, where that is known
        progress: Show | None = None,
    ) -> None:
        self.source, self.dtype, self.eod = source, dtype, eod
        self.new, self._progress = new, progress
        self._lengths: npt.NDArray[np.int32] | None = None
        if not source.both:
            self._read_lengths()

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sequence: read with the ids, where that saves a second read.

        Else, and where they are asked for before, they are read, and so checked, before any id.
        """
        return self._read_lengths() if self._lengths is None else self._lengths

    @property
    def tokens(self) -> int:
        """The sum of the lengths."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def name(self) -> str:
        """That of the input, for messages."""
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
        """Where each document ends, in ids."""
        return document_ends(self.lengths, self.doc_idx)[1:]

    def ids(self) -> Arrays:
        """All ids, as many as the lengths say. UsageError for one that does not fit the dtype."""
        total = self.source.tokens_about if self._lengths is None else self.tokens
        stage = ProgressStage(self._progress, "convert", total, "tokens")
        done = 0
        for part in self._parts():
            if part.size:
                yield np.ascontiguousarray(self._cast(part, done))
            done += part.size
            stage.add(part.size)
        if done != self.tokens:
            raise FormatError(f"{self.name}: {done} ids, expected {self.tokens}")

    def _parts(self) -> Arrays:
        if self._lengths is not None or not self.source.both:
            yield from self.source.ids()
            return
        lengths = _Lengths(self.source, self.new)
        for part, ids in self.source.both():
            lengths.add(part)
            yield ids
        self._lengths = lengths.complete()

    def _read_lengths(self) -> npt.NDArray[np.int32]:
        lengths = _Lengths(self.source, self.new)
        for part in self.source.lengths():
            lengths.add(part)
        self._lengths = lengths.complete()
        return self._lengths

    def _cast(self, ids: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        if not np.can_cast(ids.dtype, self.dtype):
            low, high = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
            if int(ids.min()) < low or int(ids.max()) > high:
                at = next(n for n, i in enumerate(ids.tolist()) if not low <= i <= high)
                raise UsageError(
                    f"{self.name}: token id {ids[at]} (token {first + at} of all) does not fit "
                    f"{self.dtype} ({low} to {high}): choose a wider type with --dtype"
                )
        return ids.astype(self.dtype, copy=False)


class Target(NamedTuple):
    """One format: the files of an output, the one it is known by last, and its dtypes.

    ``write`` is given the open files, and gives notes for users.
    """

    paths: Callable[[str], list[str]]
    dtypes: tuple[str, ...]  # allowed; the first is chosen where the dataset's own is not among it
    write: Callable[[list[BinaryIO], Content], list[str]]
    ends: bool = True  # whether it tells where documents end


def _write_datatrove(files: list[BinaryIO], content: Content) -> list[str]:
    metadata, index, ids = files
    ids.writelines(part.data for part in content.ids())
    index.write(content.ends.astype("<i8", copy=False).data)
    name = content.source.tokenizer or "Unknown Tokenizer"
    text = f"{name}|{content.dtype.itemsize}\n{content.tokens}\n{_metric(content.tokens)}"
    metadata.write(text.encode())
    return []


def _write_olmo(files: list[BinaryIO], content: Content) -> list[str]:
    documents, ids = files
    ids.writelines(part.data for part in checked_ids(content))
    left_out = write_documents(documents, content.ends)
    return [f"{left_out} documents without ids are left out"] if left_out else []


def _write_npy(files: list[BinaryIO], content: Content) -> list[str]:
    text = f"{{'descr': '{content.dtype.str}', 'fortran_order': False, "
    text += f"'shape': ({content.tokens},), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"  # the ids begin at a multiple of 64
    files[0].write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    return _write_raw(files, content)


def _write_raw(files: list[BinaryIO], content: Content) -> list[str]:
    files[0].writelines(part.data for part in content.ids())
    return [_BOUNDS_LOST]


def _write_parquet(files: list[BinaryIO], content: Content) -> list[str]:
    write_lists(files[0], content)
    return []


_ANY = ("int32", "uint16", "uint8", "int64", "uint32")
_NARROW = ("uint32", "uint16")
EXPORTS = {
    "datatrove": Target(
        lambda name: [f"{name}.metadata", f"{name}.index", name], _NARROW, _write_datatrove
    ),
    "olmo": Target(olmo_paths, _NARROW, _write_olmo),
    "npy": Target(lambda name: [name], _ANY, _write_npy, ends=False),
    "raw": Target(lambda name: [name], _ANY, _write_raw, ends=False),
    "parquet": Target(lambda name: [name], _ANY, _write_parquet),
}


def new_export(target: str, output: str, inputs: Iterable[str], *, overwrite: bool) -> NewFiles:
    """The files of an output in the format ``target``, a key of EXPORTS."""
    paths = EXPORTS[target].paths(output)
    mask = f"{output}.loss"
    if target == "datatrove" and exists(mask):
        raise OutputError(
            f"{shown(mask)} exists: it would be taken for the mask of the new dataset; remove it, "
            "or choose another output"
        )
    # What an old dataset is known by goes before a file of the new one comes.
    outputs = [(path, DATA) for path in paths]
    return NewFiles(outputs, inputs, overwrite=overwrite, stale=paths[1:][-1:])


def export(content: Content, target: str, output: str, new: NewFiles) -> list[str]:
    """Write a dataset in the format ``target``; notes for users.

    UsageError where the format needs documents that end with an EOD, and one does not.
    """
    form = EXPORTS[target]
    with cannot_write(output):
        notes = form.write([new.create(path) for path in form.paths(output)], content)
    if form.ends and len(content.lengths) != len(content.ends):
        notes.append("the sequences of a document were joined: the format knows documents only")
    return notes


def export_dtype(target: str, stored: np.dtype[Any], dtype: str | None) -> np.dtype[Any]:
    """The dtype of an output: the one asked for, else the input's, else the format's first."""
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
