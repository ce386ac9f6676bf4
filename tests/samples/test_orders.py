"""The native stateless order: permutation, blend tree, documents of an epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import orders_twin as twin
from support.golden_orders import golden

from tokpack._core import BlendOrder, DocumentOrder, Permutation, RandomState, megatron_blend, mix

KEYS = st.integers(0, 2**64 - 1)
WEIGHTS = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40)
NEAR_POWERS = sorted({2**k + d for k in range(18) for d in (-1, 0, 1)} - {0})


@pytest.mark.promises
def test_mix_keeps_its_values() -> None:
    for words, _, values in golden("mix"):
        numbers = [int(word) for word in words]
        assert [mix(*numbers)] == [twin.mix(*numbers)] == values


@given(st.lists(KEYS, max_size=6))
@settings(max_examples=100, deadline=None)
def test_mix_equals_its_twin(values: list[int]) -> None:
    assert mix(*values) == twin.mix(*values)


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, mix(7)])
def test_small_permutations_are_bijections_under_any_key(key: int) -> None:
    for size in {*range(1, 130), *NEAR_POWERS}:
        image = Permutation(size, key).many(np.arange(size))
        assert image.dtype == np.int64
        assert np.array_equal(np.sort(image), np.arange(size)), size


@pytest.mark.parametrize("power", range(18, 63))
def test_large_permutations_have_their_inverse(power: int) -> None:
    for offset in (-1, 0, 1):
        has_its_inverse(min(2**power + offset, 2**62), power)


def has_its_inverse(size: int, power: int) -> None:
    order = Permutation(size, mix(power))
    random = np.random.default_rng(power)
    sampled = np.append(random.integers(0, size, 200), [0, size - 1])
    image = order.many(sampled)
    assert image.min() >= 0
    assert image.max() < size
    for i, value in zip(sampled.tolist(), image.tolist(), strict=True):
        assert order.inverse(value) == i
        assert order.inverse(order.at(i)) == i
        assert order.at(order.inverse(i)) == i


@given(st.integers(1, 2**62), KEYS, st.data())
@settings(max_examples=100, deadline=None)
def test_permutation_equals_its_twin(size: int, key: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, size - 1))
    order = Permutation(size, key)
    assert order.at(i) == order.many(np.array([i]))[0] == twin.permute(size, key, i)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_many_equals_at(count: int) -> None:
    order = Permutation(70_000, 3)  # a little above 2^16: nearly half of all walk on
    indices = np.random.default_rng(count).integers(0, 70_000, count)
    assert order.many(indices).tolist() == [order.at(i) for i in indices.tolist()]


@pytest.mark.promises
def test_permutation_keeps_its_values() -> None:
    for words, begin, values in golden("permutation"):
        order = Permutation(int(words[0]), int(words[1]))
        assert [order.at(begin + i) for i in range(len(values))] == values


def test_every_permutation_of_four_is_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(24_000):
        image = tuple(Permutation(4, key).many(np.arange(4)).tolist())
        counts[image] = counts.get(image, 0) + 1
    assert len(counts) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 49.7  # p = 0.001


@pytest.mark.parametrize("stride", [1, 64, 1024, 2**15])
def test_neighbours_land_independently(stride: int) -> None:
    size = 3_000_001
    begin = np.arange(200_000)
    order = Permutation(size, 11)
    gap = (order.many(begin + stride) - order.many(begin)) % size
    counts = np.bincount(gap * 256 // size, minlength=256)
    expected = len(begin) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 330.5  # p = 0.001


def deviation(weights: npt.NDArray[np.float64], samples: int) -> float:
    """The largest distance of a dataset's count from its share, over all prefixes."""
    datasets, _ = BlendOrder(weights).locate_many(0, samples)
    shares = weights / weights.sum()
    prefixes = np.arange(1, samples + 1)
    worst = 0.0
    for i, share in enumerate(shares):
        worst = max(worst, float(np.abs(np.cumsum(datasets == i) - share * prefixes).max()))
    return worst


