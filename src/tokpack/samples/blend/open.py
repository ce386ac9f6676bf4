"""From a blend file to datasets: training, validation and test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.display import drawn
from tokpack.errors import OutputError, UsageError, option
from tokpack.option import options_of
from tokpack.samples.blend.blended import BlendedDataset
from tokpack.samples.blend.file import parse_blend, read_blend
from tokpack.samples.blend.plan import BlendPlan, plan_of
from tokpack.samples.blend.spec import takes_settings
from tokpack.samples.gpt import GPTDataset
from tokpack.samples.megatron import IndexRequest, blend_request, write_index_files
from tokpack.samples.settings import SampleSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    from tokpack.keywords import BlendOptions
    from tokpack.samples.blend.plan import Mixture, Portion
    from tokpack.samples.megatron import IndexFiles
    from tokpack.samples.orders import OrderName


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

    _repr_html_ = drawn


def open_blend(
    plan: BlendPlan | str | os.PathLike[str] | Mapping[str, Any], **changes: Unpack[BlendOptions]
) -> Blends:
    """Open the datasets of a plan, of a blend file, or of a mapping with the keys of a blend file.

    ``changes`` replace settings in it.

    UsageError if the split leaves a dataset without a sample; with ``allow_empty=True`` it is left
    out there, and the others share its weight. If no dataset has anything for validation or test,
    and no samples were requested, that part is missing. A single dataset without a weight is not
    blended. In the order of another program, weights and sizes follow that program's arithmetic.

    InputError for datasets that are missing or have changed since the file was saved, UsageError
    and FormatError for anything that cannot be read or fulfilled.
    """
    if not isinstance(plan, BlendPlan):
        spec = parse_blend(plan) if isinstance(plan, Mapping) else read_blend(plan)
        plan = plan_of(spec.changed(**changes))
    elif changes:
        plan = plan_of(plan.spec.changed(**changes))
    for mixture in plan.mixtures:
        if mixture.missing and not mixture.is_absent and not plan.spec.allow_empty:
            raise UsageError(
                f"{mixture.shortfalls[0]}, or leave it out there with {option('allow_empty')}"
            )
    opened = {mixture.name: _open(mixture) for mixture in plan.mixtures if mixture.portions}
    train, test = opened.pop("train"), opened.pop("test", None)
    return Blends(train, opened, test, plan)


takes_settings(open_blend)


def _open(mixture: Mixture) -> Samples:
    spec = mixture.spec
    # Megatron-core blends even one dataset, if it has a weight and train, valid and test share it.
    apart = not spec.rules.endless and (spec.valid or spec.test)
    if len(mixture.portions) == 1 and (mixture.weights is None or apart):
        return _dataset(mixture, mixture.portions[0], _size(mixture))
    return _stateless(mixture) if spec.rules.endless else _of_other_program(mixture)


def _size(mixture: Mixture) -> int | None:
    """The number of samples, as requested or of one epoch by the plan; None if only the dataset
    knows.
    """
    spec = mixture.spec
    if mixture.requested is not None:
        return mixture.requested
    counted = spec.settings.packing_rules.counted and spec.rules.endless
    return mixture.samples if counted else None


def _dataset(mixture: Mixture, portion: Portion, samples: int | None = None) -> GPTDataset:
    spec = mixture.spec
    options = {name: getattr(spec, name) for name in options_of(SampleSettings)}
    if not spec.rules.endless and mixture.name in ("train", "test"):
        options["drop_last"] = True  # other programs keep the last sample only in validation
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
    # A program without a size takes all samples of its datasets; here the number is requested.
    size = mixture.samples if request.size is None else request.size
    return BlendedDataset(datasets, request.weights.tolist(), size)


@dataclass(frozen=True)
class CachedIndex:
    """The cache file of one dataset of a blend; ``path`` is None if its order needs none.

    ``entries`` are its samples; ``built`` is False if the file existed already.
    """

    part: str
    prefix: str
    order: OrderName
    entries: int
    size: int = 0
    seconds: float = 0.0
    path: str | None = None
    built: bool = False


def prebuild(plan: BlendPlan, folder: str | os.PathLike[str]) -> Iterator[CachedIndex]:
    """Open all datasets of a blend with a cache in ``folder``, so that later runs find it there.

    Raises as open_blend, and OutputError if the folder cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror or error}") from error
    blends = open_blend(plan, cache=os.fspath(folder))
    for part, samples in {"train": blends.train, **blends.valid, "test": blends.test}.items():
        if samples is None:
            continue
        for dataset in samples.datasets if isinstance(samples, BlendedDataset) else [samples]:
            assert not isinstance(dataset, BlendedDataset)  # open_blend does not nest blends
            entry, index = dataset.cached, (part, dataset.path_prefix, dataset.order, len(dataset))
            if entry is None:
                yield CachedIndex(*index)
            elif entry.path is None:
                raise OutputError(
                    f"the index of {dataset.path_prefix} cannot be written: choose another folder "
                    f"than {os.fspath(folder)}, or make room for {entry.size:,} bytes in it"
                )
            else:
                yield CachedIndex(*index, entry.size, entry.seconds, entry.path, entry.built)


def index_files(
    plan: BlendPlan,
    folder: str | os.PathLike[str],
    *,
    tokenizer_ids: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
    fused: bool = False,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> Iterator[IndexFiles]:
    """Write the index files of the program whose order the blend has, see write_index_files.

    ``tokenizer_ids`` are the ``unique_identifiers`` of Megatron-core's tokenizer. ``rename`` gives
    the beginnings of prefixes where the program runs: {"data/": "/cluster/data/"}. ``fused`` is for
    jobs on ARM processors, see megatron_blend. ``overwrite`` and ``inputs``, files that were read
    for the plan, are as in write_index_files. UsageError for a blend that the program itself cannot
    make.
    """
    spec, train = plan.spec, plan.train
    if spec.rules.endless:
        raise UsageError(
            "the stateless order has no index files: name a program's, such as megatron"
        )
    if spec.split is None:
        raise UsageError(
            "the names of the program's files contain its split string: give it, such as 969,30,1"
        )
    if spec.valid or spec.test:
        raise UsageError(
            "index files of validation and test sets with datasets of their own are not written: "
            "give the datasets of training and a split"
        )
    weights = None if train.weights is None else train.blend_weights(train.weights)
    request = IndexRequest(
        paths=tuple(_rename(portion.prefix, rename or {}) for portion in train.portions),
        weights=None if weights is None else tuple(weights),
        samples=(train.requested, spec.valid_samples, spec.test_samples),
        seq_length=spec.seq_length,
        seed=spec.seed,
        split=spec.split,
        tokenizer=tokenizer_ids,
        order=spec.order,
        surplus=spec.surplus,
        add_extra_token=spec.add_extra_token,
        drop_last=spec.drop_last,
        fused=fused,
    )
    datasets = [portion.dataset for portion in train.portions]
    return write_index_files(folder, request, datasets, overwrite=overwrite, inputs=inputs)


def _rename(prefix: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        if prefix.startswith(old):
            return new + prefix.removeprefix(old)
    return prefix
