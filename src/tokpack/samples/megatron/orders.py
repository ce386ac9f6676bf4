"""The orders of the Megatron family, equal to what those programs build, array by array.

They are for continuing or reproducing runs. All counts are 64-bit integers: if a program's own
count overflows or is rounded, the correct value is used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset.format import release
from tokpack.errors import FormatError, UsageError, option
from tokpack.samples.cache import ChunkedArray
from tokpack.samples.orders import Order, flavour_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.samples.cache import CacheEntry, IndexCache
    from tokpack.samples.orders import Counts, Numbers, OrderInput, Rows


_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_ROWS = 1 << 19  # rows of the sample index made at a time
_ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u2")])  # as defined in the native core


@dataclass(frozen=True, slots=True)
class IndexKey:
    """Everything that determines the arrays, besides the sequence lengths of ``data``."""

    data: OrderInput
    epochs: int
    samples: int
    partial: bool  # whether the last sample is shorter than the others
    apart: int  # samples before a last epoch that is shuffled separately, or 0
    wide: bool  # the sample index is int64

    @property
    def settings(self) -> dict[str, Any]:
        """The key as plain values, with the fingerprint of the data, for a cache."""
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
    """The key for the sequences of ``data``, whose seed is 0 to 2^32 - 1.

    ``num_samples`` is the request of the run, None for one epoch. ``flavour`` is a name of
    FLAVOURS. ``drop_last=False`` keeps a last, shorter sample, as Megatron-core does for validation
    with ``drop_last_partial_validation_sequence`` off.

    UsageError for settings that leave no sample, or with which the program itself would stop.
    """
    rules = flavour_named(flavour)
    begin, end, seq_length, extra = data.begin, data.end, data.seq_length, data.extra
    if not 0 <= begin < end <= len(data.lengths):
        raise UsageError(
            f"sequences {begin} to {end} of {len(data.lengths)}: expected at least one"
        )
    if end > _INT32_MAX:
        raise UsageError(
            f"{end} sequences: these orders number sequences with 31 bits; use "
            f"{option('order', 'stateless')}"
        )
    if seq_length < 1:
        raise UsageError(f"a sequence length of {seq_length}: use 1 or more")
    if num_samples is not None and num_samples < 0:
        raise UsageError(f"{num_samples} samples: ask for 0 or more")
    if not 0 <= data.seed <= _UINT32_MAX:
        raise UsageError(f"seed {data.seed}: expected 0 to {_UINT32_MAX} in this order")
    tokens = data.tokens
    if tokens == 0:
        raise UsageError(f"sequences {begin} to {end} have no tokens, so there are no samples")
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
                f"{num_samples} samples of {seq_length} tokens need {wanted} from the last epoch, "
                f"but {rules.name} counts {in_epoch} there, and would stop; ask for one fewer"
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
    """The document_index, sample_index and shuffle_index, each made on demand.

    Takes six bytes of memory for each entry of the document index, and little for the others, which
    are made in parts.
    """
    random = _core.RandomState(key.data.seed)
    entries = _shuffled_entries(key, random).view(_ENTRY)
    yield ChunkedArray("document_index", np.dtype(np.int32), entries.shape, _documents(entries))
    yield _sample_index(entries, key)
    del entries
    yield ChunkedArray.of("shuffle_index", _shuffle_index(key, random))


def build_arrays(key: IndexKey) -> dict[str, npt.NDArray[Any]]:
    """The same arrays in memory; the document index reuses the memory of the entries."""
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
    for piece in _documents(memory.view(_ENTRY)):  # copies, so nothing is overwritten too early
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
        release(lengths)  # each look-up of a long sequence leaves megabytes around it mapped
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


_WITHOUT_NEGATIVE_OFFSETS = ("megatron", "megatron-0.10")  # these programs assert it


class MegatronOrder(Order):
    """The samples of some sequences in the order of ``flavour``, with its ``key``.

    - ``document_index`` int32 [epochs * (end - begin)]: sequences, shuffled
    - ``sample_index`` [samples + 1, 2], int32 or int64: position in it, offset in tokens
    - ``shuffle_index`` uint32 or int64 [samples]: the sample that comes k-th

    With a ``cache`` the arrays are mapped from a file in it, built if it does not exist. UsageError
    if the program itself would stop.
    """

    def __init__(
        self, key: IndexKey, *, flavour: str = "megatron", cache: IndexCache | None = None
    ) -> None:
        self.flavour = flavour_named(flavour).name
        self._data = key.data
        self._listed: _core.ListedSamples | None = None
        self.tokens = key.data.tokens
        self.cached: CacheEntry | None = None
        if cache is None:
            arrays = build_arrays(key)
        else:
            self.cached = cache.entry("megatron", key.settings, lambda: build_parts(key))
            arrays = self.cached.arrays
        self.document_index: npt.NDArray[np.int32] = arrays["document_index"]
        self.sample_index = arrays["sample_index"]
        self.shuffle_index = arrays["shuffle_index"]
        self.samples = len(self.shuffle_index)  # NeoX reports one fewer, but reads the last too
        if self.flavour in _WITHOUT_NEGATIVE_OFFSETS and int(self.sample_index[-1, 1]) < 0:
            raise UsageError(
                "the last sample ends after an empty sequence, where Megatron-core stops: "
                f"use {option('drop_last', True)}, another seed, or a split that ends elsewhere"
            )

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """Where the tokens of samples lie: all rows, and int64 [B], how many each sample has.

        The token counts of a sample's rows, which may be 0, add up to ``seq_length + 1``, or
        ``seq_length`` without the extra token; less in a kept last sample. IndexError for a missing
        sample, FormatError if the arrays, which may come from a file, are out of range.
        """
        numbers = np.asarray(samples, np.int64)
        if self._listed is None:
            self._listed = _core.ListedSamples(
                self._data.lengths,
                self.document_index,
                self.sample_index,
                self.shuffle_index,
                bool(self._data.extra),
            )
        try:
            return self._listed.locate_many(numbers)
        except ValueError as error:
            raise FormatError(f"the index of the order {self.flavour} is broken: {error}") from None


@dataclass(frozen=True, slots=True)
class BlendRequest:
    """What a blend asks of its datasets.

    ``weights`` float64 [n] are normalised; ``samples`` are requested of each dataset, as
    ``num_samples`` of its MegatronOrder. ``size`` is the blend's own number of samples, or None for
    all that the datasets have.
    """

    weights: npt.NDArray[np.float64]
    samples: list[int]
    size: int | None


def blend_request(
    weights: Sequence[float],
    num_samples: int,
    flavour: str = "megatron",
    *,
    surplus: float = 0.005,
) -> BlendRequest:
    """How ``flavour`` shares ``num_samples`` among datasets with these weights.

    ``surplus`` is Megatron-core's ``mid_level_dataset_surplus``: how much more than its share is
    requested of each dataset. UsageError for weights that are not finite and above zero.
    """
    rules = flavour_named(flavour)
    if num_samples < 0:
        raise UsageError(f"{num_samples} samples: ask for 0 or more")
    shares = normalise(weights)
    if rules.blend_sums_in_python:
        total = sum(weights)  # rounded differently by numpy's sum
        shares = normalise([weight / total for weight in weights])
    if rules.blend_size == "targets":
        targets = [int(np.ceil(num_samples * share)) for share in shares]
        counts = [int(np.ceil(target * (1 + surplus))) for target in targets]
        size: int | None = sum(targets)
    else:
        counts = [int(np.ceil(num_samples * share * (1 + surplus))) for share in shares]
        size = sum(counts) if rules.blend_size == "asked" else None
    return BlendRequest(shares, counts, size)


def megatron_blend(
    weights: Sequence[float] | npt.NDArray[np.float64],
    size: int | None,
    flavour: str = "megatron",
    *,
    fused: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The dataset of each sample of a blend [size], and the number of the sample in that dataset.

    ``weights`` are those of a BlendRequest, or the datasets' numbers of samples: weights if there
    is a ``size``, else limits that are used up exactly. The first array is int16 or uint8, as in
    ``flavour``. ``fused`` is the order of builds for ARM, whose compilers fuse a multiply and a
    subtraction, so that ties break differently.
    """
    rules = flavour_named(flavour)
    shares = normalise(weights)
    if len(shares) > rules.blend_datasets:
        raise UsageError(
            f"a blend of {len(shares)} datasets: {flavour} has no more than {rules.blend_datasets}"
        )
    limits: list[int] = []
    if size is None:
        limits = [int(weight) for weight in weights]
        if any(limit != weight for limit, weight in zip(limits, weights, strict=True)):
            raise UsageError("a blend without a size needs the datasets' numbers of samples")
        size = sum(limits)
        shares = np.array(limits, np.float64) / size
    if size < 0:
        raise UsageError(f"a blend of {size} samples: ask for 0 or more")
    datasets, samples = _core.megatron_blend(shares, size, limits=limits, fused=fused)
    return datasets.astype(rules.blend_dtype, copy=False), samples


def normalise(weights: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weights divided by their sum, as the programs do. UsageError for invalid ones."""
    values = np.array(weights, np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise UsageError("a blend needs one weight for each dataset, and at least one dataset")
    for place, value in enumerate(values):
        if not 0 < value < np.inf:
            raise UsageError(f"weight {place + 1} is {value}: it must be finite and above zero")
    shares: npt.NDArray[np.float64] = values / np.sum(values)  # the sum rounds as theirs does
    return shares