@given(WEIGHTS)
@settings(max_examples=100, deadline=None)
def test_random_shares_are_kept_at_every_prefix(weights: list[float]) -> None:
    assert deviation(np.array(weights), 3000) < 1.5


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_shares_of_a_thousand_datasets_are_kept(sigma: float) -> None:
    assert deviation(np.random.default_rng(5).lognormal(0, sigma, 1000), 20_000) < 1.5


def test_deviation_is_bounded_where_weights_grow_like_fibonacci_numbers() -> None:
    weights = [1.0, 0.004, 1.038, 1.028, 2.091, 3.176, 5.314, 8.751, 14.104, 23.114]
    assert 1.5 < deviation(np.array(weights), 20_000) < 1.68  # made to be bad


@given(WEIGHTS)
@settings(max_examples=60, deadline=None)
def test_blend_equals_its_twin(weights: list[float]) -> None:
    order = BlendOrder(np.array(weights))
    datasets, samples = order.locate_many(0, 300)
    assert list(zip(datasets.tolist(), samples.tolist(), strict=True)) == twin.blend(weights, 300)


def test_equal_weights_equal_the_twin() -> None:
    for count in (1, 2, 3, 8, 17):
        order = BlendOrder(np.ones(count))
        assert [order.locate(g) for g in range(200)] == twin.blend([1.0] * count, 200)


@given(WEIGHTS, st.integers(0, 2**61))
@settings(max_examples=60, deadline=None)
def test_locate_counts_and_locate_many_agree_anywhere(weights: list[float], begin: int) -> None:
    order = BlendOrder(np.array(weights))
    datasets, samples = order.locate_many(begin, 50)
    assert datasets.dtype == np.int32
    assert samples.dtype == np.int64
    counts = order.counts(begin)
    assert counts.sum() == begin
    for g, dataset, sample in zip(range(begin, begin + 50), datasets, samples, strict=True):
        assert order.locate(g) == (dataset, sample)
        assert counts[dataset] == sample
        counts[dataset] += 1
    assert np.array_equal(counts, order.counts(begin + 50))


