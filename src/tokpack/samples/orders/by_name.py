"""Orders by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.errors import UsageError, option
from tokpack.samples.cache import IndexCache
from tokpack.samples.megatron import MegatronOrder, NeoxPackedOrder, megatron_index_key
from tokpack.samples.orders.packing import PackedOrder, PairOrder
from tokpack.samples.orders.rows import OrderInput
from tokpack.samples.orders.stateless import BLOCK_TOKENS, BlockOrder, StatelessOrder

if TYPE_CHECKING:
    from tokpack.dataset import MMapIndexedDataset
    from tokpack.samples.orders.rows import Order
    from tokpack.samples.settings import Range, Settings
    from tokpack.samples.tracks import Values


def make_order(
    settings: Settings,
    dataset: MMapIndexedDataset,
    part: Range,
    labels: Values | None = None,
) -> Order:
    """The order that ``settings`` name, for the sequences ``part`` of a dataset.

    ``labels`` are those of its tokens, which NeoX's packing reads. UsageError if the sequences do
    not fill one sample.
    """
    begin, end = part
    cache = None if settings.cache is None else IndexCache(settings.cache)
    tokens = dataset.tokens_in(begin, end)
    settings.check_enough(tokens)
    length, extra = settings.seq_length, settings.extra
    data = OrderInput(
        dataset.sizes,
        begin,
        end,
        length,
        extra,
        settings.seed,
        dataset.fingerprint,
        tokens,
        settings.pad_to_multiple_of,
    )
    if settings.packing_rules.group == 2:
        _check_pairs(dataset)
        return PairOrder(data)
    if settings.packing_rules.order == "stateless":
        return PackedOrder(data, settings.packing, cache)
    if settings.packing_rules.order == "neox":
        if begin > 0:
            raise UsageError(
                f"with {option('packing', settings.packing)} NeoX counts sequences from the "
                f"beginning of the file, so instead of {begin} to {end} it would read training "
                "data: give this part a dataset of its own"
            )
        assert settings.samples is not None  # as Settings have checked
        return NeoxPackedOrder(data, settings.samples, packing=settings.packing, labels=labels)
    if settings.order == "stateless":
        return StatelessOrder(data)
    if settings.order == "stateless-blocks":
        return BlockOrder(data, BLOCK_TOKENS)
    samples = settings.samples
    if settings.epochs is not None:
        samples = (settings.epochs * tokens - extra) // length
    key = megatron_index_key(data, samples, flavour=settings.order, drop_last=settings.drop_last)
    return MegatronOrder(key, flavour=settings.order, cache=cache)


def _check_pairs(dataset: MMapIndexedDataset) -> None:
    dataset.check_pairs(option("packing", "pairs"))
    sequences, documents = len(dataset), dataset.documents
    if sequences != documents or documents % 2:
        raise UsageError(
            f"{option('packing', 'pairs')} needs documents 2i (chosen) and 2i + 1 (rejected) of "
            f"one sequence each, as `tokpack encode --chat --pairs` makes them: there are "
            f"{documents} documents in {sequences} sequences"
        )
