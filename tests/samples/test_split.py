"""Split strings, held against the programs whose rules they follow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import GOLDEN

from tokpack.dataset import MMapIndexedDataset
from tokpack.samples import parse_split, split_tokens

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("train", "valid", "test")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("969,30,1", [(0, 969), (969, 999), (999, 1000)]),
        ("900,50,50", [(0, 900), (900, 950), (950, 1000)]),
        ("0.9,0.05,0.05", [(0, 900), (900, 950), (950, 1000)]),
        (" 90 / 10 ", [(0, 900), (900, 1000), None]),
        ("1", [(0, 1000), None, None]),
        ("0,1", [None, (0, 1000), None]),
        ("0:0.9, 0.9:1, 0.25:0.5, 1:1", [(0, 900), (900, 1000), (250, 500), None]),
    ],
)
def test_forms(text: str, expected: list[tuple[int, int] | None]) -> None:
    assert parse_split(text, 1000) == expected
    assert split_tokens(text, np.full(1000, 7, np.int32)) == expected


def test_ranges_are_those_of_megatron(index: Path) -> None:
    cases = json.loads((index / "settings.json").read_text())
    compared = 0
    for folder, rule in (("megatron", "core"), ("neox", "classic"), ("microsoft", "classic")):
        for name, case in cases["single"].items():
            path = index / folder / f"{name}.npz"
            if not path.exists():
                continue
            file = cases["files"].get(case["dataset"], case["dataset"])
            count = len(MMapIndexedDataset(index / file))
            with np.load(path) as arrays:
                for part, found in zip(NAMES, parse_split(case["split"], count, rule), strict=True):
                    key = f"{part}_document_index"
                    if key not in arrays:
                        continue
                    assert found is not None
                    assert sorted(set(arrays[key].tolist())) == list(range(*found)), (path, part)
                    compared += 1
    assert compared >= (10 if index == GOLDEN / "index" else 40)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
    st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any),
)
def test_parts_are_disjoint_and_whole(lengths: list[int], weights: list[int]) -> None:
    text = ",".join(map(str, weights))
    for rule in ("core", "classic"):
        found = [part for part in parse_split(text, len(lengths), rule) if part]
        covered = [number for part in found for number in range(*part)]
        assert covered == list(range(len(lengths)))
    parts = split_tokens(text, np.array(lengths, np.int32))
    share = 0.0
    begins = 0
    for part, weight in zip(parts, weights, strict=False):
        share += weight / sum(weights)
        if part is None:
            continue
        assert begins <= part[0] < part[1] <= len(lengths)
        begins = part[1]
        missed = share * sum(lengths) - sum(lengths[: part[1]])
        assert -1 <= missed < max(lengths) + 1


def test_tokens_are_split_over_many_blocks() -> None:
    lengths = np.zeros(3_000_000, np.int32)
    lengths[2_999_000:] = 10
    assert split_tokens("9,1", lengths) == [(2_999_000, 2_999_900), (2_999_900, 3_000_000), None]