@pytest.mark.promises
def test_blend_keeps_its_values() -> None:
    for words, begin, values in golden("blend"):
        order = BlendOrder(np.array(words, np.float64))
        places = [order.locate(begin + i) for i in range(len(values) // 2)]
        assert [number for place in places for number in place] == values


def test_only_the_ratio_of_weights_counts() -> None:
    weights = np.array([0.3, 0.2, 0.5, 1e-9])
    expected = BlendOrder(weights).locate_many(0, 1000)
    for factor in (2.0**-900, 2.0**900):
        assert np.array_equal(BlendOrder(weights * factor).locate_many(0, 1000), expected)


def tokens_of(pieces: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    return [(d, p) for d, offset, length in pieces.tolist() for p in range(offset, offset + length)]


@given(
    st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(30, 90)), max_size=200),
    st.integers(1, 40),
    st.integers(0, 1),
    KEYS,
)
@settings(max_examples=200, deadline=None)
def test_an_epoch_equals_its_twin(lengths: list[int], seq: int, extra: int, key: int) -> None:
    order = DocumentOrder(np.array(lengths, np.int32), seq, extra, key)
    expected = twin.epoch(lengths, seq, extra, key)
    assert order.tokens == sum(lengths)
    assert order.samples == len(expected) == max(sum(lengths) - extra, 0) // seq
    for j, sample in enumerate(expected):
        pieces = order.locate(j)
        assert pieces.dtype == np.int64
        assert pieces[:, 2].min() > 0
        assert tokens_of(pieces) == sample


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("seq", [1, 64, 1000])
def test_no_token_comes_twice_in_an_epoch(seq: int, extra: int) -> None:
    random = np.random.default_rng(seq)
    lengths = (random.lognormal(2, 1.5, 1000) * (random.random(1000) < 0.8)).astype(np.int32)
    order = DocumentOrder(lengths, seq, extra, 5)
    begins = np.cumsum(lengths) - lengths
    uses = np.zeros(lengths.sum(), np.int32)
    for j in range(order.samples):
        pieces = order.locate(j)
        assert pieces[:, 2].sum() == seq + extra
        pieces[-1, 2] -= extra if j + 1 < order.samples else 0  # the next sample begins with it
        for document, offset, length in pieces.tolist():
            assert offset + length <= lengths[document]
            uses[begins[document] + offset : begins[document] + offset + length] += 1
    assert uses.max() == 1
    assert uses.sum() == order.samples * seq + extra
    assert lengths.sum() - uses.sum() < seq


def test_lengths_need_no_alignment_and_are_not_copied() -> None:
    lengths = np.random.default_rng(1).integers(0, 50, 500, np.int32)
    raw = bytearray(2) + bytearray(lengths.tobytes())
    unaligned = np.frombuffer(raw, np.int32, offset=2)
    assert not unaligned.flags.aligned
    order, same = DocumentOrder(unaligned, 32, 1, 9), DocumentOrder(lengths, 32, 1, 9)
    del unaligned
    for j in range(same.samples):
        assert np.array_equal(order.locate(j), same.locate(j))
    raw[:] = bytes(len(raw))
    with pytest.raises(RuntimeError, match="changed"):
        order.locate(0)


def test_lengths_that_skip_entries_are_read_right() -> None:
    lengths = np.random.default_rng(2).integers(0, 50, 600, np.int32)
    order = DocumentOrder(lengths[::2], 32, 1, 9)
    same = DocumentOrder(lengths[::2].copy(), 32, 1, 9)
    assert all(np.array_equal(order.locate(j), same.locate(j)) for j in range(same.samples))


@pytest.mark.parametrize(("lengths", "extra"), [([], 0), ([], 1), ([0, 0], 1), ([1], 1), ([9], 1)])
def test_too_few_tokens_are_no_sample(lengths: list[int], extra: int) -> None:
    order = DocumentOrder(np.array(lengths, np.int32), 9, extra, 1)
    assert order.samples == 0
    with pytest.raises(IndexError):
        order.locate(0)


def test_sums_beyond_32_bits() -> None:
    longest = 2**31 - 1
    lengths = np.full(200, longest, np.int32)
    order = DocumentOrder(lengths, 2**20, 1, 3)
    assert order.tokens == 200 * longest
    first = order.samples - 1
    stream = Permutation(200, 3).many(np.arange(200))
    document, offset = divmod(first * 2**20, longest)
    assert order.locate(first)[0, :2].tolist() == [stream[document], offset]


@pytest.mark.promises
def test_an_epoch_keeps_its_values() -> None:
    for words, begin, values in golden("documents"):
        documents, modulus, seq_length, extra, key = map(int, words)
        lengths = np.arange(documents, dtype=np.int32) % modulus
        order = DocumentOrder(lengths, seq_length, extra, key)
        assert order.locate(begin).ravel().tolist() == values


@pytest.mark.promises
def test_the_shuffle_of_numpy_keeps_its_values() -> None:
    for words, _, values in golden("shuffle"):
        numbers, same = np.arange(int(words[1])), np.arange(int(words[1]))
        RandomState(int(words[0])).shuffle(numbers)
        np.random.RandomState(int(words[0])).shuffle(same)
        assert numbers.tolist() == same.tolist() == values


@pytest.mark.promises
def test_greedy_blends_keep_their_values() -> None:
    for name, fused in (("greedy", False), ("greedy-fused", True)):
        for words, _, values in golden(name):
            weights = np.array(words, np.float64)
            datasets, _ = megatron_blend(weights, len(values), limits=[], fused=fused)
            assert datasets.tolist() == values
