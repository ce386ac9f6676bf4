"""The arrays of a Megatron order: what decides them, and how they are made with little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.errors import UsageError, option
from tokpack.indexed.lengths import release
from tokpack.samples.cache.format import ChunkedArray
from tokpack.samples.megatron.flavours import flavour_named

if TYPE_CHECKING:
    from collections.abc import Iterator

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_ROWS = 1 << 19  # of the sample index at a time
_ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u2")])  # as the native core knows it


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the arrays, besides the lengths of the sequences."""

    begin: int
    end: int
    seq_length: int
    extra: int
    seed: int
    epochs: int
    samples: int
    partial: bool  # the last sample is shorter than the others
    apart: int  # samples before a last epoch that is shuffled by itself; 0 without one
    wide: bool  # the sample index is int64


def megatron_recipe(
    lengths: npt.NDArray[np.int32],
    begin: int,
    end: int,
    seq_length: int,
    num_samples: int | None,
    *,
    seed: int,
    flavour: str = "megatron",
    add_extra_token: bool = True,
    drop_last: bool = True,
    tokens: int | None = None,
) -> Recipe:
    """What is made of sequences [begin, end) of a dataset with ``lengths`` int32 [n].

    ``num_samples`` is what the run asks for, None one epoch. ``seed`` is 0 to 2^32 - 1. ``flavour``
    is a name of FLAVOURS. ``add_extra_token`` is Megatron-core's ``add_extra_token_to_sequence``;
    ``drop_last=False`` keeps a last, shorter sample, as Megatron-core does for validation with
    ``drop_last_partial_validation_sequence`` off. ``tokens`` is the sum of their lengths, if known.

    UsageError for settings that leave no sample, or with which the program itself would stop.
    """
    rules = flavour_named(flavour)
    if not 0 <= begin < end <= len(lengths):
        raise UsageError(f"sequences {begin} to {end} of {len(lengths)}: there is none in it")
    if end > _INT32_MAX:
        raise UsageError(
            f"{end} sequences: these orders number them with 31 bits; use "
            f"{option('order', 'stateless')}"
        )
    if seq_length < 1:
        raise UsageError(f"a sequence length of {seq_length}: use 1 or more")
    if num_samples is not None and num_samples < 0:
        raise UsageError(f"{num_samples} samples: ask for 0 or more")
    if not 0 <= seed <= _UINT32_MAX:
        raise UsageError(f"seed {seed}: these orders know 0 to {_UINT32_MAX}")
    if tokens is None:
        tokens = int(lengths[begin:end].sum(dtype=np.int64))
    if tokens == 0:
        raise UsageError(f"sequences {begin} to {end} have no tokens: there is no sample in it")
    extra = int(add_extra_token)
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
    return Recipe(begin, end, seq_length, extra, seed, epochs, samples, partial, apart, wide)


def build_parts(lengths: npt.NDArray[np.int32], recipe: Recipe) -> Iterator[ChunkedArray]:
    """document_index, sample_index and shuffle_index, each made when it is asked for.

    ``lengths`` int32 are those of all sequences of the dataset. Six bytes of memory for each entry
    of the document index, and a part of the rest at a time.
    """
    random = _core.RandomState(recipe.seed)
    entries = _shuffled_entries(lengths, recipe, random).view(_ENTRY)
    yield ChunkedArray("document_index", np.dtype(np.int32), entries.shape, _documents(entries))
    yield _sample_index(entries, lengths, recipe)
    del entries
    yield ChunkedArray.of("shuffle_index", _shuffle_index(recipe, random))


def build_arrays(lengths: npt.NDArray[np.int32], recipe: Recipe) -> dict[str, npt.NDArray[Any]]:
    """The same arrays, in memory; the document index stays where the entries were."""
    random = _core.RandomState(recipe.seed)
    memory = _shuffled_entries(lengths, recipe, random)
    sample_index = _sample_index(memory.view(_ENTRY), lengths, recipe).array()
    return {
        "document_index": _compact(memory),
        "sample_index": sample_index,
        "shuffle_index": _shuffle_index(recipe, random),
    }


def _shuffled_entries(
    lengths: npt.NDArray[np.int32], recipe: Recipe, random: _core.RandomState
) -> npt.NDArray[np.uint8]:
    """The sequences of all epochs with their lengths, in the order of the document index."""
    count = recipe.end - recipe.begin
    memory = np.empty(recipe.epochs * count * _ENTRY.itemsize, np.uint8)
    entries = memory.view(_ENTRY)
    part = lengths[recipe.begin : recipe.end]
    for start in range(0, count, _ROWS):
        some = slice(start, min(start + _ROWS, count))
        _core.number_sequences(part[some], recipe.begin + start, entries[some])
        release(lengths)
    memory.reshape(recipe.epochs, -1)[1:] = memory[: count * _ENTRY.itemsize]
    together = (recipe.epochs - 1 if recipe.apart else recipe.epochs) * count
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


def _sample_index(
    entries: npt.NDArray[np.void], lengths: npt.NDArray[np.int32], recipe: Recipe
) -> ChunkedArray:
    dtype = np.dtype(np.int64 if recipe.wide else np.int32)
    rows = _rows(entries, lengths, recipe)
    return ChunkedArray("sample_index", dtype, (recipe.samples + 1, 2), rows)


def _rows(
    entries: npt.NDArray[np.void], lengths: npt.NDArray[np.int32], recipe: Recipe
) -> Iterator[npt.NDArray[Any]]:
    part = lengths[recipe.begin : recipe.end]
    walk = _core.SampleWalk(
        entries, part, recipe.begin, recipe.seq_length, extra=bool(recipe.extra)
    )
    missing = recipe.samples + 1 - recipe.partial
    while missing:
        count = min(_ROWS, missing)
        yield walk.rows(count, wide=recipe.wide)
        missing -= count
        release(lengths)  # every look-up of a long sequence leaves megabytes around it mapped
    if recipe.partial:
        end = len(entries) - 1, int(lengths[entries[-1]["sequence"]]) - recipe.extra
        yield np.array([end], np.int64 if recipe.wide else np.int32)
    release(lengths)


def _shuffle_index(recipe: Recipe, random: _core.RandomState) -> npt.NDArray[Any]:
    dtype = np.int64 if recipe.samples >= _UINT32_MAX - 1 else np.uint32
    index: npt.NDArray[Any] = np.arange(recipe.samples, dtype=dtype)
    random.shuffle(index[: recipe.apart or recipe.samples])
    if recipe.apart:
        random.shuffle(index[recipe.apart :])
    return index
