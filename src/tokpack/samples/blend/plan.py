"""The plan of a blend: what each dataset gives, how often it is seen, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.samples.blend.datasets import framed_apart, marks, open_datasets, unchecked
from tokpack.samples.blend.mixture import Mixture, Rules
from tokpack.samples.blend.portions import Portion, portion_of
from tokpack.samples.blend.spec import BlendSpec, Entries, Entry, check_spec, plain_option
from tokpack.samples.settings import MOST_SAMPLES
from tokpack.samples.split_string import PARTS, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.samples.settings import Settings

    Opened = Mapping[str, MMapIndexedDataset]  # by the names that a BlendSpec has for them
    Weighted = tuple[Portion, float | None]


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
        found = [self.opened[e.prefix] for _, entries in self.spec.groups() for e in entries]
        return list({dataset.path_prefix: dataset for dataset in found}.values())

    def warnings(self, max_epochs: float) -> list[str]:
        """What is probably not meant, or could not be checked, as sentences for the user."""
        found = []
        for mixture in self.mixtures:
            found += mixture.warnings(max_epochs) + _twice(mixture)
            found += [] if self.spec.allow_empty else _left_without(mixture)
            if mixture is not self.train:
                found += _trained_on(mixture, self.train)
        return found + unchecked(self.datasets) + framed_apart(self.datasets)


def _left_without(mixture: Mixture) -> list[str]:
    if mixture.missing and mixture.is_absent:
        return [f"the split leaves less than one sample of any dataset for {mixture.name}: none"]
    return [
        f"{shortfall}, or leave the dataset out there with --allow-empty, else it cannot be opened"
        for shortfall in mixture.shortfalls
    ]


def _twice(mixture: Mixture) -> list[str]:
    names = [portion.prefix for portion in mixture.portions]
    found = [
        f"{name} comes {names.count(name)} times in {mixture.name}, each time with the same samples"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    seen: dict[int, str] = {}
    for portion in mixture.portions:
        first = seen.setdefault(portion.dataset.fingerprint, portion.prefix)
        if first != portion.prefix:
            found.append(f"{first} and {portion.prefix} hold the same tokens")
    return found


def _trained_on(mixture: Mixture, train: Mixture) -> list[str]:
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
    names: Sequence[str], weights: Sequence[float] | None = None, **settings: Any
) -> BlendPlan:
    """Plan a blend of the datasets ``names``; without ``weights`` each counts by its size.

    ``settings`` are those of BlendSpec, and options of GPTDataset. The length is ``samples``, or
    ``tokens``, or ``epochs`` over all datasets together; one epoch when nothing is said. Raises
    InputError for a dataset that is missing, empty or not what its manifest says, UsageError for
    weights that are not positive finite numbers, one for each dataset, for datasets of different
    tokenizers, and for a length of less than one sample.
    """
    if weights is not None and len(weights) != len(names):
        raise UsageError(f"{len(weights)} weights for {len(names)} datasets")
    given = [None] * len(names) if weights is None else map(float, weights)
    datasets = tuple(Entry(name, weight) for name, weight in zip(names, given, strict=True))
    return plan_of(BlendSpec(datasets=datasets).changed(**settings))


def plan_of(spec: BlendSpec) -> BlendPlan:
    """Open the datasets of a blend and count what each gives. Raises as ``plan_blend``."""
    settings = check_spec(spec)
    rules = Rules(spec, settings)
    opened = open_datasets(spec)
    parts = _split(rules, opened)
    for name, entries in spec.valid.items():
        parts[name] = _own(name, entries, opened, rules, spec.valid_samples)
    if spec.test:
        parts["test"] = _own("test", spec.test, opened, rules, spec.test_samples)
    train, test = parts.pop("train"), parts.pop("test", None)
    plan = BlendPlan(
        spec,
        train,
        {} if spec.valid_samples == 0 else parts,
        None if spec.test_samples == 0 else test,
        opened,
    )
    for mixture in plan.mixtures:
        _check_mixture(mixture)
    return plan


def _split(rules: Rules, opened: Opened) -> dict[str, Mixture]:
    """What ``datasets`` give for training, validation and test."""
    spec, settings = rules.spec, rules.settings
    wanted = [True, False, False] if spec.split is None else wanted_parts(spec.split)
    if not wanted[0]:
        raise UsageError(f"split {spec.split!r} leaves nothing for training")
    rows = [(_portions(entry, opened, settings), entry.weight) for entry in spec.datasets]
    found = {"train": _train([(parts[0], weight) for parts, weight in rows], rules)}
    for part, asked in ((1, spec.valid_samples), (2, spec.test_samples)):
        if wanted[part]:
            pairs = [(parts[part], weight) for parts, weight in rows if weight != 0]
            found[PARTS[part]] = _with_enough(PARTS[part], pairs, rules, asked, part)
    return found


def _train(pairs: Sequence[Weighted], rules: Rules) -> Mixture:
    spec = rules.spec
    found = _with_enough("train", pairs, rules, None, None if spec.split is None else 0)
    asked = spec.samples
    if spec.tokens is not None:
        asked = int(spec.tokens) // spec.seq_length
    elif spec.epochs is not None:
        asked = rules.epoch_samples(found.portions, spec.epochs)
    kept = [number for number, (portion, _) in enumerate(pairs) if portion in found.portions]
    changes = tuple((first, tuple(row[i] for i in kept)) for first, row in spec.schedule)
    return replace(found, asked=asked, changes=changes)


def _own(name: str, entries: Entries, opened: Opened, rules: Rules, asked: int | None) -> Mixture:
    pairs = [(_portions(entry, opened)[0], entry.weight) for entry in entries]
    return _with_enough(name, pairs, rules, asked, None)


def _portions(entry: Entry, opened: Opened, settings: Settings | None = None) -> list[Portion]:
    """What the split of ``settings`` leaves of a dataset for each part; without them all of it."""
    dataset = opened[entry.prefix]
    labels = None if entry.labels is None else opened[entry.labels]
    ranges = [(0, len(dataset))] if settings is None else settings.ranges(dataset)
    return [portion_of(dataset, found, labels) for found in ranges]


def _with_enough(
    name: str,
    pairs: Sequence[Weighted],
    rules: Rules,
    asked: int | None,
    part: int | None,
) -> Mixture:
    """A mixture of the portions that have a sample; without a split all must have one."""
    settings = rules.settings
    kept = [(portion, weight) for portion, weight in pairs if settings.is_enough(portion.tokens)]
    missing = tuple(one for one, _ in pairs if not settings.is_enough(one.tokens))
    if missing and part is None:
        try:
            settings.check_enough(missing[0].tokens)
        except UsageError as error:
            raise UsageError(f"{missing[0].prefix}: {error.args[0]}") from None
    weights = tuple(weight for _, weight in kept if weight is not None)
    portions = tuple(portion for portion, _ in kept)
    return Mixture(name, portions, weights or None, rules, asked=asked, part=part, missing=missing)


def _check_mixture(mixture: Mixture) -> None:
    """UsageError for a mixture of no samples, or of a number that its order must be told."""
    if not mixture.portions:
        if mixture.name != "train":
            return  # a warning says so
        raise UsageError(f"{mixture.shortfalls[0]}, or shorten the sequence length")
    mixture.phases  # noqa: B018  raises UsageError where the weights have no finite sum
    spec, settings = mixture.rules.spec, mixture.rules.settings
    count = {"train": "samples", "test": "test_samples"}.get(mixture.name, "valid_samples")
    if mixture.rules.settings.packing_rules.needs_samples and (
        mixture.asked is None or mixture.is_used_up
    ):
        weights_too = " and the weights of its datasets" if mixture.is_used_up else ""
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
    counted = mixture.name == "train" or mixture.asked is not None
    if not spec.rules.endless and not counted and mixture.blend_weights:
        raise UsageError(
            f"the order {spec.order} must know how many samples a blend with weights has: "
            f"give {count}=N, 0 for none"
        )


def as_json(plan: BlendPlan, max_epochs: float) -> dict[str, Any]:
    """The plan for machines: the training mixture at the top, the others below it."""
    spec = plan.spec
    return {
        "order": spec.order,
        "seed": spec.seed,
        "seq_length": spec.seq_length,
        "by": spec.by,
        "temperature": spec.temperature,
        "split": spec.split,
        "split_by": spec.split_by,
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
        "tokens": mixture.samples * mixture.rules.spec.seq_length,
        "filled": mixture.filled,
        "datasets": [
            {
                "prefix": portion.prefix,
                "documents": portion.documents,
                "tokens": portion.tokens,
                "weight": weight,
                "share": share,
                "samples": samples,
                "epochs": epochs,
                "tokenizer": (portion.dataset.tokenizer or {}).get("name"),
                **marks(portion.dataset),
                "labels": None if portion.labels is None else portion.labels.path_prefix,
            }
            for portion, weight, share, samples, epochs in mixture.members
        ],
        "missing": [portion.prefix for portion in mixture.missing],
    }
