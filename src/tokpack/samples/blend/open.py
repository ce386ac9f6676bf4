"""From a blend file to datasets: training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.samples.blend.blended import BlendedDataset
from tokpack.samples.blend.file import parse_blend, read_blend
from tokpack.samples.blend.plan import BlendPlan, plan_of
from tokpack.samples.blend.spec import takes_settings
from tokpack.samples.gpt import GPTDataset
from tokpack.samples.megatron.orders import blend_request
from tokpack.samples.settings import SampleSettings

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from tokpack.samples.blend.mixture import Mixture, Portion
    from tokpack.samples.request import BlendOptions

Samples = GPTDataset | BlendedDataset


@dataclass(frozen=True)
class Blends:
    """The datasets of a blend: training, validation sets by name, and test, with their plan.

    The validation set that a split makes is called "valid".
    """

    train: Samples
    valid: dict[str, Samples]
    test: Samples | None
    plan: BlendPlan

    def __repr__(self) -> str:
        return f"Blends(train={self.train!r}, valid={self.valid!r}, test={self.test!r})"


def open_blend(
    plan: BlendPlan | str | os.PathLike[str] | Mapping[str, Any], **changes: Unpack[BlendOptions]
) -> Blends:
    """Open the datasets of a plan, of a blend file, or of a mapping with a blend file's keys.

    ``changes`` take the place of what it says.

    A dataset of which the split leaves no sample is a UsageError that names it; with
    ``allow_empty=True`` it is left out there, and the others share its weight. Where it leaves none
    of any dataset for validation or test, and none was asked for, there is no such part. A single
    dataset without a weight is not blended. In the order of another program weights and sizes come
    from that program's arithmetic.

    InputError for datasets that are missing or are not those of the file any more, UsageError and
    FormatError for what cannot be read or met.
    """
    if not isinstance(plan, BlendPlan):
        spec = parse_blend(plan) if isinstance(plan, Mapping) else read_blend(plan)
        plan = plan_of(spec.changed(**changes))
    elif changes:
        plan = plan_of(plan.spec.changed(**changes))
    for mixture in plan.mixtures:
        if mixture.missing and not mixture.is_absent and not plan.spec.allow_empty:
            raise UsageError(
                f"{mixture.shortfalls[0]}, or let it be left out there with {option('allow_empty')}"
            )
    opened = {mixture.name: _open(mixture) for mixture in plan.mixtures if mixture.portions}
    train, test = opened.pop("train"), opened.pop("test", None)
    return Blends(train, opened, test, plan)


takes_settings(open_blend)


def _open(mixture: Mixture) -> Samples:
    if len(mixture.portions) == 1 and not _is_blend_of_one(mixture):
        return _dataset(mixture, mixture.portions[0], _size(mixture))
    return _stateless(mixture) if mixture.spec.rules.endless else _of_other_program(mixture)


def _is_blend_of_one(mixture: Mixture) -> bool:
    """Megatron-core blends one dataset with a weight, unless each purpose has its own."""
    spec = mixture.spec
    apart = not spec.rules.endless and bool(spec.valid or spec.test)
    return mixture.weights is not None and not apart


def _size(mixture: Mixture) -> int | None:
    """Samples as asked for, or of one epoch by the plan; None where only the dataset can tell."""
    spec = mixture.spec
    if mixture.requested is not None:
        return mixture.requested
    counted = spec.settings.packing_rules.counted and spec.rules.endless
    return mixture.samples if counted else None


def _dataset(mixture: Mixture, portion: Portion, samples: int | None = None) -> GPTDataset:
    spec = mixture.spec
    options = {one.name: getattr(spec, one.name) for one in fields(SampleSettings)}
    if not spec.rules.endless and mixture.name in ("train", "test"):
        options["drop_last"] = True  # those programs ask for the last one in validation only
    return GPTDataset(
        portion.dataset,
        spec.seq_length,
        **{**options, "split": None},
        sequences=(portion.begin, portion.end),
        labels=portion.labels,
        samples=samples,
    )


def _stateless(mixture: Mixture) -> BlendedDataset:
    datasets = [_dataset(mixture, portion) for portion in mixture.portions]
    size = _size(mixture)
    if size is None and mixture.name == "train":
        size = sum(dataset.samples_per_epoch for dataset in datasets)
    rows = [
        (first, mixture.blend_weights(weights) or [])
        for first, weights in ((0, mixture.weights), *mixture.changes)
    ]
    if mixture.changes:
        return BlendedDataset(datasets, size=size, schedule=rows)
    return BlendedDataset(datasets, rows[0][1], size)


def _of_other_program(mixture: Mixture) -> BlendedDataset:
    spec, weights = mixture.spec, mixture.blend_weights(mixture.weights)
    if weights is None:
        datasets = [_dataset(mixture, portion) for portion in mixture.portions]
        size = mixture.requested
        if size is not None:
            size = min(size, sum(map(len, datasets)))
        return BlendedDataset(datasets, size=size)
    request = blend_request(weights, mixture.samples, spec.order, surplus=spec.surplus)
    datasets = [
        _dataset(mixture, portion, count)
        for portion, count in zip(mixture.portions, request.samples, strict=True)
    ]
    # A program without a size takes all samples of its datasets; here those asked for.
    size = mixture.samples if request.size is None else request.size
    return BlendedDataset(datasets, request.weights.tolist(), size)
