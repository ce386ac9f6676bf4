"""The core's signatures, clusters and phrases against their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.near_twin import band_hashes, components, jaccard
from support.places import GOLDEN

from tokpack import _core

documents = st.lists(st.integers(0, 5), max_size=60) | st.lists(st.integers(0, 65535), max_size=200)


def spans_of(lengths: list[int]) -> np.ndarray:
    ends = np.cumsum([0, *lengths])
    return np.stack([ends[:-1], ends[1:]], axis=1)


@given(st.lists(documents, max_size=4), st.integers(1, 14), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_signatures_are_those_of_the_twin(
    texts: list[list[int]], ngram: int, bands: int, rows: int
) -> None:
    tokens = np.array([token for text in texts for token in text], np.uint32)
    spans = spans_of([len(text) for text in texts]).reshape(-1, 2)
    hashes = _core.band_hashes(tokens, spans, ngram, bands, rows)
    assert hashes.tolist() == [band_hashes(text, ngram, bands, rows) for text in texts]
    narrow = _core.band_hashes(tokens.astype(np.uint16), spans, ngram, bands, rows)
    assert np.array_equal(narrow, hashes)


def test_the_values_of_signatures_stay_what_they_are() -> None:
    lines = (GOLDEN / "band_hashes.txt").read_text().splitlines()
    values = [line.split(" = ") for line in lines if line[:1].isdigit()]
    assert len(values) >= 5
    for asked, hashes in values:
        count, modulus, ngram, bands, rows = map(int, asked.split())
        tokens = np.array([number**3 % modulus for number in range(count)], np.uint32)
        found = _core.band_hashes(tokens, np.array([[0, count]]), ngram, bands, rows)
        assert found[0].tolist() == [int(one) for one in hashes.split()]


@pytest.mark.parametrize("level", _core.simd_levels())
@given(st.data(), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_digests_are_those_of_the_package(level: Any, data: st.DataObject, seed: int) -> None:
    """Every class of lengths: to 3, 8, 16, 128, 240 bytes, to a block of 1,024, several blocks."""
    nearly = st.sampled_from([0, 3, 8, 16, 128, 240, 1024, 2048, 4096])
    sizes = data.draw(st.lists(st.builds(int.__add__, nearly, st.integers(0, 70)), max_size=9))
    spans = spans_of(sizes).reshape(-1, 2)
    drawn = np.random.default_rng(seed).integers(0, 256, int(spans[-1:, 1].sum()) * 2, np.uint8)
    texts = [drawn[begin:end].tobytes() for begin, end in spans]
    digests = _core.text_digests(drawn.data, spans, level)
    assert [one.tobytes() for one in digests] == [xxhash.xxh3_128_digest(one) for one in texts]
    tokens = drawn.view(np.uint16)
    wide = [xxhash.xxh3_128_digest(tokens[a:b].astype("<i4").tobytes()) for a, b in spans]
    for ids in (tokens, tokens.astype(np.uint32)):
        assert [one.tobytes() for one in _core.token_digests(ids, spans, level)] == wide
    with pytest.raises(ValueError, match="leaves"):
        _core.text_digests(drawn.data, np.array([[0, len(drawn) + 1]]), level)


@given(documents, documents, st.integers(1, 14))
@settings(deadline=None)
def test_similarity_is_that_of_the_sets(a: list[int], b: list[int], ngram: int) -> None:
    one, other = np.array(a, np.uint32), np.array(b, np.uint32)
    assert _core.jaccard(one, other, ngram) == jaccard(a, b, ngram)
    assert _core.jaccard(one, other.astype(np.uint16), ngram) == jaccard(a, b, ngram)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=80))
def test_joined_pairs_are_components_with_the_smallest_first(keys: list[int]) -> None:
    hashes = np.array(keys, np.uint64) << np.uint64(58)
    pairs = np.concatenate([_core.equal_pairs(hashes, part, 5) for part in range(5)])
    parents = np.arange(len(keys))
    _core.join_pairs(parents, pairs)
    while not np.array_equal(parents, parents[parents]):
        parents = parents[parents]
    assert parents.tolist() == [keys.index(key) for key in keys]
    assert parents.tolist() == components(len(keys), pairs.tolist())
    assert not len(_core.separate_pairs(parents, pairs))


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("size", [12, 60, 300, 1500])
def test_bands_agree_as_often_as_documents_are_alike(similarity: float, size: int) -> None:
    """The curve of 14 bands of 8, also where documents have fewer n-grams than there are places."""
    random = np.random.default_rng(size)
    trials = 1000
    shared = round(2 * size * similarity / (1 + similarity))
    exact = shared / (2 * size - shared)
    ids = random.integers(0, 1 << 32, (trials, 2 * size), np.uint32)
    other = np.concatenate([ids[:, :shared], ids[:, size : 2 * size - shared]], axis=1)
    tokens = np.stack([ids[:, :size], other], axis=1).reshape(-1)
    hashes = _core.band_hashes(tokens, spans_of([size] * (2 * trials)), 1, 14, 8)
    equal = hashes[0::2] == hashes[1::2]
    # Five deviations of the mean; bands are a little dependent, more so in small sets.
    for rate, expected in (
        (equal.mean(), exact**8),
        (equal.any(axis=1).mean(), 1 - (1 - exact**8) ** 14),
    ):
        assert abs(rate - expected) < 5 * np.sqrt(expected * (1 - expected) / trials) + 0.05
