"""The plan of a blend: what each dataset gives, how often it is seen, and warnings."""

from __future__ import annotations

import math
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.display import drawn
from tokpack.errors import UsageError, option, worded
from tokpack.option import MOST
from tokpack.samples.blend.blended import Phase, blend_order, longest
from tokpack.samples.blend.datasets import (
    framed_apart,
    marks,
    open_datasets,
    pairs_alone,
    unchecked,
)
from tokpack.samples.blend.spec import BlendSpec, Entry, check_spec, plain_option, takes_settings
from tokpack.samples.orders import pairs_in
from tokpack.samples.settings import PARTS, wanted_parts
from tokpack.samples.tracks import count_trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.keywords import BlendOptions
    from tokpack.samples.blend.spec import Changes
    from tokpack.samples.settings import Range, Settings

    Opened = Mapping[str, MMapIndexedDataset]  # by their names in a BlendSpec


_CHUNK = 1 << 20
_DECIMAL = Context(prec=34)


@dataclass(frozen=True)
class Portion:
    """The sequences [begin, end) of a dataset in one part of the split, and their weight."""

    dataset: MMapIndexedDataset = field(repr=False)
    begin: int
    end: int
    documents: int
    tokens: int
    weight: float | None = None  # as requested; None: by size
    labels: MMapIndexedDataset | None = None  # a dataset with a label for each token
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
            # Not numpy's searchsorted, which would copy the whole index if it is not aligned.
            numbers, entry = range(1, dataset.documents + 1), dataset.doc_idx.item
            first = bisect_right(numbers, begin, key=entry)
            documents = bisect_right(numbers, end - 1, key=entry) + 1 - first
        tokens = dataset.tokens_in(begin, end)
        return cls(dataset, begin, end, documents, tokens, weight, labels)

    @cached_property
    def trained(self) -> int:
        """Trained tokens, see ``count_trained``."""
        return count_trained(self.dataset, self.labels, range(self.begin, self.end))

    @property
    def prefix(self) -> str:
        """The name of the dataset."""
        return self.dataset.path_prefix

    def pieces(self, settings: Settings) -> int:
        """The number of samples if each has one sequence, or a piece of a long one."""
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
    """The use of one portion in a mixture.

    ``share`` is its share of all samples, and ``samples`` their number, not an integer, because the
    order decides which dataset gives the last ones. ``epochs`` is how often the portion is seen.
    """

    portion: Portion
    share: float
    samples: float
    epochs: float


