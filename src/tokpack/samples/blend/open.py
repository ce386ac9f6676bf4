"""From a blend file to datasets: training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, option
from tokpack.samples.blend.blended import BlendedDataset
from tokpack.samples.blend.file import parse_blend, read_blend
from tokpack.samples.blend.plan import BlendPlan, plan_of
from tokpack.samples.gpt import GPTDataset
from tokpack.samples.megatron.orders import blend_request

if TYPE_CHECKING:
    import os

    from tokpack.samples.blend.mixture import Mixture
    from tokpack.samples.blend.portions import Portion
    from tokpack.samples.blend.spec import BlendSpec

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


def open_blend(
    plan: BlendPlan | str | os.PathLike[str] | Mapping[str, Any], **changes: Any
) -> Blends:
    """Open the datasets of a plan, of a blend file, or of a mapping with a blend file's keys.

    ``changes`` take the place of what it says: any key of a blend file (``samples``, ``split``,
    ``order``, ``seed``, ...), and so also the options of GPTDataset that decide what a sample has
    (``document_boundaries``, ...).

    A dataset of which the split leaves no sample is a UsageError that names it; with
    ``allow_empty=True`` it is left out there, and the others share its weight. Where it leaves none
    of any dataset for validation or test, and none was asked for, there is no such part. A single
    dataset without a weight is not blended. In the order of another program weights and sizes come
    from that program's arithmetic.

    InputError for datasets that are missing or are not those of the file any more, UsageError and
    FormatError for what cannot be read or met.
    """
    if isinstance(plan, BlendPlan):
        plan = plan_of(plan.spec.changed(**changes)) if changes else plan
    else:
        spec = parse_blend(plan) if isinstance(plan, Mapping) else read_blend(plan)
        plan = plan_of(spec.changed(**changes))
    for mixture in plan.mixtures:
        if mixture.missing and not mixture.is_absent and not plan.spec.allow_empty:
            raise UsageError(
                f"{mixture.shortfalls[0]}, or let it be left out there with {option('allow_empty')}"
            )
    opened = {m.name: _Opener(plan.spec, m).open() for m in plan.mixtures if m.portions}
    train, test = opened.pop("train"), opened.pop("test", None)
    return Blends(train, opened, test, plan)


class _Opener:
    """Opens the datasets of one mixture."""

    def __init__(self, spec: BlendSpec, mixture: Mixture) -> None:
        self._spec = spec
        self._mixture = mixture
        self._options = {
            "seq_length": spec.seq_length,
            "order": spec.order,
            "seed": spec.seed,
            **spec.options,
        }
        if not spec.rules.endless and mixture.name in ("train", "test"):
            self._options.pop("drop_last", None)  # those programs ask for it in validation only

    def open(self) -> Samples:
        mixture = self._mixture
        if len(mixture.portions) == 1 and not self._is_blend_of_one():
            wanted = mixture.asked if mixture.asked is not None else self._epoch()
            return self._dataset(mixture.portions[0], wanted)
        if self._spec.rules.endless:
            return self._stateless()
        return self._of_other_program()

    def _is_blend_of_one(self) -> bool:
        """Megatron-core blends one dataset with a weight, unless each purpose has its own."""
        own = not self._spec.rules.endless and bool(self._spec.valid or self._spec.test)
        return self._mixture.weights is not None and not own

    def _epoch(self) -> int | None:
        """Samples of one epoch by the plan; None where only the dataset can tell."""
        packing, other = self._mixture.rules.settings.packing, not self._spec.rules.endless
        return None if packing == "best_fit" or other else self._mixture.samples

    def _dataset(self, portion: Portion, samples: int | None = None) -> GPTDataset:
        return GPTDataset(
            portion.dataset,
            **self._options,
            sequences=(portion.begin, portion.end),
            labels=portion.labels,
            samples=samples,
        )

    def _stateless(self) -> BlendedDataset:
        mixture, weights = self._mixture, self._mixture.blend_weights
        datasets = [self._dataset(portion) for portion in mixture.portions]
        size = mixture.asked if mixture.asked is not None else self._epoch()
        if size is None and mixture.name == "train":
            size = sum(dataset.samples_per_epoch for dataset in datasets)
        assert weights is not None
        if not mixture.changes:
            return BlendedDataset(datasets, weights, size)
        rows = [(0, weights)]
        for first, given in mixture.changes:
            rows.append((first, mixture.rules.as_weights(given, mixture.portions) or []))
        return BlendedDataset(datasets, size=size, schedule=rows)

    def _of_other_program(self) -> BlendedDataset:
        mixture, weights = self._mixture, self._mixture.blend_weights
        if weights is None:
            datasets = [self._dataset(portion) for portion in mixture.portions]
            size = mixture.asked
            if size is not None:
                size = min(size, sum(map(len, datasets)))
            return BlendedDataset(datasets, size=size)
        asked = mixture.samples
        request = blend_request(weights, asked, self._spec.order, surplus=self._spec.surplus)
        datasets = [
            self._dataset(portion, count)
            for portion, count in zip(mixture.portions, request.samples, strict=True)
        ]
        # A program without a size takes all samples of its datasets; here those asked for.
        size = asked if request.size is None else request.size
        return BlendedDataset(datasets, request.weights.tolist(), size)
