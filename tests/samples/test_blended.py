"""BlendedDataset: exact shares, own orders, and every wrong request named."""

from __future__ import annotations

import math
import pickle
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounding import equal
from support.samples_twin import some_lengths, write_dataset, write_manifest

from tokpack import BlendedDataset, GPTDataset
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 8
NAMES = ("wiki", "owt", "code")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(NAMES):
        write_dataset(folder / name, some_lengths(40 * (number + 1), number), 100_000 * number)
    return folder


def open_all(folder: Path, **options: Any) -> list[GPTDataset]:
    return [GPTDataset(folder / name, LENGTH, **options) for name in NAMES]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_samples_come_in_their_datasets_own_order(folder: Path) -> None:
    datasets = open_all(folder)
    blend = BlendedDataset(datasets, [0.35, 0.15, 0.5], 500)
    given_so_far = [0, 0, 0]
    for number in range(len(blend)):
        dataset, own = blend.locate(number)
        assert own == given_so_far[dataset]
        given_so_far[dataset] += 1
        assert same(blend[number], datasets[dataset].sample(own))
        assert blend.counts(number + 1) == given_so_far
    assert given_so_far[0] > len(datasets[0])  # it began again
    with pytest.raises(IndexError):
        blend[500]
    assert same(blend[-1], blend[499])


@settings(max_examples=40, deadline=None)
@given(weights=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=9))
def test_shares_are_right_at_every_prefix(folder: Path, weights: list[float]) -> None:
    dataset = GPTDataset(folder / "wiki", LENGTH)
    blend = BlendedDataset([dataset] * len(weights), weights, 1000)
    shares = np.array(weights) / math.fsum(weights)
    assert blend.weights == equal(shares, len(weights) + 1)
    for size in range(0, 1001, 7):
        assert np.abs(blend.counts(size) - shares * size).max() < 1.5


def test_without_size_nothing_comes_twice(folder: Path) -> None:
    datasets = open_all(folder)
    lengths = [len(dataset) for dataset in datasets]
    for weights in ([1, 1, 1], [1, 5, 3], [0.98, 0.01, 0.01], None):
        blend = BlendedDataset(datasets, weights)
        counts = blend.counts(len(blend))
        assert all(count <= length for count, length in zip(counts, lengths, strict=True))
        beyond = blend.counts(len(blend) + 1)
        assert any(count > length for count, length in zip(beyond, lengths, strict=True))
    by_length = BlendedDataset(datasets)
    assert by_length.weights == equal([length / sum(lengths) for length in lengths], 2)
    assert sum(lengths) - len(by_length) < 6
    assert len(BlendedDataset(datasets[:1], [3])) == lengths[0]


def test_size_does_not_change_the_order(folder: Path) -> None:
    short, long = (BlendedDataset(open_all(folder), [1, 2, 3], size) for size in (50, 5000))
    assert all(same(short[k], long[k]) for k in range(50))
    assert short.fingerprint == long.fingerprint
    assert BlendedDataset(open_all(folder), [2, 4, 6], 50).fingerprint == short.fingerprint
    for other in (
        BlendedDataset(open_all(folder), [1, 2, 3.5], 50),
        BlendedDataset(open_all(folder, seed=5), [1, 2, 3], 50),
        BlendedDataset(open_all(folder)[::-1], [3, 2, 1], 50),
    ):
        assert other.fingerprint != short.fingerprint


def test_a_blend_of_blends(folder: Path) -> None:
    wiki, owt, code = open_all(folder)
    text = BlendedDataset([wiki, owt], [1, 3])
    blend = BlendedDataset([text, code], [0.8, 0.2], 400)
    where = list(accumulate((blend.locate(k)[0] == 0 for k in range(400)), initial=0))
    for number in (0, 1, 50, 399):
        dataset, own = blend.locate(number)
        expected = text.sample(where[number]) if dataset == 0 else code.sample(own)
        assert same(blend[number], expected)
    assert pickle.loads(pickle.dumps(blend)).fingerprint == blend.fingerprint


def test_extreme_weights(folder: Path) -> None:
    blend = BlendedDataset(open_all(folder), [1e308, 1e308, 1e308], 10)
    assert blend.weights == equal([1 / 3] * 3, 4)


def test_mixed_tokenizers_are_named(tmp_path: Path) -> None:
    for number, sha256 in enumerate((None, "aa", "aa", "bb")):
        write_dataset(tmp_path / f"set{number}", [50])
        if sha256:
            write_manifest(tmp_path / f"set{number}", f"tokenizer-{sha256}", sha256)
    sets = [GPTDataset(tmp_path / f"set{number}", LENGTH) for number in range(4)]
    blend = BlendedDataset(sets[:3])
    assert blend.tokenizer
    assert blend.tokenizer["name"] == "tokenizer-aa"
    with pytest.raises(UsageError, match=r"/set1 .*\btokenizer-aa .*/set3 .*\btokenizer-bb "):
        BlendedDataset(sets)
    (tmp_path / "set3.json").write_text("{}")  # no manifest
    BlendedDataset([*sets[:3], GPTDataset(tmp_path / "set3", LENGTH)])
