"""What one purpose (training, validation, test) takes from each dataset, counted beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import UsageError
from tokpack.samples.blend.schedule import Phase, blend_order, longest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend.portions import Portion
    from tokpack.samples.blend.spec import BlendSpec
    from tokpack.samples.settings import Settings

_DECIMAL = Context(prec=34)

Changes = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Rules:
    """What the mixtures of a plan have in common."""

    spec: BlendSpec
    settings: Settings

    def shares(
        self, weights: Sequence[float] | None, portions: Sequence[Portion]
    ) -> tuple[float, ...]:
        """The share of the samples that each dataset gives, and so of their tokens."""
        if weights is None:
            values = [self._size(portion) for portion in portions]
        else:
            pairs = zip(weights, portions, strict=True)
            values = [weight * self._size_of_weight(portion) for weight, portion in pairs]
        if self.spec.temperature != 1 and 0 < max(values) < math.inf:
            values = [value / max(values) for value in values]  # so that no power overflows
        raw = [root(value, self.spec.temperature) for value in values]
        total = math.fsum(raw) if all(map(math.isfinite, raw)) else math.inf
        if not 0 < total < math.inf:
            raise UsageError(f"the weights add up to {total}: give numbers nearer to 1")
        return tuple(value / total for value in raw)

    def _size(self, portion: Portion) -> float:
        """The size of a portion, by which it counts: tokens, or samples of one document each."""
        alone = self.settings.packing == "document"
        return float(portion.pieces(self.settings.seq_length) if alone else portion.tokens)

    def _size_of_weight(self, portion: Portion) -> float:
        """What a weight of 1 means of a portion: a token, a document's worth of them, or all."""
        if self.spec.by == "documents":
            return self._size(portion) / portion.documents
        return self._size(portion) if self.spec.by == "epochs" else 1.0

    def as_weights(
        self, weights: Sequence[float] | None, portions: Sequence[Portion]
    ) -> list[float] | None:
        """The weights for BlendedDataset; None where each dataset is to be used up once.

        Weights that are shares of tokens already are left as they were given: the programs of the
        Megatron family round their sum in their own way.
        """
        if self.spec.temperature == 1 and weights is None:
            return [self._size(p) for p in portions] if self.spec.rules.endless else None
        if self.spec.temperature == 1 and weights is not None and self.spec.by == "tokens":
            return list(weights)
        return list(self.shares(weights, portions))

    def epoch_samples(self, portions: Sequence[Portion], epochs: float = 1.0) -> int:
        """Samples of all portions together in which no token comes more than ``epochs`` times.

        An estimate for "best_fit", which fills samples nearly to the last token.
        """
        length, extra = self.settings.seq_length, self.settings.extra
        if self.settings.packing == "document":
            return int(epochs * sum(portion.pieces(length) for portion in portions))
        tokens = int(epochs * sum(portion.tokens for portion in portions))
        if self.settings.packing == "best_fit":
            return -(-tokens // (length + extra))
        return max(tokens - extra, 0) // length


def root(value: float, temperature: float) -> float:
    """``value ** (1 / temperature)``, computed in decimals.

    C libraries round powers differently, and a blend must be the same on every machine.
    """
    if temperature == 1 or value == 0 or not math.isfinite(value):
        return value
    return float(_DECIMAL.power(Decimal(value), _DECIMAL.divide(Decimal(1), Decimal(temperature))))


class Member(NamedTuple):
    """What one dataset of a mixture gives.

    ``weight`` is as it was asked for, None for by size. ``share`` is that of all samples, and
    ``samples`` their number, which is not whole: which dataset gives the last ones depends on the
    order. ``epochs`` is how often the dataset is seen.
    """

    portion: Portion
    weight: float | None
    share: float
    samples: float
    epochs: float


@dataclass(frozen=True)
class Mixture:
    """Datasets and the share of the samples that each gives.

    ``weights`` are as given, None for by size; ``changes`` are later ones, each with the first
    sample that they hold for. ``asked`` is the number of samples that was asked for; with None
    training has one epoch over all datasets together, and validation and test end where the first
    dataset is used up. ``part`` is the number of the part of the split, None without a split;
    ``missing`` are the datasets of which the split leaves no sample.
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
        """Whether there is no data for it and nobody asked for samples of it."""
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
    def phases(self) -> list[Phase]:
        """The phases of its schedule in order; without a schedule there is one."""
        if not self.portions:
            return [Phase(0, ())]
        rows = ((0, self.weights), *self.changes)
        return [Phase(first, self.rules.shares(given, self.portions)) for first, given in rows]

    @property
    def blend_weights(self) -> list[float] | None:
        """The weights for BlendedDataset, see Rules.as_weights."""
        return self.rules.as_weights(self.weights, self.portions)

    @property
    def is_used_up(self) -> bool:
        """Whether it ends when each sample of its datasets was given once, as in Megatron."""
        return self.blend_weights is None and len(self.portions) > 1

    @property
    def samples(self) -> int:
        """The number of samples; an order of another program may round it up."""
        if not self.portions:
            return 0
        if self.asked is not None and not self.is_used_up:
            return self.asked
        lengths = [self.rules.epoch_samples([portion]) for portion in self.portions]
        if self.is_used_up:
            return sum(lengths) if self.asked is None else min(self.asked, sum(lengths))
        if self.name == "train" or not self.rules.spec.rules.endless or len(self.portions) == 1:
            return self.rules.epoch_samples(self.portions)
        return longest(blend_order(self.phases), lengths)

    @property
    def member_samples(self) -> tuple[float, ...]:
        """The samples that each dataset gives, see Member."""
        samples, phases = self.samples, self.phases
        edges = [*(min(phase.first, samples) for phase in phases), samples]
        rows = [
            [share * (end - first) for share in phase.shares]
            for phase, (first, end) in zip(phases, pairwise(edges), strict=True)
        ]
        return tuple(math.fsum(column) for column in zip(*rows, strict=True))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of all samples that each dataset gives."""
        if not self.changes:
            return self.phases[0].shares
        return tuple(count / self.samples for count in self.member_samples)

    @property
    def epochs(self) -> tuple[float, ...]:
        """How often each dataset is seen."""
        rules = self.rules
        return tuple(
            count / rules.epoch_samples([portion])
            if rules.settings.packing == "document"
            else count * rules.settings.seq_length / portion.tokens
            for count, portion in zip(self.member_samples, self.portions, strict=True)
        )

    @property
    def members(self) -> list[Member]:
        """What each dataset gives, in the order of ``portions``."""
        weights = self.weights or (None,) * len(self.portions)
        numbers = weights, self.shares, self.member_samples, self.epochs
        return list(map(Member, self.portions, *numbers))

    @property
    def filled(self) -> float:
        """The share of the tokens of all samples that is not padding, nearly."""
        if self.rules.settings.packing != "document":
            return 1.0
        length = self.rules.spec.seq_length
        rows = [
            share * portion.tokens / (self.rules.epoch_samples([portion]) * length)
            for share, portion in zip(self.shares, self.portions, strict=True)
        ]
        return min(math.fsum(rows), 1.0)

    @property
    def shortfalls(self) -> list[str]:
        """What the split leaves of each of ``missing``."""
        return [
            f"the split leaves {portion.tokens:,} tokens of {portion.prefix} for {self.name}, "
            "less than one sample: give it more"
            for portion in self.missing
        ]

    def warnings(self, max_epochs: float) -> list[str]:
        """What is probably not meant, as sentences: datasets seen too often, or hardly at all."""
        found = []
        where = "" if self.name == "train" else f" in {self.name}"
        for one in self.members:
            if one.epochs > max_epochs:
                found.append(
                    f"{one.portion.prefix} is seen {one.epochs:.2f} times{where}, more than "
                    f"{max_epochs:g}: lower its weight, or raise --max-epochs"
                )
            if one.samples < 1:
                found.append(
                    f"{one.portion.prefix} gives less than one of {self.samples:,} samples{where}"
                )
        return found
