"""Building what a blend needs before a job starts: tokpack's caches, or another program's files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.errors import OutputError, UsageError
from tokpack.samples.blend.blended import BlendedDataset
from tokpack.samples.blend.open import open_blend
from tokpack.samples.megatron.cache_files import IndexRequest, write_index_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokpack.samples.blend.plan import BlendPlan
    from tokpack.samples.gpt import GPTDataset
    from tokpack.samples.megatron.cache_files import IndexFiles
    from tokpack.samples.orders.rules import OrderName


@dataclass(frozen=True)
class CachedIndex:
    """The cache file of one dataset of a blend; ``path`` is None where its order needs none.

    ``entries`` are its samples; ``built`` is False where the file was there already.
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

    Raises as open_blend, and OutputError where the folder cannot be written.
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
            assert not isinstance(dataset, BlendedDataset)  # open_blend blends datasets alone
            yield _cached_index(part, dataset, os.fspath(folder))


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

    ``tokenizer_ids`` are the ``unique_identifiers`` of Megatron-core's tokenizer. ``rename`` says
    how prefixes begin where the program runs: {"data/": "/cluster/data/"}. ``fused`` is for jobs on
    ARM processors, see megatron_blend. ``overwrite`` and ``inputs``, files that were read for the
    plan, are as in write_index_files. UsageError for what the program's own blends do not have.
    """
    spec, train = plan.spec, plan.train
    if spec.rules.endless:
        raise UsageError(
            "the stateless order has no index files: name a program's, such as megatron"
        )
    if spec.split is None:
        raise UsageError(
            "the program's files are named by its split string: give it, such as 969,30,1"
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


def _cached_index(part: str, dataset: GPTDataset, folder: str) -> CachedIndex:
    entry, index = dataset.cached, (part, dataset.path_prefix, dataset.order, len(dataset))
    if entry is None:
        return CachedIndex(*index)
    if entry.path is None:
        raise OutputError(
            f"the index of {dataset.path_prefix} cannot be written: choose another folder than "
            f"{folder}, or make room for {entry.size:,} bytes in it"
        )
    return CachedIndex(*index, entry.size, entry.seconds, entry.path, entry.built)


def _rename(prefix: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        if prefix.startswith(old):
            return new + prefix.removeprefix(old)
    return prefix
