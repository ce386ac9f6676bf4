"""Documents packed into samples: equality with the twin, no token lost or seen twice."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support import packing_twin as twin
from support.golden_orders import golden

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.samples.orders.packing import PackedOrder
from tokpack.samples.orders.rows import OrderInput

KEYS = st.integers(0, 2**64 - 1)
LENGTHS = st.lists(
    st.one_of(st.sampled_from((0, 1, 2)), st.integers(0, 40), st.integers(0, 400)), max_size=80
)


def packed(
    lengths: list[int], seq_length: int, extra: int, key: int, **options: Any
) -> tuple[_core.Packing, dict[str, npt.NDArray[Any]]]:
    array = np.array(lengths, np.int32)
    found = _core.pack(array, seq_length, extra, key, **options)
    arrays = {name: found[name] for name in ("entries", "starts", "windows")}
    multiple = options.get("multiple", 1)
    return _core.Packing(array, seq_length, extra, key, **arrays, multiple=multiple), found


def listed(packing: _core.Packing) -> list[list[tuple[int, ...]]]:
    return [[tuple(row) for row in packing.locate(k).tolist()] for k in range(len(packing))]


SHAPES = st.one_of(
    st.tuples(st.integers(1, 70), st.just(1)),
    st.sampled_from([2, 3, 8]).flatmap(
        lambda m: st.integers(1, 9).map(lambda times: (m * times, m))
    ),
)


@given(LENGTHS, SHAPES, st.sampled_from((0, 1)), KEYS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_equals_the_twin(
    lengths: list[int], shape: tuple[int, int], extra: int, key: int, together: bool
) -> None:
    seq_length, multiple = shape
    options: dict[str, Any] = {"together": together, "multiple": multiple}
    packing, arrays = packed(lengths, seq_length, extra, key, **options)
    expected = twin.pack(lengths, seq_length, extra, key, **options)
    assert listed(packing) == expected
    rows, counts = packing.locate_many(np.arange(len(packing)))
    assert counts.tolist() == [len(sample) for sample in expected]
    assert [tuple(row) for row in rows.tolist()] == [piece for s in expected for piece in s]
    placed = sum(piece[2] for sample in expected for piece in sample)
    pieces = sum(map(len, expected))
    cut = sum(length > seq_length + extra for length in lengths)
    short = sum(length < 2 for length in lengths)
    assert arrays["totals"].tolist()[2:] == [pieces, placed, placed - pieces, cut, short]


@pytest.mark.parametrize("count", [twin.WINDOW, twin.WINDOW + 1])
def test_equals_the_twin_in_several_windows(count: int) -> None:
    draw = random.Random(count)
    lengths = [int(draw.lognormvariate(3, 1.5)) for _ in range(count)]
    packing, _ = packed(lengths, 100, 1, count, together=True)
    expected = twin.pack(lengths, 100, 1, count, together=True)
    rows, counts = packing.locate_many(np.arange(len(packing)))
    assert counts.tolist() == [len(sample) for sample in expected]
    assert [tuple(row) for row in rows.tolist()] == [piece for s in expected for piece in s]


def order(
    lengths: list[int], seq_length: int, extra: int = 1, seed: int = 1, **options: Any
) -> PackedOrder:
    array = np.array(lengths, np.int32)
    return PackedOrder(OrderInput(array, 0, len(array), seq_length, extra, seed, 5), **options)


@given(LENGTHS, st.integers(1, 70), st.sampled_from((0, 1)), st.sampled_from((0, 3)), st.data())
@settings(max_examples=150, deadline=None)
def test_no_token_is_lost_or_predicted_twice(
    lengths: list[int], seq_length: int, extra: int, epoch: int, data: st.DataObject
) -> None:
    if seq_length + extra < 2 or max(lengths, default=0) < 2:
        with pytest.raises(UsageError, match=rf"^sequences 0 to {len(lengths)}:"):
            order(lengths, seq_length, extra)
        return
    packing = data.draw(st.sampled_from(("best_fit", "document")))
    found = order(lengths, seq_length, extra, packing=packing)
    seen, predicted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for number in range(epoch * found.samples, (epoch + 1) * found.samples):
        rows = found.locate(number).tolist()
        assert sum(row[2] for row in rows) <= seq_length + extra
        assert packing == "best_fit" or len(rows) == 1
        for document, first, tokens in rows:
            seen.update((document, t) for t in range(first, first + tokens))
            predicted.update((document, t) for t in range(first + 1, first + tokens))
    stats = found.stats
    every = {(d, t) for d, length in enumerate(lengths) for t in range(length)}
    assert max(predicted.values()) == 1
    assert len(predicted) == stats.labels
    assert seen.keys() <= every
    assert len(every) - len(seen) == stats.left_out
    assert seen.total() == stats.placed == found.samples * (seq_length + extra) - stats.padding
    assert stats.tokens == len(every)
    if extra == 1:  # all but the first of each document
        assert predicted.keys() == {token for token in every if token[1] > 0}


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    lengths = [random.Random(k).randint(0, 300) for k in range(2000)]
    found = order(lengths, 128)
    epochs = []
    for epoch in range(3):
        numbers = range(epoch * found.samples, (epoch + 1) * found.samples)
        rows, counts = found.locate_many(numbers)
        samples = np.split(rows, np.cumsum(counts)[:-1])
        epochs.append([tuple(map(tuple, sample.tolist())) for sample in samples])
        assert samples[7].tolist() == found.locate(numbers[7]).tolist()
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    # out of order, across epochs, and from another object: a function of the number alone
    numbers = [2 * found.samples, 5, found.samples - 1, found.samples, 5]
    rows, counts = order(lengths, 128).locate_many(numbers)
    expected = [found.locate(number) for number in numbers]
    assert counts.tolist() == [len(sample) for sample in expected]
    assert rows.tolist() == np.concatenate(expected).tolist()
    assert order(lengths, 128, seed=2).locate(0).tolist() != found.locate(0).tolist()
    for wrong in (found.locate, lambda number: found.locate_many([3, number])):
        with pytest.raises(IndexError):
            wrong(-1)


@pytest.mark.promises
def test_values_never_change() -> None:
    for words, number, values in golden("packing"):
        documents, modulus, *shape, together = map(int, words)
        lengths = [i % modulus for i in range(documents)]
        seq_length, extra, key = shape
        packing, _ = packed(lengths, seq_length, extra, key, together=bool(together))
        assert packing.locate(number).ravel().tolist() == values
    lengths = [k * k * 31 % 997 for k in range(5000)]
    for packing, digest in (("best_fit", BEST_FIT), ("document", DOCUMENT)):
        rows, counts = order(lengths, 256, packing=packing).locate_many(range(3000))
        state = xxhash.xxh3_64(rows.astype("<i8").tobytes())
        state.update(counts.astype("<i8").tobytes())
        assert state.hexdigest() == digest


BEST_FIT, DOCUMENT = "bffa1f2e9cab8fa4", "60de1511bd0eaa47"  # also on other machines


def test_little_is_padding() -> None:
    draw = np.random.default_rng(0)
    lengths = np.minimum(draw.lognormal(np.log(605) - 0.6, 1.1, 100_000), 50_000)
    for seq_length, fill in ((2048, 0.9995), (8192, 0.999), (32768, 0.996)):
        assert order(lengths.astype(int).tolist(), seq_length).stats.fill > fill


def test_bytes_a_document() -> None:
    lengths = np.full(200_000, 100, np.int32)
    arrays = _core.pack(lengths, 2048, 1, 1, together=True)
    assert sum(array.nbytes for array in arrays.values()) < 2.02 * len(lengths)


def test_a_long_document_and_a_long_sample() -> None:
    found = order([2**31 - 1, 0, 2], 2**20)
    assert found.samples == 2048  # the last one has the rest of the first, and all of the last
    rows, _ = found.locate_many(range(2048))
    assert set(rows[:, 0].tolist()) == {0, 2}
    assert int(rows[:, 2].sum()) - len(rows) == found.stats.labels == 2**31 - 2 + 1
    assert found.stats.padding == 0
    whole = order([5, 2**24, 9], 2**24 - 1)
    assert whole.samples == 2
    with pytest.raises(ValueError, match="16777216"):
        order([5], 2**24)


def test_lengths_may_be_unaligned_and_must_not_be_negative() -> None:
    raw = np.zeros(4 * 50 + 1, np.uint8)
    lengths = raw[1:].view(np.dtype("i4"))
    lengths[:] = np.arange(50)
    rows = PackedOrder(OrderInput(lengths, 3, 40, 16, 1, 1, 1)).locate_many(range(20))[0]
    assert rows[:, 0].min() >= 3
    assert rows[:, 0].max() < 40
    assert (rows[:, 1] + rows[:, 2] <= rows[:, 0]).all()
    lengths[30] = -5
    with pytest.raises(ValueError, match="document 30 has -5 tokens"):
        _core.pack(lengths, 16, 1, 1, together=True)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_arrays_do_no_harm(data: st.DataObject) -> None:
    lengths = [k * 37 % 90 for k in range(150)]
    array = np.array(lengths, np.int32)
    arrays = _core.pack(array, 32, 1, 9, together=True)
    del arrays["totals"]
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(arrays)))
        flat = arrays[name].copy().reshape(-1)
        if not len(flat):
            continue
        place = data.draw(st.integers(0, len(flat) - 1))
        limits = np.iinfo(flat.dtype)
        flat[place] = data.draw(
            st.one_of(st.integers(0, 200), st.integers(int(limits.min), int(limits.max)))
        )
        if data.draw(st.booleans()):
            flat = flat[: data.draw(st.integers(0, len(flat)))]
        arrays[name] = flat.reshape(-1, 3) if name == "windows" and len(flat) % 3 == 0 else flat
    try:
        packing = _core.Packing(array, 32, 1, 9, **arrays)
    except ValueError:
        return
    for number in range(min(len(packing), 100)):
        try:
            rows = packing.locate(number)
        except RuntimeError as error:
            assert "not of these documents" in str(error)  # noqa: PT017
            continue
        assert (rows[:, 1] >= 0).all()
        assert (rows[:, 1] + rows[:, 2] <= array[rows[:, 0]]).all()
        assert rows[:, 2].sum() <= 33
