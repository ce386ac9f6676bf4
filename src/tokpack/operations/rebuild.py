"""Every index that the remains of a broken dataset allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import FormatError
from tokpack.indexed.format import MAX_LENGTH, Remains, bin_path, index_chunks
from tokpack.indexed.scan import ByteBlock, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tokpack.indexed.manifest import Manifest

_NO_DOCUMENTS = "where documents end is lost: each sequence is one; --eod ID finds more"
_CHUNK = 1 << 20  # sequences whose last token is looked up at a time


@dataclass(frozen=True)
class Case:
    """A broken dataset and all that is known about it."""

    prefix: str
    fault: str
    manifest: Manifest | None
    remains: tuple[Remains, ...]  # as the manifest and as the header count sequences
    whole_bin: bool  # it has the size that the manifest says
    dtype: np.dtype[Any]
    eod: int | None
    tokens: int  # whole ones, in the .bin
    digest: str  # of the old index, "" where there is none
    notes: tuple[str, ...]

    def data(self) -> npt.NDArray[Any]:
        """The tokens, mapped."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        return np.memmap(bin_path(self.prefix), self.dtype, "r", shape=(self.tokens,))


@dataclass(frozen=True)
class Rebuilt:
    """An index that fits the .bin: lengths [S] and doc_idx [D], and where they come from."""

    method: str
    lengths: npt.NDArray[Any]
    doc_idx: npt.NDArray[Any]
    notes: tuple[str, ...] = ()

    def digest(self, dtype: np.dtype[Any]) -> str:
        """Checksum of the index file that it makes."""
        state = xxhash.xxh3_128()
        for chunk in index_chunks(dtype, self.lengths, self.doc_idx):
            state.update(chunk)
        return state.hexdigest()


def candidates(case: Case) -> Iterator[Rebuilt]:
    """Every index that the remains allow, the most faithful first."""
    for remains in case.remains:
        for source, lengths in _lengths(case, remains):
            if remains.doc_idx is not None:
                method = f"{source} and documents of the old index"
                yield Rebuilt(method, lengths, remains.doc_idx)
            if case.eod is not None:
                yield _documents_at_eod(case, source, lengths, case.eod)
            else:
                each = np.arange(len(lengths) + 1)
                yield Rebuilt(f"{source} of the old index", lengths, each, (_NO_DOCUMENTS,))
        with_eod = _with_eod(case, remains)
        if with_eod is not None:
            yield with_eod
    if case.eod is not None and case.tokens:
        yield _cut_at_eod(case, case.eod)


def _lengths(case: Case, remains: Remains) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The lengths that add up to the .bin: an index has them twice, itself and as offsets."""
    lengths, pointers = remains.lengths, remains.pointers
    if lengths is not None and int(lengths.sum(dtype=np.int64)) == case.tokens:
        yield "lengths", lengths
    if pointers is None:
        return
    size = case.tokens * case.dtype.itemsize
    spans = np.diff(pointers, append=size)
    if int(spans.min()) < 0 or int(spans.max()) > MAX_LENGTH * case.dtype.itemsize:
        return
    if (spans % case.dtype.itemsize).any():
        return
    spans //= case.dtype.itemsize
    # The end of the last is that of the .bin. If only there the two disagree, and nobody knows
    # how long the .bin was, then it may well be the .bin that is wrong.
    last_only = lengths is not None and not (lengths[:-1] != spans[:-1]).any()
    if case.whole_bin or not last_only:
        yield "offsets", spans


def _documents_at_eod(case: Case, source: str, lengths: npt.NDArray[Any], eod: int) -> Rebuilt:
    """Documents of an index that forgot them: each ends with a sequence that ends with EOD."""
    data = case.data()
    ends = [np.zeros(1, np.int64)]
    begin = 0
    for start in range(0, len(lengths), _CHUNK):
        chunk = lengths[start : start + _CHUNK]
        after = np.cumsum(chunk, dtype=np.int64) + begin
        begin = int(after[-1])
        is_end = chunk > 0
        is_end[is_end] = data[after[is_end] - 1] == eod
        ends.append(np.flatnonzero(is_end) + start + 1)
    doc_idx = np.concatenate(ends)
    notes: tuple[str, ...] = ()
    if doc_idx[-1] != len(lengths):
        doc_idx = np.append(doc_idx, len(lengths))
        notes = ("what follows the last EOD is a last document without one",)
    return Rebuilt(f"{source} of the old index, documents ended at EOD", lengths, doc_idx, notes)


def _with_eod(case: Case, remains: Remains) -> Rebuilt | None:
    """The index of Microsoft's Megatron-DeepSpeed, which left out the EOD of each document."""
    lengths, doc_idx = remains.lengths, remains.doc_idx
    if lengths is None or doc_idx is None:
        return None
    last = doc_idx[1:][doc_idx[1:] > doc_idx[:-1]] - 1
    mended = lengths.astype(np.int64)
    mended[last] += 1
    ends = np.cumsum(mended)
    if not len(last) or int(ends[-1]) != case.tokens:
        return None
    found = np.unique(case.data()[ends[last] - 1])
    if len(found) != 1 or (case.eod is not None and found[0] != case.eod):
        return None
    note = f"every document ends with id {found[0]}, which the old index had left out"
    return Rebuilt("lengths of the old index, each document's EOD added", mended, doc_idx, (note,))


def _cut_at_eod(case: Case, eod: int) -> Rebuilt:
    """A document from each EOD to the next, each of one sequence."""
    itemsize = case.dtype.itemsize
    path = bin_path(case.prefix)

    def find(begin: int, block: ByteBlock) -> npt.NDArray[np.int64]:
        return np.flatnonzero(block.view(case.dtype) == eod) + (begin // itemsize + 1)

    ends = np.concatenate(
        [
            np.zeros(1, np.int64),
            *(found for _, _, found in scan(path, case.tokens * itemsize, find)),
        ]
    )
    if len(ends) == 1:
        raise FormatError(f"{path}: no token has the id {eod}: it is not the EOD of this dataset")
    notes: tuple[str, ...] = ()
    if rest := case.tokens - int(ends[-1]):
        ends = np.append(ends, case.tokens)
        notes = (f"the {rest} tokens after the last EOD are a last document, without its end",)
    lengths = np.diff(ends)
    if int(lengths.max()) > MAX_LENGTH:
        raise FormatError(
            f"{path}: {lengths.max()} tokens without the id {eod}, more than a document can have: "
            "it is not the EOD of this dataset"
        )
    return Rebuilt("the .bin, cut at EOD", lengths, np.arange(len(ends)), notes)