@dataclass(frozen=True)
class Mixture:
    """Portions, and the share of the samples that each gives.

    ``changes`` are later weights, each with its first sample. ``requested`` is the requested number
    of samples; with None training has one epoch over all portions together, and validation and test
    end when the first portion is used up. ``part`` is the number of the split's part, None without
    a split; ``missing`` are datasets without a sample.
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
        """Whether there is no data for it and no samples were requested."""
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
        """The weights as requested; None: by size."""
        weights = [one.weight for one in self.portions if one.weight is not None]
        return tuple(weights) or None

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases of its schedule in order; one without a schedule."""
        if not self.portions:
            return [Phase(0, ())]
        rows = ((0, self.weights), *self.changes)
        return [Phase(first, self._shares(weights)) for first, weights in rows]

    def blend_weights(self, weights: Sequence[float] | None) -> list[float] | None:
        """The weights for BlendedDataset; None if each portion is to be used up once.

        Weights that mean shares of tokens stay as given, because the programs of the Megatron
        family round their sum in their own way.
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
        """The number of samples in ``epochs`` epochs of all portions.

        For "best_fit" an estimate, which takes samples as full.
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
        """The use of each portion, in order."""
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
        """The approximate share of tokens that are not padding."""
        settings = self.spec.settings
        if not settings.packing_rules.one_document:
            return 1.0
        rows = [
            one.share * one.portion.tokens / self.epoch_samples(one.portion) for one in self.usage
        ]
        return min(math.fsum(rows) / settings.seq_length, 1.0)

    @property
    def shortfalls(self) -> list[str]:
        """What the split leaves of each of ``missing``, in words."""
        return [
            f"the split leaves {portion.tokens:,} tokens of {portion.prefix} for {self.name}, "
            "less than one sample: give it more"
            for portion in self.missing
        ]

    def _shares(self, weights: Sequence[float] | None) -> tuple[float, ...]:
        """Each portion's share of the samples, and so of their tokens."""
        if weights is None:
            values = [self._size(portion) for portion in self.portions]
        else:
            pairs = zip(weights, self.portions, strict=True)
            values = [weight * self._size_of_weight(portion) for weight, portion in pairs]
        if self.spec.temperature != 1 and 0 < max(values) < math.inf:
            values = [value / max(values) for value in values]  # else a power might overflow
        raw = [root(value, self.spec.temperature) for value in values]
        total = math.inf
        if all(map(math.isfinite, raw)):
            with suppress(OverflowError):
                total = math.fsum(raw)
        if not 0 < total < math.inf:
            raise UsageError(f"the weights add up to {total}: give numbers nearer to 1")
        return tuple(value / total for value in raw)

    def _size(self, portion: Portion) -> float:
        """The size by which a portion counts: tokens, or samples of one document each."""
        settings = self.spec.settings
        alone = settings.packing_rules.one_document
        return float(portion.pieces(settings) if alone else portion.tokens)

    def _size_of_weight(self, portion: Portion) -> float:
        """How many tokens a weight of 1 stands for.

        1, the tokens of an average document, the tokens per trained token, or all tokens.
        """
        if self.spec.by == "trained":
            trained = portion.tokens if self.spec.loss == "all" else portion.trained
            if not trained:
                raise UsageError(
                    f"{portion.prefix}: has no trained tokens in {self.name}, so it cannot have a "
                    f"share of them: leave it out, or give {option('by', 'tokens')}"
                )
            return self._size(portion) / trained
        if self.spec.by == "documents":
            return self._size(portion) / portion.documents
        return self._size(portion) if self.spec.by == "epochs" else 1.0


def root(value: float, temperature: float) -> float:
    """``value ** (1 / temperature)``, computed in decimals.

    C libraries round powers differently, but a blend must be the same on every machine.
    """
    if temperature == 1 or value == 0 or not math.isfinite(value):
        return value
    return float(_DECIMAL.power(Decimal(value), _DECIMAL.divide(Decimal(1), Decimal(temperature))))


@dataclass(frozen=True)
class BlendPlan:
    """A blend whose datasets were opened: its request, and the resulting mixtures.

    ``opened`` has the datasets by their names in ``spec``.
    """

    spec: BlendSpec
    train: Mixture
    valid: Mapping[str, Mixture]
    test: Mixture | None
    opened: Opened = field(repr=False)

    _repr_html_ = drawn

    @property
    def mixtures(self) -> list[Mixture]:
        """All of them, training first."""
        return [self.train, *self.valid.values(), *([self.test] if self.test else [])]

    @property
    def datasets(self) -> list[MMapIndexedDataset]:
        """All datasets that are read, each once, without those of labels."""
        opened = [self.opened[e.prefix] for _, entries in self.spec.groups() for e in entries]
        return list({dataset.path_prefix: dataset for dataset in opened}.values())

    @property
    def documents(self) -> dict[str, int]:
        """The documents of each part of the split, whether requested or not, and of separate
        sets.
        """
        rows = [_portions(entry, self.opened, self.spec) for entry in self.spec.datasets]
        split = {
            part: sum(row[number].documents for row in rows)
            for number, part in enumerate(PARTS)
            if self.spec.split is not None
        }
        return split | {one.name: sum(p.documents for p in one.portions) for one in self.mixtures}

    def warnings(self, max_epochs: float, flags: Mapping[str, str] | None = None) -> list[str]:
        """Sentences for the user about things probably not intended, or not checked.

        Options in them have these ``flags``, or else their names in Python.
        """
        warnings: list[str] = []
        for mixture in self.mixtures:
            warnings += _seldom_or_often(mixture, max_epochs)
            warnings += _twice(mixture)
            warnings += [] if self.spec.allow_empty else _shortfall_warnings(mixture)
            if mixture is not self.train:
                warnings += _overlap_warnings(mixture, self.train)
        if self.spec.settings.packing_rules.group == 1:
            warnings += pairs_alone(self.datasets)
        warnings += unchecked(self.datasets) + framed_apart(self.datasets)
        return [worded(one, flags) for one in warnings]


