"""What the arrays of a Megatron order are made of, and how: in one pass, with little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.indexed.lengths import release
from tokpack.samples.cache.store import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.samples.megatron.flavours import Flavour

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_ROWS = 1 << 19  # of the sample index at a time
_ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u2")])  # as the native core knows it


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


def plan_epochs(
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

    ``lengths`` int32 are those of all sequences of the dataset. Six bytes of memory for each entry
    of the document index, and a part of the rest at a time.
    """
    random = _core.RandomState(plan.seed)
    entries = _shuffled_entries(lengths, plan, random).view(_ENTRY)
    yield Part("document_index", np.dtype(np.int32), entries.shape, _documents(entries))
    yield _sample_index(entries, lengths, plan)
    del entries
    yield Part.of("shuffle_index", _shuffle_index(plan, random))


def build_arrays(lengths: npt.NDArray[np.int32], plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """The same arrays, in memory; the document index stays where the entries were."""
    random = _core.RandomState(plan.seed)
    memory = _shuffled_entries(lengths, plan, random)
    sample_index = _sample_index(memory.view(_ENTRY), lengths, plan).array()
    return {
        "document_index": _compact(memory),
        "sample_index": sample_index,
        "shuffle_index": _shuffle_index(plan, random),
    }


def _shuffled_entries(
    lengths: npt.NDArray[np.int32], plan: Plan, random: _core.RandomState
) -> npt.NDArray[np.uint8]:
    """The sequences of all epochs with their lengths, in the order of the document index."""
    count = plan.end - plan.begin
    memory = np.empty(plan.epochs * count * _ENTRY.itemsize, np.uint8)
    entries = memory.view(_ENTRY)
    part = lengths[plan.begin : plan.end]
    for start in range(0, count, _ROWS):
        some = slice(start, min(start + _ROWS, count))
        _core.number_sequences(part[some], plan.begin + start, entries[some])
        release(lengths)
    memory.reshape(plan.epochs, -1)[1:] = memory[: count * _ENTRY.itemsize]
    together = (plan.epochs - 1 if plan.apart else plan.epochs) * count
    random.shuffle(entries[:together])
    random.shuffle(entries[together:])
    return memory


def _documents(entries: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.int32]]:
    for start in range(0, len(entries), _ROWS):
        yield entries["sequence"][start : start + _ROWS].astype(np.int32)


def _compact(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """The document index, moved together in the memory of the entries, the rest of which goes.

    Nobody may look at the entries any more.
    """
    size = len(memory) // _ENTRY.itemsize * 4
    documents = memory[:size].view(np.int32)
    start = 0
    for piece in _documents(memory.view(_ENTRY)):  # copies: what is written over was read
        documents[start : start + len(piece)] = piece
        start += len(piece)
    del documents
    memory.resize(size, refcheck=False)
    return memory.view(np.int32)


def _sample_index(
    entries: npt.NDArray[np.void], lengths: npt.NDArray[np.int32], plan: Plan
) -> Part:
    dtype = np.dtype(np.int64 if plan.wide else np.int32)
    rows = _rows(entries, lengths, plan)
    return Part("sample_index", dtype, (plan.samples + 1, 2), rows)


def _rows(
    entries: npt.NDArray[np.void], lengths: npt.NDArray[np.int32], plan: Plan
) -> Iterator[npt.NDArray[Any]]:
    part = lengths[plan.begin : plan.end]
    walk = _core.SampleWalk(entries, part, plan.begin, plan.seq_length, extra=bool(plan.extra))
    missing = plan.samples + 1 - plan.partial
    while missing:
        count = min(_ROWS, missing)
        yield walk.rows(count, wide=plan.wide)
        missing -= count
        release(lengths)  # of a long sequence that is looked up, megabytes around it are mapped
    if plan.partial:
        end = len(entries) - 1, int(lengths[entries[-1]["sequence"]]) - plan.extra
        yield np.array([end], np.int64 if plan.wide else np.int32)
    release(lengths)


def _shuffle_index(plan: Plan, random: _core.RandomState) -> npt.NDArray[Any]:
    dtype = np.int64 if plan.samples >= _UINT32_MAX - 1 else np.uint32
    index: npt.NDArray[Any] = np.arange(plan.samples, dtype=dtype)
    random.shuffle(index[: plan.apart or plan.samples])
    if plan.apart:
        random.shuffle(index[plan.apart :])
    return index
