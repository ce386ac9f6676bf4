"""The arrays of a Megatron order: what decides them, and how they are made with little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError, option
from tokpack.indexed.lengths import release
from tokpack.samples.cache import ChunkedArray
from tokpack.samples.orders.rules import flavour_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.samples.orders.rows import OrderInput

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_ROWS = 1 << 19  # of the sample index at a time
_ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u2")])  # as the native core knows it


@dataclass(frozen=True, slots=True)
class IndexKey:
    """All that decides the arrays, besides the lengths of the sequences of ``data``."""

    data: OrderInput
    epochs: int
    samples: int
    partial: bool  # the last sample is shorter than the others
    apart: int  # samples before a last epoch that is shuffled by itself; 0 without one
    wide: bool  # the sample index is int64

    @property
    def settings(self) -> dict[str, Any]:
        """The same as plain values, with the fingerprint of the data: the key of a cache."""
        of_data = ("fingerprint", "begin", "end", "seq_length", "extra", "seed")
        values = {name: getattr(self.data, name) for name in of_data}
        names = ("epochs", "samples", "partial", "apart", "wide")
        return values | {name: getattr(self, name) for name in names}


def megatron_index_key(
    data: OrderInput,
    num_samples: int | None,
    *,
    flavour: str = "megatron",
    drop_last: bool = True,
) -> IndexKey:
    """What is made of the sequences of ``data``, whose seed is 0 to 2^32 - 1.

    ``num_samples`` is what the run asks for, None one epoch. ``flavour`` is a name of FLAVOURS.
    ``drop_last=False`` keeps a last, shorter sample, as Megatron-core does for validation with
    ``drop_last_partial_validation_sequence`` off.

    UsageError for settings that leave no sample, or with which the program itself would stop.
    """
    rules = flavour_named(flavour)
    begin, end, seq_length, extra = data.begin, data.end, data.seq_length, data.extra
    if not 0 <= begin < end <= len(data.lengths):
        raise UsageError(f"sequences {begin} to {end} of {len(data.lengths)}: there is none in it")
    if end > _INT32_MAX:
        raise UsageError(
            f"{end} sequences: these orders number them with 31 bits; use "
            f"{option('order', 'stateless')}"
        )
    if seq_length < 1:
        raise UsageError(f"a sequence length of {seq_length}: use 1 or more")
    if num_samples is not None and num_samples < 0:
        raise UsageError(f"{num_samples} samples: ask for 0 or more")
    if not 0 <= data.seed <= _UINT32_MAX:
        raise UsageError(f"seed {data.seed}: these orders know 0 to {_UINT32_MAX}")
    tokens = data.tokens
    if tokens == 0:
        raise UsageError(f"sequences {begin} to {end} have no tokens: there is no sample in it")
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
    wide = epochs * (end - begin) > _INT32_MAX or rules.wide == "always"
    wide |= rules.wide == "rows" and 2 * (samples + 1) >= _INT32_MAX
    return IndexKey(data, epochs, samples, partial, apart, wide)


def build_parts(key: IndexKey) -> Iterator[ChunkedArray]:
    """document_index, sample_index and shuffle_index, each made when it is asked for.

    Six bytes of memory for each entry of the document index, and a part of the rest at a time.
    """
    random = _core.RandomState(key.data.seed)
    entries = _shuffled_entries(key, random).view(_ENTRY)
    yield ChunkedArray("document_index", np.dtype(np.int32), entries.shape, _documents(entries))
    yield _sample_index(entries, key)
    del entries
    yield ChunkedArray.of("shuffle_index", _shuffle_index(key, random))


def build_arrays(key: IndexKey) -> dict[str, npt.NDArray[Any]]:
    """The same arrays, in memory; the document index stays where the entries were."""
    random = _core.RandomState(key.data.seed)
    memory = _shuffled_entries(key, random)
    sample_index = _sample_index(memory.view(_ENTRY), key).array()
    return {
        "document_index": _compact(memory),
        "sample_index": sample_index,
        "shuffle_index": _shuffle_index(key, random),
    }


def _shuffled_entries(key: IndexKey, random: _core.RandomState) -> npt.NDArray[np.uint8]:
    """The sequences of all epochs with their lengths, in the order of the document index."""
    count = key.data.end - key.data.begin
    memory = np.empty(key.epochs * count * _ENTRY.itemsize, np.uint8)
    entries = memory.view(_ENTRY)
    part, lengths = key.data.part, key.data.lengths
    for start in range(0, count, _ROWS):
        some = slice(start, min(start + _ROWS, count))
        _core.number_sequences(part[some], key.data.begin + start, entries[some])
        release(lengths)
    memory.reshape(key.epochs, -1)[1:] = memory[: count * _ENTRY.itemsize]
    together = (key.epochs - 1 if key.apart else key.epochs) * count
    random.shuffle(entries[:together])
    random.shuffle(entries[together:])
    return memory


def _documents(entries: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.int32]]:
    for start in range(0, len(entries), _ROWS):
        yield entries["sequence"][start : start + _ROWS].astype(np.int32)


def _compact(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Turn the entries into the document index, in the same memory, and free the rest of it.

    The entries are overwritten: no view of them may be used afterwards.
    """
    size = len(memory) // _ENTRY.itemsize * 4
    documents = memory[:size].view(np.int32)
    start = 0
    for piece in _documents(memory.view(_ENTRY)):  # copies, so nothing is overwritten unread
        documents[start : start + len(piece)] = piece
        start += len(piece)
    del documents
    memory.resize(size, refcheck=False)
    return memory.view(np.int32)


def _sample_index(entries: npt.NDArray[np.void], key: IndexKey) -> ChunkedArray:
    dtype = np.dtype(np.int64 if key.wide else np.int32)
    return ChunkedArray("sample_index", dtype, (key.samples + 1, 2), _rows(entries, key))


def _rows(entries: npt.NDArray[np.void], key: IndexKey) -> Iterator[npt.NDArray[Any]]:
    part, lengths = key.data.part, key.data.lengths
    walk = _core.SampleWalk(
        entries, part, key.data.begin, key.data.seq_length, extra=bool(key.data.extra)
    )
    missing = key.samples + 1 - key.partial
    while missing:
        count = min(_ROWS, missing)
        yield walk.rows(count, wide=key.wide)
        missing -= count
        release(lengths)  # every look-up of a long sequence leaves megabytes around it mapped
    if key.partial:
        end = len(entries) - 1, int(lengths[entries[-1]["sequence"]]) - key.data.extra
        yield np.array([end], np.int64 if key.wide else np.int32)
    release(lengths)


def _shuffle_index(key: IndexKey, random: _core.RandomState) -> npt.NDArray[Any]:
    dtype = np.int64 if key.samples >= _UINT32_MAX - 1 else np.uint32
    index: npt.NDArray[Any] = np.arange(key.samples, dtype=dtype)
    random.shuffle(index[: key.apart or key.samples])
    if key.apart:
        random.shuffle(index[key.apart :])
    return index