def _seldom_or_often(mixture: Mixture, max_epochs: float) -> Iterator[str]:
    where = "" if mixture.name == "train" else f" in {mixture.name}"
    for portion, _, samples, epochs in mixture.usage:
        if epochs > max_epochs:
            yield (
                f"{portion.prefix} is seen {epochs:.2f} times{where}, more than {max_epochs:g}: "
                f"lower its weight, or raise {option('max_epochs')}"
            )
        if samples < 1:
            yield f"{portion.prefix} gives less than one of {mixture.samples:,} samples{where}"


def _shortfall_warnings(mixture: Mixture) -> list[str]:
    if mixture.missing and mixture.is_absent:
        return [f"the split leaves less than one sample of any dataset for {mixture.name}: none"]
    return [
        f"{shortfall}, or leave the dataset out there with {option('allow_empty', True)}, else it "
        "cannot be opened"
        for shortfall in mixture.shortfalls
    ]


def _twice(mixture: Mixture) -> Iterator[str]:
    names = [portion.prefix for portion in mixture.portions]
    for name in dict.fromkeys(names):
        if (times := names.count(name)) > 1:
            yield f"{name} comes {times} times in {mixture.name}, each time with the same samples"
    seen: dict[int, str] = {}
    for portion in mixture.portions:
        first = seen.setdefault(portion.dataset.fingerprint, portion.prefix)
        if first != portion.prefix:
            yield f"{first} and {portion.prefix} hold the same tokens"


def _overlap_warnings(mixture: Mixture, train: Mixture) -> list[str]:
    return [
        f"{portion.prefix} is in {mixture.name}, and its documents are trained on too: measure on "
        "others"
        for portion in mixture.portions
        if any(
            one.dataset.fingerprint == portion.dataset.fingerprint
            and max(one.begin, portion.begin) < min(one.end, portion.end)
            for one in train.portions
        )
    ]


def plan_blend(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    **settings: Unpack[BlendOptions],
) -> BlendPlan:
    """Plan a blend of the datasets ``names``; without ``weights`` each counts by its size.

    The length is ``samples``, or ``tokens``, or ``epochs`` over all datasets together; one epoch by
    default. InputError for a dataset that is missing, empty or not what its manifest says,
    UsageError for weights that are not positive finite numbers, one for each dataset, for datasets
    of different tokenizers, and for a length of less than one sample.
    """
    if weights is not None and len(weights) != len(names):
        raise UsageError(f"{len(weights)} weights for {len(names)} datasets")
    numbers = [None] * len(names) if weights is None else map(float, weights)
    datasets = tuple(Entry(name, weight) for name, weight in zip(names, numbers, strict=True))
    return plan_of(BlendSpec(datasets=datasets).changed(**settings))


takes_settings(plan_blend)


def plan_of(spec: BlendSpec) -> BlendPlan:
    """Open the datasets of a blend and count what each gives. Raises as ``plan_blend``."""
    check_spec(spec)
    opened = open_datasets(spec)
    parts = _parts_of_split(spec, opened)
    counts = {"test": spec.test_samples}
    for name, entries in spec.groups():
        if name != "train":  # a separate set
            portions = [_portions(entry, opened)[0] for entry in entries]
            parts[name] = _mixture(name, portions, spec, counts.get(name, spec.valid_samples))
    train, test = parts.pop("train"), parts.pop("test", None)
    valid = {} if spec.valid_samples == 0 else parts
    plan = BlendPlan(spec, train, valid, None if spec.test_samples == 0 else test, opened)
    for mixture in plan.mixtures:
        _check_mixture(mixture)
    return plan


