"""What the arrays of a Megatron order are made of, and how: in one pass, with little memory."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.samples.cache import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.samples.megatron_flavours import Flavour

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_ROWS = 1 << 19  # of the sample index at a time
_LENGTHS = 1 << 24  # read at a time


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides the arrays, besides the lengths of the sequences."""

    begin: int
    end: int
    seq_length: int
    extra: int
    seed: int
    epochs: int
    samples: int
    partial: bool  # the last sample is shorter than the others
    apart: int  # samples before a last epoch of its own; 0 without one
    wide: bool  # the sample index is int64


def make_plan(
    rules: Flavour,
    tokens: int,
    begin: int,
    end: int,
    *,
    seq_length: int,
    num_samples: int | None,
    seed: int,
    extra: int,
    drop_last: bool,
) -> Plan:
    """How many samples there are, and which belong to epochs that are shuffled apart."""
    epochs = 1
    if num_samples is not None:
        epochs = max(1, -(-(num_samples * seq_length + extra) // tokens))
    usable = epochs * tokens - extra
    samples = usable // seq_length
    partial = not drop_last and usable % seq_length > 0
    apart = 0
    if epochs > 1 and num_samples is not None and rules.last_epoch_share > 0:
        before = ((epochs - 1) * tokens - extra) // seq_length
        in_epoch = (tokens - extra) // seq_length
        wanted = num_samples - before
        if wanted > in_epoch + rules.last_epoch_slack:
            raise UsageError(
                f"{num_samples} samples of {seq_length} tokens need {wanted} of a last epoch that "
                f"has {in_epoch} by {rules.name}'s count, with which it stops; ask for one fewer"
            )
        if wanted < int(rules.last_epoch_share * in_epoch):
            apart = before
    samples += partial
    if samples == 0:
        raise UsageError(
            f"the sequences have {tokens} tokens, too few for one sample of {seq_length + extra}"
        )
    positions = epochs * (end - begin)
    wide = positions > _INT32_MAX or rules.is_wide(samples + 1, positions)
    return Plan(begin, end, seq_length, extra, seed, epochs, samples, partial, apart, wide)


def build_parts(lengths: npt.NDArray[np.int32], plan: Plan) -> Iterator[Part]:
    """document_index, sample_index and shuffle_index, each made when it is asked for.

    ``lengths`` int32 are those of all sequences of the dataset. In memory are the document index,
    lengths in 16 bits, and a part of the rest at a time.
    """
    random = _core.RandomState(plan.seed)
    documents = _document_index(plan, random)
    yield Part.of("document_index", documents)
    chunks = _sample_index(lengths, documents, plan)
    dtype = np.dtype(np.int64 if plan.wide else np.int32)
    yield Part("sample_index", dtype, (plan.samples + 1, 2), chunks)
    del documents, chunks
    yield Part.of("shuffle_index", _shuffle_index(plan, random))


def release(array: npt.NDArray[Any]) -> None:
    """Let go of the memory with which a mapped file is read; what is read again is mapped again."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    # Other memory than that of a file, or a private copy of one, would lose what is in it.
    if isinstance(base, mmap.mmap) and memoryview(base).readonly and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def _document_index(plan: Plan, random: _core.RandomState) -> npt.NDArray[np.int32]:
    index = np.empty((plan.epochs, plan.end - plan.begin), np.int32)
    for epoch in index:
        _count_up(epoch, plan.begin)
    together = plan.epochs - 1 if plan.apart else plan.epochs
    random.shuffle(index[:together].reshape(-1))
    if plan.apart:
        random.shuffle(index[-1])
    return index.reshape(-1)


def _count_up(values: npt.NDArray[Any], first: int) -> None:
    """Write first, first + 1 ... without a second array of this size."""
    for start in range(0, len(values), _ROWS):
        piece = values[start : start + _ROWS]
        piece[:] = np.arange(first + start, first + start + len(piece), dtype=values.dtype)


def _sample_index(
    lengths: npt.NDArray[np.int32], documents: npt.NDArray[np.int32], plan: Plan
) -> Iterator[npt.NDArray[Any]]:
    part = lengths[plan.begin : plan.end]
    narrow = np.empty(len(part), np.uint16)
    for start in range(0, len(part), _LENGTHS):
        piece = slice(start, start + _LENGTHS)
        _core.narrow_lengths(part[piece], narrow[piece])
        release(lengths)
    walk = _core.SampleWalk(
        part, narrow, plan.begin, documents, plan.seq_length, extra=bool(plan.extra)
    )
    missing = plan.samples + 1 - plan.partial
    while missing:
        count = min(_ROWS, missing)
        yield walk.rows(count, wide=plan.wide)
        missing -= count
    if plan.partial:
        end = len(documents) - 1, int(lengths[documents[-1]]) - plan.extra
        yield np.array([end], np.int64 if plan.wide else np.int32)
    release(lengths)


def _shuffle_index(plan: Plan, random: _core.RandomState) -> npt.NDArray[Any]:
    index = np.empty(plan.samples, np.int64 if plan.samples >= _UINT32_MAX - 1 else np.uint32)
    _count_up(index, 0)
    random.shuffle(index[: plan.apart or plan.samples])
    if plan.apart:
        random.shuffle(index[plan.apart :])
    return index
