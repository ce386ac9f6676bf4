"""What one purpose (training, validation, test) takes from each dataset, counted beforehand."""

from __future__ import annotations

import math
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokpack.errors import UsageError, option
from tokpack.samples.blend.order import Phase, blend_order, longest
from tokpack.samples.orders.pairs import pairs_in
from tokpack.samples.tracks import count_trained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.blend.spec import BlendSpec, Changes
    from tokpack.samples.settings import Settings
    from tokpack.samples.split_string import Range

_CHUNK = 1 << 20
_DECIMAL = Context(prec=34)


@dataclass(frozen=True)
class Portion:
    """The sequences ``begin`` to ``end`` of a dataset, those of one split, and their weight."""

    dataset: MMapIndexedDataset = field(repr=False)
    begin: int
    end: int
    documents: int
    tokens: int
    weight: float | None = None  # as it was asked for; None for by size
    labels: MMapIndexedDataset | None = None  # with a label for each token
    _pieces: dict[int, int] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        dataset: MMapIndexedDataset,
        sequences: Range | None,
        weight: float | None,
        labels: MMapIndexedDataset | None,
    ) -> Portion:
        """The ``sequences`` [begin, end) of a dataset, None for no sequence at all, counted."""
        begin, end = sequences or (0, 0)
        documents = 0
        if begin < end:
            # Not by numpy's searchsorted, which copies the whole of an index that is not aligned.
            numbers, entry = range(1, dataset.documents + 1), dataset.doc_idx.item
            first = bisect_right(numbers, begin, key=entry)
            documents = bisect_right(numbers, end - 1, key=entry) + 1 - first
        tokens = dataset.tokens_in(begin, end)
        return cls(dataset, begin, end, documents, tokens, weight, labels)

    @cached_property
    def trained(self) -> int:
        """Tokens that are trained, see ``count_trained``."""
        return count_trained(self.dataset, self.labels, range(self.begin, self.end))

    @property
    def prefix(self) -> str:
        """The name of the dataset."""
        return self.dataset.path_prefix

    def pieces(self, settings: Settings) -> int:
        """How many samples there are where each has one sequence, and long ones are cut."""
        if settings.packing_rules.group == 2:
            return 2 * len(pairs_in(self.begin, self.end))
        seq_length = settings.seq_length
        if seq_length not in self._pieces:
            sizes, total = self.dataset.sizes, 0
            for begin in range(self.begin, self.end, _CHUNK):
                part = sizes[begin : min(begin + _CHUNK, self.end)].astype(np.int64)
                total += int(np.sum(-(-np.maximum(part - 1, 0) // seq_length)))
            self._pieces[seq_length] = total
        return self._pieces[seq_length]


class Usage(NamedTuple):
    """What one portion of a mixture gives.

    ``share`` is that of all samples, and ``samples`` their number, which is not whole: which
    dataset gives the last ones depends on the order. ``epochs`` is how often the portion is seen.
    """

    portion: Portion
    share: float
    samples: float
    epochs: float


@dataclass(frozen=True)
class Mixture:
    """Portions and the share of the samples that each gives.

    ``changes`` are later weights, each with the first sample that they hold for. ``requested`` is
    the number of samples that was asked for; with None training has one epoch over all portions
    together, and validation and test end where the first is used up. ``part`` is the number of the
    part of the split, None without a split; ``missing`` are those without a sample.
    """

    name: str
    portions: tuple[Portion, ...]
    spec: BlendSpec
    requested: int | None = None
    changes: Changes = ()
    part: int | None = None
    missing: tuple[Portion, ...] = ()

    @property
    def is_absent(self) -> bool:
        """Whether there is no data for it and nobody asked for samples of it."""
        return not self.portions and not self.requested

    @property
    def documents(self) -> int:
        """Documents in all portions."""
        return sum(portion.documents for portion in self.portions)

    @property
    def tokens(self) -> int:
        """Tokens in all portions."""
        return sum(portion.tokens for portion in self.portions)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """As they were asked for; None for by size."""
        weights = [one.weight for one in self.portions if one.weight is not None]
        return tuple(weights) or None

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases of its schedule in order; without a schedule there is one."""
        if not self.portions:
            return [Phase(0, ())]
        rows = ((0, self.weights), *self.changes)
        return [Phase(first, self._shares(weights)) for first, weights in rows]

    def blend_weights(self, weights: Sequence[float] | None) -> list[float] | None:
        """The weights for BlendedDataset; None where each portion is to be used up once.

        Weights that are shares of tokens already are left as they were given: the programs of the
        Megatron family round their sum in their own way.
        """
        if self.spec.temperature == 1 and weights is None:
            endless = self.spec.rules.endless
            return [self._size(portion) for portion in self.portions] if endless else None
        if self.spec.temperature == 1 and weights is not None and self.spec.by == "tokens":
            return list(weights)
        return list(self._shares(weights))

    @property
    def is_exhaustive(self) -> bool:
        """Whether it ends when each sample of its portions was given once, as in Megatron."""
        return self.blend_weights(self.weights) is None and len(self.portions) > 1

    @cached_property
    def samples(self) -> int:
        """The number of samples; an order of another program may round it up."""
        if not self.portions:
            return 0
        if self.requested is not None and not self.is_exhaustive:
            return self.requested
        lengths = [self.epoch_samples(portion) for portion in self.portions]
        if self.is_exhaustive:
            return sum(lengths) if self.requested is None else min(self.requested, sum(lengths))
        if self.name == "train" or not self.spec.rules.endless or len(self.portions) == 1:
            return self.epoch_samples(*self.portions)
        return longest(blend_order(self.phases, self.spec.settings.packing_rules.group), lengths)

    def epoch_samples(self, *portions: Portion, epochs: float = 1.0) -> int:
        """Samples of portions together in which no token comes more than ``epochs`` times.

        An estimate for "best_fit", which fills samples nearly to the last token.
        """
        settings = self.spec.settings
        length, extra, packing = settings.seq_length, settings.extra, settings.packing_rules
        if packing.one_document:
            return int(epochs * sum(portion.pieces(settings) for portion in portions))
        tokens = int(epochs * sum(portion.tokens for portion in portions))
        if not packing.counted:
            return -(-tokens // (length + extra))
        return max(tokens - extra, 0) // length

    @cached_property
    def usage(self) -> list[Usage]:
        """What each portion gives, in order."""
        total, settings = self.samples, self.spec.settings
        edges = [*(min(phase.first, total) for phase in self.phases), total]
        rows = [
            [share * (end - first) for share in phase.shares]
            for phase, (first, end) in zip(self.phases, pairwise(edges), strict=True)
        ]
        usage = []
        for place, (portion, *column) in enumerate(zip(self.portions, *rows, strict=True)):
            samples = math.fsum(column)
            share = samples / total if self.changes else self.phases[0].shares[place]
            if settings.packing_rules.one_document:
                epochs = samples / self.epoch_samples(portion)
            else:
                epochs = samples * settings.seq_length / portion.tokens
            usage.append(Usage(portion, share, samples, epochs))
        return usage

    @property
    def filled(self) -> float:
        """The share of the tokens of all samples that is not padding, nearly."""
        settings = self.spec.settings
        if not settings.packing_rules.one_document:
            return 1.0
        rows = [
            one.share * one.portion.tokens / self.epoch_samples(one.portion) for one in self.usage
        ]
        return min(math.fsum(rows) / settings.seq_length, 1.0)

    @property
    def shortfalls(self) -> list[str]:
        """What the split leaves of each of ``missing``."""
        return [
            f"the split leaves {portion.tokens:,} tokens of {portion.prefix} for {self.name}, "
            "less than one sample: give it more"
            for portion in self.missing
        ]

    def _shares(self, weights: Sequence[float] | None) -> tuple[float, ...]:
        """The share of the samples that each portion gives, and so of their tokens."""
        if weights is None:
            values = [self._size(portion) for portion in self.portions]
        else:
            pairs = zip(weights, self.portions, strict=True)
            values = [weight * self._size_of_weight(portion) for weight, portion in pairs]
        if self.spec.temperature != 1 and 0 < max(values) < math.inf:
            values = [value / max(values) for value in values]  # so that no power overflows
        raw = [root(value, self.spec.temperature) for value in values]
        total = math.inf
        if all(map(math.isfinite, raw)):
            with suppress(OverflowError):
                total = math.fsum(raw)
        if not 0 < total < math.inf:
            raise UsageError(f"the weights add up to {total}: give numbers nearer to 1")
        return tuple(value / total for value in raw)

    def _size(self, portion: Portion) -> float:
        """The size of a portion, by which it counts: tokens, or samples of one document each."""
        settings = self.spec.settings
        alone = settings.packing_rules.one_document
        return float(portion.pieces(settings) if alone else portion.tokens)

    def _size_of_weight(self, portion: Portion) -> float:
        """What a weight of 1 means of a portion.

        A token, as many as a document or a trained token come with, or all of them.
        """
        if self.spec.by == "trained":
            return self._size(portion) / self._trained(portion)
        if self.spec.by == "documents":
            return self._size(portion) / portion.documents
        return self._size(portion) if self.spec.by == "epochs" else 1.0

    def _trained(self, portion: Portion) -> int:
        trained = portion.tokens if self.spec.loss == "all" else portion.trained
        if not trained:
            raise UsageError(
                f"{portion.prefix}: no token of it is trained in {self.name}, so it can have no "
                f"share of the trained tokens: leave it out, or give {option('by', 'tokens')}"
            )
        return trained


def root(value: float, temperature: float) -> float:
    """``value ** (1 / temperature)``, computed in decimals.

    C libraries round powers differently, and a blend must be the same on every machine.
    """
    if temperature == 1 or value == 0 or not math.isfinite(value):
        return value
    return float(_DECIMAL.power(Decimal(value), _DECIMAL.divide(Decimal(1), Decimal(temperature))))
