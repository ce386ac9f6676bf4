"""What one purpose (training, validation, test) takes from each dataset, counted beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.samples.blend.schedule import Phase, blend_order, longest
from tokpack.samples.settings import OWN_ORDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend.portions import Portion
    from tokpack.samples.settings import OrderName, PackingName

_DECIMAL = Context(prec=34)

Changes = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Rules:
    """What the mixtures of a plan have in common."""

    by: str
    temperature: float
    seq_length: int
    extra: int
    order: OrderName
    packing: PackingName

    def shares(
        self, weights: Sequence[float] | None, portions: Sequence[Portion]
    ) -> tuple[float, ...]:
        """The share of the samples that each dataset gives, and so of their tokens."""
        if weights is None:
            values = [self._size(portion) for portion in portions]
        else:
            pairs = zip(weights, portions, strict=True)
            values = [weight * self._size_of_weight(portion) for weight, portion in pairs]
        if self.temperature != 1 and 0 < max(values) < math.inf:
            values = [value / max(values) for value in values]  # no power overflows
        raw = [root(value, self.temperature) for value in values]
        total = math.fsum(raw) if all(map(math.isfinite, raw)) else math.inf
        if not 0 < total < math.inf:
            raise UsageError(f"the weights add up to {total}: give numbers nearer to 1")
        return tuple(value / total for value in raw)

    def _size(self, portion: Portion) -> float:
        """What an epoch takes, in tokens; in samples where each has one document."""
        alone = self.packing == "document"
        return float(portion.pieces(self.seq_length) if alone else portion.tokens)

    def _size_of_weight(self, portion: Portion) -> float:
        if self.by == "documents":
            return self._size(portion) / portion.documents
        return self._size(portion) if self.by == "epochs" else 1.0

    def as_weights(
        self, weights: Sequence[float] | None, portions: Sequence[Portion]
    ) -> list[float] | None:
        """What BlendedDataset is given: the user's own numbers where they are shares already."""
        if self.temperature == 1 and weights is None:
            return None if self.order not in OWN_ORDERS else [self._size(p) for p in portions]
        if self.temperature == 1 and weights is not None and self.by == "tokens":
            return list(weights)
        return list(self.shares(weights, portions))

    def epoch_samples(self, portions: Sequence[Portion], epochs: float = 1.0) -> int:
        """Samples of all portions together in which every token comes at most so often.

        An estimate for "best_fit", which fills samples nearly to the last token.
        """
        if self.packing == "document":
            return int(epochs * sum(portion.pieces(self.seq_length) for portion in portions))
        tokens = int(epochs * sum(portion.tokens for portion in portions))
        if self.packing == "best_fit":
            return -(-tokens // (self.seq_length + self.extra))
        return max(tokens - self.extra, 0) // self.seq_length

    @property
    def least(self) -> int:
        """Tokens that make a sample; the other programs let one run on into the next epoch."""
        return (
            1
            if self.packing != "none" or self.order not in OWN_ORDERS
            else self.seq_length + self.extra
        )


def root(value: float, temperature: float) -> float:
    """``value ** (1 / temperature)``, the same on every machine: C libraries round it freely."""
    if temperature == 1 or value == 0 or not math.isfinite(value):
        return value
    return float(_DECIMAL.power(Decimal(value), _DECIMAL.divide(Decimal(1), Decimal(temperature))))


@dataclass(frozen=True)
class Mixture:
    """Datasets and the share of the samples that each gives.

    ``weights`` are as given, None for by size; ``changes`` are later ones, each with the first
    sample that they hold for. ``asked`` is the number of samples, None for what is there: for
    training one epoch over all together, else until the first dataset is used up. ``part`` is the
    number of the split's part that it has, None without a split; ``missing`` are the datasets of
    which the split leaves no sample.
    """

    name: str
    portions: tuple[Portion, ...]
    weights: tuple[float, ...] | None
    rules: Rules
    asked: int | None = None
    changes: Changes = ()
    part: int | None = None
    missing: tuple[Portion, ...] = ()

    @property
    def is_absent(self) -> bool:
        """Whether a split leaves nothing for a part, and nothing was asked of it."""
        return not self.portions and not self.asked

    @property
    def documents(self) -> int:
        """Documents in all portions."""
        return sum(portion.documents for portion in self.portions)

    @property
    def tokens(self) -> int:
        """Tokens in all portions."""
        return sum(portion.tokens for portion in self.portions)

    @property
    def segments(self) -> list[Phase]:
        """From which sample on which shares hold, in order."""
        if not self.portions:
            return [Phase(0, ())]
        rows = ((0, self.weights), *self.changes)
        return [Phase(first, self.rules.shares(given, self.portions)) for first, given in rows]

    @property
    def is_used_up(self) -> bool:
        """Whether it gives each sample of its datasets once and no more, as Megatron does."""
        weights = self.rules.as_weights(self.weights, self.portions)
        return weights is None and len(self.portions) > 1

    @property
    def samples(self) -> int:
        """Samples in it; an order of another program may round them up."""
        if not self.portions:
            return 0
        if self.asked is not None and not self.is_used_up:
            return self.asked
        lengths = [self.rules.epoch_samples([portion]) for portion in self.portions]
        if self.is_used_up:
            return sum(lengths) if self.asked is None else min(self.asked, sum(lengths))
        if self.name == "train" or self.rules.order not in OWN_ORDERS or len(self.portions) == 1:
            return self.rules.epoch_samples(self.portions)
        return longest(blend_order(self.segments), lengths)

    @property
    def member_samples(self) -> tuple[float, ...]:
        """Samples that each dataset gives; not whole, since the last ones depend on the order."""
        samples, segments = self.samples, self.segments
        edges = [*(min(segment.first, samples) for segment in segments), samples]
        rows = [
            [share * (end - first) for share in segment.shares]
            for segment, (first, end) in zip(segments, pairwise(edges), strict=True)
        ]
        return tuple(math.fsum(column) for column in zip(*rows, strict=True))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of all samples that each dataset gives."""
        if not self.changes:
            return self.segments[0].shares
        return tuple(count / self.samples for count in self.member_samples)

    @property
    def epochs(self) -> tuple[float, ...]:
        """How often each dataset is seen."""
        rules = self.rules
        return tuple(
            count / rules.epoch_samples([portion])
            if rules.packing == "document"
            else count * rules.seq_length / portion.tokens
            for count, portion in zip(self.member_samples, self.portions, strict=True)
        )

    @property
    def filled(self) -> float:
        """The share of the tokens of all samples that is not padding, nearly."""
        if self.rules.packing != "document":
            return 1.0
        rows = [
            share * portion.tokens / (self.rules.epoch_samples([portion]) * self.rules.seq_length)
            for share, portion in zip(self.shares, self.portions, strict=True)
        ]
        return min(math.fsum(rows), 1.0)

    def warnings(self, max_epochs: float) -> list[str]:
        """What the user should know before a GPU does."""
        found = []
        where = "" if self.name == "train" else f" in {self.name}"
        for portion, epochs, count in zip(
            self.portions, self.epochs, self.member_samples, strict=True
        ):
            if epochs > max_epochs:
                found.append(
                    f"{portion.prefix} is seen {epochs:.2f} times{where}, more than "
                    f"{max_epochs:g}: lower its weight, or raise --max-epochs"
                )
            if count < 1:
                found.append(
                    f"{portion.prefix} gives less than one of {self.samples:,} samples{where}"
                )
        return found