def _parts_of_split(spec: BlendSpec, opened: Opened) -> dict[str, Mixture]:
    """The mixtures of ``datasets`` for training, validation and test."""
    wanted = [True, False, False] if spec.split is None else wanted_parts(spec.split)
    if not wanted[0]:
        raise UsageError(f"split {spec.split!r} leaves nothing for training")
    rows = [_portions(entry, opened, spec) for entry in spec.datasets]
    of_train = [row[0] for row in rows]
    train = _mixture("train", of_train, spec, part=None if spec.split is None else 0)
    requested = spec.samples
    if spec.tokens is not None:
        requested = int(spec.tokens) // spec.seq_length
    elif spec.epochs is not None:
        requested = train.epoch_samples(*train.portions, epochs=spec.epochs)
    kept = [number for number, portion in enumerate(of_train) if portion in train.portions]
    changes = tuple((first, tuple(row[i] for i in kept)) for first, row in spec.schedule)
    parts = {"train": replace(train, requested=requested, changes=changes)}
    for part, requested in ((1, spec.valid_samples), (2, spec.test_samples)):
        if wanted[part]:
            portions = [row[part] for row in rows if row[part].weight != 0]
            parts[PARTS[part]] = _mixture(PARTS[part], portions, spec, requested, part)
    return parts


def _portions(entry: Entry, opened: Opened, spec: BlendSpec | None = None) -> list[Portion]:
    """The portions of a dataset for each part of the split; without a spec all of it."""
    dataset = opened[entry.prefix]
    labels = None if entry.labels is None else opened[entry.labels]
    ranges = [(0, len(dataset))] if spec is None else spec.settings.ranges(dataset)
    return [Portion.of(dataset, sequences, entry.weight, labels) for sequences in ranges]


def _mixture(
    name: str,
    portions: Sequence[Portion],
    spec: BlendSpec,
    requested: int | None = None,
    part: int | None = None,
) -> Mixture:
    """A mixture of the portions that have a sample; without a split all must have one."""
    is_enough = spec.settings.is_enough
    missing = tuple(portion for portion in portions if not is_enough(portion.tokens))
    if missing and part is None:
        try:
            spec.settings.check_enough(missing[0].tokens)
        except UsageError as error:
            raise UsageError(f"{missing[0].prefix}: {error.args[0]}") from None
    kept = tuple(portion for portion in portions if is_enough(portion.tokens))
    return Mixture(name, kept, spec, requested=requested, part=part, missing=missing)


def _check_mixture(mixture: Mixture) -> None:
    """Raise UsageError for a mixture of no samples, or if its order needs their number."""
    if not mixture.portions:
        if mixture.name != "train":
            return  # which is only a warning
        raise UsageError(f"{mixture.shortfalls[0]}, or shorten the sequence length")
    mixture.phases  # noqa: B018  raises UsageError where the weights have no finite sum
    spec, settings = mixture.spec, mixture.spec.settings
    count = {"train": "samples", "test": "test_samples"}.get(mixture.name, "valid_samples")
    counted = mixture.requested is not None and not mixture.is_exhaustive
    if settings.packing_rules.needs_samples and not counted:
        weights_too = " and the weights of its datasets" if mixture.is_exhaustive else ""
        raise UsageError(
            f"{option('packing', settings.packing)} needs the number of samples of {mixture.name}: "
            f"give {option(count)}=N{weights_too}"
        )
    if mixture.samples > MOST:
        raise UsageError(f"{mixture.name} is {mixture.samples:.3g} samples, expected 2^62 or fewer")
    if mixture.samples < 1:
        raise UsageError(
            f"{mixture.name} is less than one sample of {spec.seq_length:,} tokens (its datasets "
            f"have {mixture.tokens:,}): give it more data, tokens or epochs, shorten the "
            "sequence length, or give its number of samples with "
            f"{option(count)}=N{'' if mixture.name == 'train' else ', 0 for none'}"
        )
    counted = mixture.name == "train" or mixture.requested is not None
    if not spec.rules.endless and not counted and mixture.blend_weights(mixture.weights):
        raise UsageError(
            f"the order {spec.order} needs the number of samples of a blend with weights: "
            f"give {count}=N, 0 for none"
        )


