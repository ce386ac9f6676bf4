"""The arrays of the Megatron orders, each by its plain twin, and what they refuse."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import megatron_twin as twin
from support.megatron_cases import megatron_order

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.samples.megatron.orders import megatron_blend
from tokpack.samples.orders.rules import FLAVOURS

NORESERVE = 0x4000  # of Linux; Python 3.11's mmap does not name it
ENTRY = np.dtype([("sequence", "<u4"), ("length", "<u2")])


def make_walk(
    lengths: np.ndarray[Any, Any],
    documents: np.ndarray[Any, Any],
    seq_length: int,
    *,
    first: int = 0,
    extra: bool = True,
) -> _core.SampleWalk:
    entries = np.empty(len(lengths), ENTRY)
    _core.number_sequences(lengths, first, entries)
    order = entries[documents - first]
    return _core.SampleWalk(order, lengths, first, seq_length, extra=extra)


@given(
    n=st.integers(0, 3000) | st.sampled_from([65535, 65536, 65537]),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.int32, np.uint32, np.int64]),
)
@settings(max_examples=80, deadline=None)
def test_shuffle_is_numpys_and_leaves_its_state(n: int, seed: int, dtype: Any) -> None:
    theirs, ours = np.random.RandomState(seed), _core.RandomState(seed)
    for _ in range(2):
        expected, found = np.arange(n, dtype=dtype), np.arange(n, dtype=dtype)
        theirs.shuffle(expected)
        ours.shuffle(found)
        np.testing.assert_array_equal(found, expected)
    words, taken = ours.state()
    state = theirs.get_state()
    np.testing.assert_array_equal(words, state[1])
    assert taken == state[2]


@given(n=st.integers(0, 3000) | st.just(65537), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_entries_are_shuffled_alike(n: int, seed: int) -> None:
    plain, entries = np.arange(n, dtype=np.int32), np.empty(n, ENTRY)
    lengths = plain * 7 % 1000
    _core.number_sequences(lengths, 0, entries)
    for values in (plain, entries):
        _core.RandomState(seed).shuffle(values)
    np.testing.assert_array_equal(entries["sequence"], plain)
    np.testing.assert_array_equal(entries["length"], plain * 7 % 1000 + 1)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    seq_length=st.integers(1, 12),
    epochs=st.integers(1, 3),
    extra=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 99),
    cut=st.integers(0, 30),
)
@settings(max_examples=300, deadline=None)
def test_sample_index_is_the_walk(
    *,
    lengths: list[int],
    seq_length: int,
    epochs: int,
    extra: bool,
    wide: bool,
    seed: int,
    cut: int,
) -> None:
    documents = np.tile(np.arange(len(lengths), dtype=np.int32), epochs)
    np.random.RandomState(seed).shuffle(documents)
    samples = max((epochs * sum(lengths) - extra) // seq_length, 0)
    cut = min(cut, samples + 1)
    values = np.array(lengths, np.int32)
    walk = make_walk(values, documents, seq_length, extra=extra)
    index = np.concatenate([walk.rows(n, wide=wide) for n in (cut, samples + 1 - cut) if n >= 0])
    assert index.dtype == (np.int64 if wide else np.int32)
    expected = twin.sample_index(lengths, documents.tolist(), seq_length, extra, samples)
    assert list(map(tuple, index.tolist())) == expected
    with pytest.raises(ValueError, match="few tokens"):
        walk.rows(2, wide=wide)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any),
    seq_length=st.integers(1, 12),
    num_samples=st.none() | st.integers(0, 40),
    flavour=st.sampled_from(sorted(FLAVOURS)),
    extra=st.booleans(),
    drop_last=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_locate_reads_on_where_the_last_sample_ended(
    *,
    lengths: list[int],
    seq_length: int,
    num_samples: int | None,
    flavour: str,
    extra: bool,
    drop_last: bool,
) -> None:
    try:
        order = megatron_order(
            np.array(lengths, np.int32),
            0,
            len(lengths),
            seq_length,
            num_samples,
            seed=5,
            flavour=flavour,
            add_extra_token=extra,
            drop_last=drop_last,
        )
    except UsageError as error:
        # Megatron-core asserts that no offset is below 0, as one before an empty sequence is.
        stops = (
            extra and not drop_last and 0 in lengths and flavour in ("megatron", "megatron-0.10")
        )
        message = str(error)
        assert "too few" in message or "would stop" in message or (stops and "stops" in message)
        return
    if flavour in ("megatron", "megatron-0.10"):
        assert order.sample_index.min() >= 0
    assert num_samples is None or order.samples >= num_samples
    documents = order.document_index.tolist()
    for k in range(order.samples):
        found = [
            (document, token)
            for document, begin, count in order.locate_many([k])[0].tolist()
            for token in range(begin, begin + count)
        ]
        begin = int(order.shuffle_index[k]) * seq_length
        assert found == twin.stream(lengths, documents, begin, seq_length + extra)
    with pytest.raises(IndexError):
        order.locate_many([order.samples])[0]


@given(weights=st.lists(st.floats(1e-4, 1), min_size=1, max_size=9), size=st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_blend_is_the_greedy_one(weights: list[float], size: int) -> None:
    shares = np.array(weights) / np.sum(weights)
    datasets, samples = _core.megatron_blend(shares, size)
    assert (datasets.tolist(), samples.tolist()) == twin.blend(shares.tolist(), size)


@given(limits=st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_blend_without_size_uses_every_sample_once(limits: list[int]) -> None:
    datasets, samples = megatron_blend(limits, None)
    shares = (np.array(limits) / sum(limits)).tolist()
    assert (datasets.tolist(), samples.tolist()) == twin.blend(shares, sum(limits), limits)
    assert np.bincount(datasets).tolist() == limits


def test_a_fused_multiply_breaks_ties_otherwise() -> None:
    plain, _ = megatron_blend([30, 20, 50], 1000)
    fused, _ = megatron_blend([30, 20, 50], 1000, fused=True)
    differ = np.flatnonzero(plain != fused)
    assert differ[0] == 10
    assert 0.15 < len(differ) / 1000 < 0.25


def test_samples_are_counted_in_whole_numbers() -> None:
    """A count in float32 has one sample fewer here."""
    lengths = np.array([1073745923], np.int32)
    order = megatron_order(lengths, 0, 1, 4096, None, seed=1, drop_last=False)
    assert order.samples == 262146
    last = int(np.flatnonzero(order.shuffle_index == 262145)[0])
    assert order.locate_many([last])[0].tolist() == [[0, 262145 * 4096, 1073745923 - 262145 * 4096]]


def test_lengths_need_not_be_aligned() -> None:
    lengths = np.random.default_rng(1).integers(0, 50, 500, np.int32)
    shifted = np.frombuffer(b"\0\0" + lengths.tobytes(), np.int32, offset=2)
    assert not shifted.flags.aligned
    plain, moved = (
        megatron_order(values, 0, 500, 16, 900, seed=3) for values in (lengths, shifted)
    )
    np.testing.assert_array_equal(plain.sample_index, moved.sample_index)
    np.testing.assert_array_equal(plain.locate_many([7])[0], moved.locate_many([7])[0])


@given(
    lengths=st.lists(st.integers(0, 9) | st.integers(65530, 70000), min_size=1, max_size=12),
    first=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_long_sequences_are_looked_up(lengths: list[int], first: int) -> None:
    """Lengths are kept in 16 bits; those that do not fit are read where they are."""
    documents = np.arange(first, first + len(lengths), dtype=np.int32)[::-1].copy()
    stored = np.frombuffer(b"\0" + np.array(lengths, np.int32).tobytes(), np.int32, offset=1)
    samples = max(sum(lengths) - 1, 0) // 1000
    walk = make_walk(stored, documents, 1000, first=first)
    index = walk.rows(samples + 1, wide=False)
    ends = np.cumsum(lengths[::-1])
    places = np.searchsorted(ends, np.arange(1, samples + 1) * 1000, side="right")
    assert index[1:, 0].tolist() == places.tolist()
    starts = (ends - lengths[::-1])[index[1:, 0]] + index[1:, 1]
    assert starts.tolist() == [1000 * k for k in range(1, samples + 1)]


def test_a_walk_refuses_lengths_that_it_has_not() -> None:
    entries = np.zeros(2, ENTRY)
    for sequence in (1, 4, 2**32 - 1):
        entries["sequence"], entries["length"] = sequence, 0  # a length that must be looked up
        walk = _core.SampleWalk(entries, np.array([70000, 7], np.int32), 2, 10, extra=True)
        with pytest.raises(ValueError, match=rf"\bsequence {sequence}\b"):
            walk.rows(10, wide=False)


LENGTHS = np.array([5, 0, 0, 7], np.int32)


def test_bigscience_stops_where_the_program_does() -> None:
    lengths = np.full(10, 10, np.int32)  # 100 tokens: 24 samples of 4 with one to spare
    wanted = (2 * 100 - 1) // 4  # 49 = 24 + 25
    assert megatron_order(lengths, 0, 10, 4, wanted, seed=1, flavour="microsoft").samples == wanted


def test_too_many_datasets_for_the_flavour() -> None:
    assert len(megatron_blend([1.0] * 255, 10, "megatron")[0]) == 10


@pytest.mark.slow
def test_positions_beyond_31_bits() -> None:
    """More entries than int32 can number; programs that write them as int32 go negative here."""
    count = 2**31 + 10_000_000
    # Never written, and not reserved: one page of zeros, which a machine of any size has.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    zeros = mmap.mmap(-1, count * ENTRY.itemsize, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        zeros.madvise(mmap.MADV_HUGEPAGE)  # one fault for 2 MiB of it
    entries = np.frombuffer(zeros, ENTRY)
    samples = (count - 1) // 2048
    walk = _core.SampleWalk(entries, np.ones(1, np.int32), 0, 2048, extra=True)
    index = walk.rows(samples + 1, wide=True)
    assert index[-1].tolist() == [samples * 2048, 0]
    assert int(index[:, 0].min()) == 0


def test_random_state_takes_32_bits_of_seed() -> None:
    for seed in (-1, 2**32):
        with pytest.raises(TypeError):
            _core.RandomState(seed)


@pytest.mark.parametrize(("seed", "empty_last"), [(0, False), (1, True), (2, False), (5, True)])
def test_a_last_sample_behind_an_empty_sequence_is_refused(seed: int, *, empty_last: bool) -> None:
    """Megatron-core 0.16.1 stops at these seeds with an assertion, and at no others of these."""
    lengths, settings = np.array([5, 0], np.int32), {"seed": seed, "drop_last": False}
    older = megatron_order(lengths, 0, 2, 3, None, flavour="megatron-0.9", **settings)
    assert older.sample_index.tolist()[-1] == ([1, -1] if empty_last else [1, 4])
    assert megatron_order(lengths, 0, 2, 3, None, seed=seed).samples == 1
    if empty_last:
        with pytest.raises(UsageError, match=r"\bdrop_last=True\b"):
            megatron_order(lengths, 0, 2, 3, None, **settings)
    else:
        assert megatron_order(lengths, 0, 2, 3, None, **settings).samples == 2
