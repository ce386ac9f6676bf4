"""The order of blocks against its plain twin, and what it promises."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from support import orders_twin as twin
from support.samples_twin import write_dataset

from tokpack import BlendedDataset, GPTDataset
from tokpack.samples.orders.rows import OrderInput
from tokpack.samples.orders.stateless import BlockOrder

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda drawn: sum(drawn) > 1)
SETTINGS = st.fixed_dictionaries(
    {
        "extra": st.integers(0, 1),
        "block_tokens": st.integers(1, 60),
        "window_blocks": st.integers(1, 6),
        "seed": st.integers(0, 2**64 - 1),
    }
)


def order_of(lengths: list[int], seq_length: int, begin: int = 0, **given: int) -> BlockOrder:
    chosen = {"extra": 1, "seed": 7, "block_tokens": 40, "window_blocks": 3, **given}
    array = np.array(lengths, np.int32)
    data = OrderInput(array, begin, len(array), seq_length, chosen["extra"], chosen["seed"], 9)
    return BlockOrder(data, chosen["block_tokens"], window_blocks=chosen["window_blocks"])


def tokens_of(order: BlockOrder, sample: int) -> list[tuple[int, int]]:
    return [
        (sequence, first + i)
        for sequence, first, count in order.locate(sample).tolist()
        for i in range(count)
    ]


@drawn(LENGTHS, st.integers(1, 40), SETTINGS, st.data())
@settings(max_examples=30, deadline=None)
def test_the_order_equals_its_twin(
    lengths: list[int], seq_length: int, given: dict[str, int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(lengths) - 1))
    order = order_of(lengths, seq_length, begin, **given)
    expected = [
        [(begin + sequence, position) for sequence, position in sample]
        for epoch in range(2)
        for sample in twin.epoch_of_blocks(
            lengths[begin:],
            seq_length,
            given["extra"],
            (given["seed"], 9, begin, len(lengths), epoch),
            block_tokens=given["block_tokens"],
            window_blocks=given["window_blocks"],
        )
    ]
    assert 2 * order.samples == len(expected)
    if not expected:
        return
    assert [tokens_of(order, sample) for sample in range(len(expected))] == expected
    wanted = data.draw(st.permutations(range(len(expected))))
    rows, counts = order.locate_many(wanted)
    assert [part.tolist() for part in np.split(rows, np.cumsum(counts)[:-1])] == [
        order.locate(sample).tolist() for sample in wanted
    ]
    assert (rows[:, 2] > 0).all()
    first = data.draw(st.integers(begin, len(lengths) - 1))
    asked = range(first, first + 2)
    holding = [k for k, sample in enumerate(expected) if any(s in asked for s, _ in sample)]
    assert list(order.find(asked, len(expected))) == holding


@drawn(LENGTHS, st.integers(1, 40), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_an_epoch_has_each_token_once_and_blocks_all_sequences(
    lengths: list[int], seq_length: int, block_tokens: int
) -> None:
    order = order_of(lengths, seq_length, extra=0, block_tokens=block_tokens)
    assert order.tokens == sum(lengths)
    samples = [tokens_of(order, sample) for sample in range(order.samples)]
    seen = Counter(token for sample in samples for token in sample)
    assert set(seen.values()) <= {1}
    assert 0 <= sum(lengths) - len(seen) < seq_length
    # Blocks are runs of sequences that begin in the same stretch of tokens, and cover all of them.
    blocks = order.blocks.tolist()
    begins = np.cumsum([0, *lengths])[:-1] // block_tokens
    assert blocks[0] == 0
    assert blocks[-1] == len(lengths)
    assert all(begins[b:e].tolist() == [begins[b]] * (e - b) for b, e in pairwise(blocks))


# Running trainings depend on these: seed, documents, seq_length, first of three samples; rows.
GOLDEN = [
    (
        (7, 300, 64, 0),
        "13 21 56 286 0 9 18 15 45 19 0 20 288 17 34 264 0 31",
    ),
    (
        (18446744073709551615, 400, 500, 20),
        "299 24 30 313 0 67 5 0 84 304 0 37 308 0 84 305 0 74 311 0 94 292 0 31 10 58 9 312 0 30 "
        "315 0 40 7 0 57 302 0 64 1 0 37 301 0 27 307 0 47 293 0 34 6 0 20 321 0 60 296 0 44 295 "
        "0 7 299 0 25 292 30 68 300 0 91 9 0 30 4 0 47 309 0 20 298 0 17 316 0 77 314 0 3 297 0 "
        "81 374 0 1 287 0 14 143 0 39 381 0 13",
    ),
    (
        (0, 150, 1000, 5),
        "62 17 55 61 0 35 87 0 88 63 0 8 65 0 82 56 0 52 54 0 79 138 0 56 58 0 25 57 0 89 89 0 61 "
        "90 0 98 135 0 46 80 0 31 52 0 5 136 0 83 81 0 68 139 0 40 121 1 32 45 0 49 127 0 53 76 0 "
        "85 146 0 49 74 0 11 126 0 16 123 0 6 79 0 95 49 0 96 44 0 12 41 0 2 148 0 22 147 0 86 "
        "129 0 26 124 0 43 71 0 1 73 0 75 43 0 76 75 0 48 72 0 38 143 0 39 70 0 41 92 0 71 2 0 74 "
        "6 0 20 98 0 91 5 0 84 78 0 58 79 0 95 75 0 48 4 0 47 10 0 67 7 0 57 94 0 44 73 0 75 71 0 "
        "1 96 0 17 77 0 21 72 0 38 93 0 7 1 0 37 9 0 30 76 0 19",
    ),
]


@pytest.mark.promises
@pytest.mark.parametrize(("given", "rows"), GOLDEN)
def test_the_order_keeps_its_values(given: tuple[int, int, int, int], rows: str) -> None:
    seed, count, seq_length, first = given
    lengths = [(37 * i) % 101 for i in range(count)]
    order = order_of(lengths, seq_length, seed=seed, block_tokens=500, window_blocks=4)
    assert order.locate_many(range(first, first + 3))[0].ravel().tolist() == [
        *map(int, rows.split())
    ]


def test_what_cannot_be_located_is_an_error() -> None:
    order = order_of([30, 30], 10)
    with pytest.raises(IndexError):
        order.locate_many([3, -1])
    with pytest.raises(ValueError, match="document 1 has -3 tokens"):
        order_of([30, -3], 10)
    lengths = np.array([30, 30], np.int32)
    order = BlockOrder(OrderInput(lengths, 0, 2, 10, 1, 1, 1), block_tokens=99)
    lengths[0] = 5
    with pytest.raises(ValueError, match=r"lengths .*changed"):
        order.locate(0)


def test_samples_of_a_dataset_are_those_of_the_order(tmp_path: Path) -> None:
    lengths = [(7919 * i) % 1201 for i in range(1000)]
    write_dataset(tmp_path / "data", lengths)  # its tokens are 1, 2, ... of four bytes
    samples = GPTDataset(tmp_path / "data", 1024, order="stateless-blocks", seed=3)
    data = samples.dataset.fingerprint
    assert samples.fingerprint == "v2:bfb1b467ea12e9e16d5104c5f1b87fbc"
    key = (3, data, 0, len(lengths), 0)
    expected = twin.epoch_of_blocks(lengths, 1024, 1, key, block_tokens=2**19, window_blocks=256)
    assert len(samples) == len(expected) > 500
    starts = np.cumsum([1, *lengths])
    for number in (0, 1, 300, len(samples) - 1):
        places = [starts[sequence] + at for sequence, at in expected[number]]
        assert samples[number]["tokens"].tolist() == places[:-1]
    assert samples.limit is None
    default = GPTDataset(tmp_path / "data", 1024, seed=3)
    assert default.fingerprint != samples.fingerprint
    assert len(default) == len(samples)
    blend = BlendedDataset([samples, samples], [0.25, 0.75])
    assert blend.counts(400) == [100, 300]