def as_json(
    plan: BlendPlan, max_epochs: float, flags: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The plan for machines: the training mixture at the top, the others below it.

    Options in its warnings have these ``flags``, or else their names in Python.
    """
    spec = plan.spec
    names = ("order", "seed", "seq_length", "by", "temperature", "split", "split_by")
    return {
        **{name: getattr(spec, name) for name in names},
        "options": {name: plain_option(value) for name, value in spec.options.items()},
        **_mixture_json(plan.train),
        "schedule": [{"from": phase.first, "shares": phase.shares} for phase in plan.train.phases],
        "valid": {name: _mixture_json(mixture) for name, mixture in plan.valid.items()},
        "test": None if plan.test is None else _mixture_json(plan.test),
        "warnings": plan.warnings(max_epochs, flags),
    }


def _mixture_json(mixture: Mixture) -> dict[str, Any]:
    return {
        "samples": mixture.samples,
        "tokens": mixture.samples * mixture.spec.seq_length,
        "filled": mixture.filled,
        "datasets": [
            {
                "prefix": portion.prefix,
                "documents": portion.documents,
                "tokens": portion.tokens,
                **({"trained": portion.trained} if mixture.spec.by == "trained" else {}),
                "weight": portion.weight,
                "share": share,
                "samples": samples,
                "epochs": epochs,
                "tokenizer": portion.dataset.tokenizer and portion.dataset.tokenizer.get("name"),
                **marks(portion.dataset),
                "labels": None if portion.labels is None else portion.labels.path_prefix,
            }
            for portion, share, samples, epochs in mixture.usage
        ],
        "missing": [portion.prefix for portion in mixture.missing],
    }


def cap_epochs(plan: BlendPlan, most: float) -> BlendPlan:
    """The plan with weights by which training sees no dataset more than ``most`` times.

    The other datasets make up for it, in proportion to their shares. The new weights are shares of
    tokens for this number of samples; a longer run keeps them, and needs a new plan for another
    cap. UsageError
    if all datasets together have too few tokens, and for a plan with a schedule.
    """
    train, spec = plan.train, plan.spec
    if not most > 0:
        raise UsageError(f"{option('cap_epochs')} is {most}, expected a number above 0")
    if train.changes:
        raise UsageError(
            f"{option('cap_epochs')} needs one set of weights, but the blend has a schedule"
        )
    usage, total = train.usage, train.samples
    room = [most * one.samples / one.epochs / total for one in usage]  # as shares of all samples
    if math.fsum(room) < 1:
        raise UsageError(
            f"{option('cap_epochs')} is {most:g}, but {total:,} samples are "
            f"{total * spec.seq_length / train.tokens:.3g} epochs of all datasets: ask for at most "
            f"{int(total * math.fsum(room)):,} samples"
        )
    shares = iter(_shared([one.share for one in usage], room))
    missing = {portion.prefix for portion in train.missing}
    entries = []
    for entry in spec.datasets:
        is_missing = plan.opened[entry.prefix].path_prefix in missing
        entries.append(entry._replace(weight=1.0 if is_missing else next(shares)))
    weighted = replace(spec, datasets=tuple(entries), by="tokens", temperature=1.0)
    return plan_of(weighted.changed(samples=total))


def _shared(shares: Sequence[float], room: Sequence[float]) -> list[float]:
    """Shares that add up to 1, none above its room, the others in their old proportions."""
    full: set[int] = set()
    while True:
        free = [number for number in range(len(shares)) if number not in full]
        left = 1 - math.fsum(room[number] for number in full)
        scale = left / math.fsum(shares[number] for number in free) if free else 0.0
        over = {number for number in free if shares[number] * scale > room[number]}
        if not over:
            return [
                room[number] if number in full else shares[number] * scale
                for number in range(len(shares))
            ]
        full |= over
