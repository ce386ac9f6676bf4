"""The plan of a blend: what each dataset gives, how often it is seen, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.samples.blend.datasets import (
    framed_apart,
    marks,
    open_datasets,
    pairs_alone,
    unchecked,
)
from tokpack.samples.blend.mixture import Mixture, Portion
from tokpack.samples.blend.spec import (
    BlendSpec,
    Entry,
    check_spec,
    plain_option,
    takes_settings,
)
from tokpack.samples.settings import MOST_SAMPLES
from tokpack.samples.split_string import PARTS, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.request import BlendOptions

    Opened = Mapping[str, MMapIndexedDataset]  # by the names that a BlendSpec has for them


@dataclass(frozen=True)
class BlendPlan:
    """A blend whose datasets were opened: what it was asked for, and what that comes to.

    ``opened`` has the datasets by the names that ``spec`` has for them.
    """

    spec: BlendSpec
    train: Mixture
    valid: Mapping[str, Mixture]
    test: Mixture | None
    opened: Opened = field(repr=False)

    @property
    def mixtures(self) -> list[Mixture]:
        """All of them, training first."""
        return [self.train, *self.valid.values(), *([self.test] if self.test else [])]

    @property
    def datasets(self) -> list[MMapIndexedDataset]:
        """All datasets that are read, each once; without those of labels."""
        opened = [self.opened[e.prefix] for _, entries in self.spec.groups() for e in entries]
        return list({dataset.path_prefix: dataset for dataset in opened}.values())

    @property
    def documents(self) -> dict[str, int]:
        """Documents of each part of the split, asked for or not, and of sets of their own."""
        rows = [_portions(entry, self.opened, self.spec) for entry in self.spec.datasets]
        split = {
            part: sum(row[number].documents for row in rows)
            for number, part in enumerate(PARTS)
            if self.spec.split is not None
        }
        return split | {one.name: sum(p.documents for p in one.portions) for one in self.mixtures}

    def warnings(self, max_epochs: float) -> list[str]:
        """What is probably not meant, or could not be checked, as sentences for the user."""
        warnings: list[str] = []
        for mixture in self.mixtures:
            warnings += _seldom_or_often(mixture, max_epochs)
            warnings += _twice(mixture)
            warnings += [] if self.spec.allow_empty else _shortfall_warnings(mixture)
            if mixture is not self.train:
                warnings += _overlap_warnings(mixture, self.train)
        if self.spec.settings.packing_rules.group == 1:
            warnings += pairs_alone(self.datasets)
        return warnings + unchecked(self.datasets) + framed_apart(self.datasets)


def _seldom_or_often(mixture: Mixture, max_epochs: float) -> Iterator[str]:
    where = "" if mixture.name == "train" else f" in {mixture.name}"
    for portion, _, samples, epochs in mixture.usage:
        if epochs > max_epochs:
            yield (
                f"{portion.prefix} is seen {epochs:.2f} times{where}, more than {max_epochs:g}: "
                "lower its weight, or raise --max-epochs"
            )
        if samples < 1:
            yield f"{portion.prefix} gives less than one of {mixture.samples:,} samples{where}"


def _shortfall_warnings(mixture: Mixture) -> list[str]:
    if mixture.missing and mixture.is_absent:
        return [f"the split leaves less than one sample of any dataset for {mixture.name}: none"]
    return [
        f"{shortfall}, or leave the dataset out there with --allow-empty, else it cannot be opened"
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

    The length is ``samples``, or ``tokens``, or ``epochs`` over all datasets together; one epoch
    when nothing is said. Raises InputError for a dataset that is missing, empty or not what its
    manifest says, UsageError for weights that are not positive finite numbers, one for each
    dataset, for datasets of different tokenizers, and for a length of less than one sample.
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
        if name != "train":  # of datasets of its own
            portions = [_portions(entry, opened)[0] for entry in entries]
            parts[name] = _mixture(name, portions, spec, counts.get(name, spec.valid_samples))
    train, test = parts.pop("train"), parts.pop("test", None)
    valid = {} if spec.valid_samples == 0 else parts
    plan = BlendPlan(spec, train, valid, None if spec.test_samples == 0 else test, opened)
    for mixture in plan.mixtures:
        _check_mixture(mixture)
    return plan


def _parts_of_split(spec: BlendSpec, opened: Opened) -> dict[str, Mixture]:
    """What ``datasets`` give for training, validation and test."""
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
    """What the split of ``spec`` leaves of a dataset for each part; without a spec all of it."""
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
    """UsageError for a mixture of no samples, or of a number that its order must be told."""
    if not mixture.portions:
        if mixture.name != "train":
            return  # a warning says so
        raise UsageError(f"{mixture.shortfalls[0]}, or shorten the sequence length")
    mixture.phases  # noqa: B018  raises UsageError where the weights have no finite sum
    spec, settings = mixture.spec, mixture.spec.settings
    count = {"train": "samples", "test": "test_samples"}.get(mixture.name, "valid_samples")
    counted = mixture.requested is not None and not mixture.is_exhaustive
    if settings.packing_rules.needs_samples and not counted:
        weights_too = " and the weights of its datasets" if mixture.is_exhaustive else ""
        raise UsageError(
            f"{option('packing', settings.packing)} must know how many samples {mixture.name} has: "
            f"give {option(count)}=N{weights_too}"
        )
    if mixture.samples > MOST_SAMPLES:
        raise UsageError(f"{mixture.name} is {mixture.samples:.3g} samples, expected 2^62 or fewer")
    if mixture.samples < 1:
        raise UsageError(
            f"{mixture.name} is less than one sample of {spec.seq_length:,} tokens, its datasets "
            f"have {mixture.tokens:,}: give it more data, tokens or epochs, shorten the sequence "
            f"length, or say with {option(count)}=N how many it has"
            f"{'' if mixture.name == 'train' else ', 0 for none'}"
        )
    counted = mixture.name == "train" or mixture.requested is not None
    if not spec.rules.endless and not counted and mixture.blend_weights(mixture.weights):
        raise UsageError(
            f"the order {spec.order} must know how many samples a blend with weights has: "
            f"give {count}=N, 0 for none"
        )


def as_json(plan: BlendPlan, max_epochs: float) -> dict[str, Any]:
    """The plan for machines: the training mixture at the top, the others below it."""
    spec = plan.spec
    names = ("order", "seed", "seq_length", "by", "temperature", "split", "split_by")
    return {
        **{name: getattr(spec, name) for name in names},
        "options": {name: plain_option(value) for name, value in spec.options.items()},
        **_mixture_json(plan.train),
        "schedule": [{"from": phase.first, "shares": phase.shares} for phase in plan.train.phases],
        "valid": {name: _mixture_json(mixture) for name, mixture in plan.valid.items()},
        "test": None if plan.test is None else _mixture_json(plan.test),
        "warnings": plan.warnings(max_epochs),
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
                "tokenizer": _tokenizer_name(portion.dataset),
                **marks(portion.dataset),
                "labels": None if portion.labels is None else portion.labels.path_prefix,
            }
            for portion, share, samples, epochs in mixture.usage
        ],
        "missing": [portion.prefix for portion in mixture.missing],
    }


def _tokenizer_name(dataset: MMapIndexedDataset) -> object:
    return None if dataset.tokenizer is None else dataset.tokenizer.get("name")
