"""The orders of the Megatron family: equal to what those programs built, and to slow twins."""

from __future__ import annotations

import shutil
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.megatron_cases import PARTS, blend_case, megatron_order, prefix_of, single_case, stored
from support.optional import SHARED
from support.places import GOLDEN

from tokpack import MMapIndexedDataset
from tokpack.samples.megatron.orders import MegatronOrder, blend_request, megatron_blend
from tokpack.samples.orders.rules import FLAVOURS
from tokpack.samples.settings import parse_split

if TYPE_CHECKING:
    from pathlib import Path

# Some of what those programs built, and all of it where there are real data.
PLACES = [place for place in (GOLDEN / "index", SHARED / "index") if place.is_dir()]


def cases(*, blends: bool) -> list[Any]:
    return [
        pytest.param(file, id=f"{place.parent.name}-{file.parent.name}-{file.stem}")
        for place in PLACES
        for file in stored(place, blends=blends)
    ]


@pytest.fixture(scope="module")
def lengths_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of zeros with the lengths of owt, whose text is not kept beside these tests."""
    prefix = tmp_path_factory.mktemp("owt") / "owt"
    shutil.copyfile(GOLDEN / "index" / "owt.idx", f"{prefix}.idx")
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2_723_690)
    return prefix


@lru_cache
def dataset(index: Path, name: str, owt: Path) -> MMapIndexedDataset:
    """A dataset that the programs read whose results are in the folder ``index``."""
    here = name.startswith("owt") and index.is_relative_to(GOLDEN)
    return MMapIndexedDataset(owt if here else prefix_of(index, name))


def tokens(source: MMapIndexedDataset, order: MegatronOrder, k: int) -> np.ndarray[Any, Any]:
    return np.concatenate([source.get(*row) for row in order.locate_many([k])[0].tolist()])


def check_equal(stored: np.ndarray[Any, Any], built: np.ndarray[Any, Any]) -> None:
    assert built.dtype == stored.dtype
    np.testing.assert_array_equal(built, stored)


@pytest.mark.parametrize("file", cases(blends=False))
def test_the_same_index_and_tokens(file: Path, lengths_only: Path) -> None:
    arrays, case = np.load(file), single_case(file.stem)
    extra = case.get("add_extra_token_to_sequence", True)
    keep = not case.get("drop_last_partial_validation_sequence", True)
    source = dataset(file.parents[1], case["dataset"], lengths_only)
    flavour = file.parent.name
    ranges = parse_split(case["split"], len(source), FLAVOURS[flavour].split_rule)
    parts = [part for part in PARTS if f"{part}_document_index" in arrays]
    assert parts
    for part in parts:
        place = PARTS.index(part)
        limits = ranges[place]
        assert limits is not None
        order = megatron_order(
            source.sizes,
            *limits,
            case["seq_length"],
            case["num_samples"][place],
            seed=case["seed"],
            flavour=flavour,
            add_extra_token=extra,
            drop_last=not (keep and part == "valid"),
        )
        for name in ("document_index", "sample_index", "shuffle_index"):
            check_equal(arrays[f"{part}_{name}"], getattr(order, name))
        first = arrays[f"{part}_tokens"]
        last = arrays[f"{part}_tokens_last5"]
        assert len(first) == min(50, order.samples)
        check_tokens(source, order, first, range(len(first)))
        check_tokens(source, order, last, range(order.samples - len(last), order.samples))


def check_tokens(
    source: MMapIndexedDataset, order: MegatronOrder, stored: np.ndarray[Any, Any], which: range
) -> None:
    for row, k in zip(stored, which, strict=True):
        found = tokens(source, order, k)
        np.testing.assert_array_equal(found, row[: len(found)])
        if len(found) < len(row):  # a kept last sample: the rest is padding
            assert order.shuffle_index[k] == order.samples - 1
            assert len(set(row[len(found) :].tolist())) == 1


@pytest.mark.parametrize("file", cases(blends=True))
def test_the_same_blend_and_tokens(file: Path, lengths_only: Path) -> None:
    arrays, case, flavour = np.load(file), blend_case(file.stem), file.parent.name
    weights, seq_length, seed = case["weights"], case["seq_length"], case["seed"]
    sources = [dataset(file.parents[1], name, lengths_only) for name in weights]
    for part, count in zip(PARTS, case["num_samples"], strict=True):
        request = blend_request(list(weights.values()), count, flavour)
        if f"{part}_norm_weights" in arrays:
            check_equal(arrays[f"{part}_norm_weights"], request.weights)
            check_equal(arrays[f"{part}_mid_num_samples"], np.array(request.samples))
        orders = []
        for source, samples in zip(sources, request.samples, strict=True):
            # NeoX blends have a list of whole datasets for each part.
            text = "1" if flavour == "neox" else "90,5,5"
            ranges = parse_split(text, len(source), FLAVOURS[flavour].split_rule)
            limits = ranges[0 if flavour == "neox" else PARTS.index(part)]
            assert limits is not None
            orders.append(
                megatron_order(
                    source.sizes, *limits, seq_length, samples, seed=seed, flavour=flavour
                )
            )
        assert arrays[f"{part}_mid_len"].tolist() == [program_length(order) for order in orders]
        size = request.size
        if size is None:
            size = sum(program_length(order) for order in orders)
        datasets, numbers = megatron_blend(request.weights, size, flavour)
        check_equal(arrays[f"{part}_dataset_index"], datasets)
        check_equal(arrays[f"{part}_dataset_sample_index"], numbers)
        rows = arrays.get(f"{part}_tokens", ())
        for row, which, number in zip(rows, datasets, numbers, strict=False):
            np.testing.assert_array_equal(row, tokens(sources[which], orders[which], number))


def program_length(order: MegatronOrder) -> int:
    return order.samples - (order.flavour == "neox")


@pytest.mark.promises
@pytest.mark.parametrize("folder", ["megatron", "megatron-0.9"])
@pytest.mark.parametrize("part", PARTS)
def test_the_same_blends_without_weights(folder: str, part: str) -> None:
    arrays = np.load(GOLDEN / "index" / folder / "bnone_exhaustive.npz")
    built = megatron_blend(arrays[f"{part}_mid_len"], None, folder)
    check_equal(arrays[f"{part}_dataset_index"], built[0])
    check_equal(arrays[f"{part}_dataset_sample_index"], built[1])
    if folder == "megatron-0.9":
        arrays = np.load(GOLDEN / "index" / folder / "bnone_sized.npz")
        size = len(arrays[f"{part}_dataset_index"])
        built = megatron_blend(arrays[f"{part}_mid_len"], size, folder)
        check_equal(arrays[f"{part}_dataset_index"], built[0])
        check_equal(arrays[f"{part}_dataset_sample_index"], built[1])
