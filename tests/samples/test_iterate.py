"""The iterator: any world size sees the same samples, and a state goes on where it stopped."""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset
from tokpack.errors import ResumeError
from tokpack.samples import MicroBatches, SampleIterator

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 8


@pytest.fixture
def blend(tmp_path: Path) -> BlendedDataset:
    datasets = []
    for number in range(2):
        write_dataset(tmp_path / f"set{number}", some_lengths(50, number), 100_000 * number)
        datasets.append(GPTDataset(tmp_path / f"set{number}", LENGTH))
    return BlendedDataset(datasets, [0.35, 0.65], 200)


@pytest.mark.promises
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 4)), max_size=6),
)
def test_runs_of_any_shape_take_every_sample_once(
    samples: int, runs: list[tuple[int, int, int]]
) -> None:
    taken: list[int] = []
    for micro, world, steps in runs:
        ranks = [
            MicroBatches(samples, micro, rank=r, world_size=world, consumed_samples=len(taken))
            for r in range(world)
        ]
        batches = [list(rank) for rank in ranks]
        assert [len(b) for b in batches] == [len(rank) for rank in ranks]
        for _, of_ranks in zip(range(steps), zip(*batches, strict=True), strict=False):
            taken += [number for batch in of_ranks for number in batch]
    assert taken == list(range(len(taken)))
    assert len(taken) <= samples


def test_a_batch_is_its_samples(blend: BlendedDataset) -> None:
    iterator = SampleIterator(blend, 3, rank=1, world_size=2)
    assert len(iterator) == 200 // 6
    next(iterator)
    batch = next(iterator)
    for place, number in enumerate((9, 10, 11)):
        for name, array in blend[number].items():
            assert np.array_equal(batch[name][place], array)
    assert batch["tokens"].shape == (3, LENGTH)
    assert iterator.consumed_samples == 12
    assert len(iterator) == 200 // 6 - 2
    assert sum(1 for _ in iterator) == 200 // 6 - 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert iterator.consumed_samples == 198


@pytest.mark.parametrize("prefetch", [0, 3])
def test_iter_goes_on_and_after_the_end_begins_anew(blend: BlendedDataset, prefetch: int) -> None:
    iterator = SampleIterator(blend, 8, consumed_samples=160, prefetch=prefetch)
    first = next(iterator)["tokens"].tolist()
    assert len(iterator) == 4
    for batch in iterator:  # goes on
        second = batch["tokens"].tolist()
        break
    assert [first, second] == [blend.batch(range(n, n + 8))["tokens"].tolist() for n in (160, 168)]
    state = iterator.state_dict()
    assert sum(1 for _ in iterator) == 3
    whole = [blend.batch(range(n, n + 8))["tokens"].tolist() for n in range(0, 200, 8)]
    for _ in range(2):
        assert len(iterator) == 25
        assert [batch["tokens"].tolist() for batch in iterator] == whole
        assert iterator.consumed_samples == 200
    iterator.load_state_dict(state)
    assert [sum(1 for _ in iterator) for _ in range(2)] == [3, 25]


def test_a_state_of_the_end_begins_anew_as_the_iterator_would(blend: BlendedDataset) -> None:
    iterator = SampleIterator(blend, 3, world_size=2)
    for _ in range(33):
        next(iterator)
    before, after = iterator.state_dict(), None
    assert next(iterator, None) is None
    after = json.loads(json.dumps(iterator.state_dict()))
    for state, lengths in ((before, [0, 33]), (after, [33, 33])):
        resumed = SampleIterator(blend, 3, world_size=2)
        resumed.load_state_dict(state)
        assert next(resumed, None) is None
        resumed.load_state_dict(state)
        assert [sum(1 for _ in resumed) for _ in range(2)] == lengths
    longer = SampleIterator(BlendedDataset(blend.datasets, [0.35, 0.65], 210), 3, world_size=2)
    longer.load_state_dict(after)  # its pass has not ended
    assert [sum(1 for _ in longer) for _ in range(2)] == [2, 35]


def test_a_batch_that_failed_can_be_asked_for_again(
    blend: BlendedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterator = SampleIterator(blend, 8)
    next(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(blend, "batch", lambda _: 1 / 0)
        iterator.load_state_dict(iterator.state_dict())
        with pytest.raises(ZeroDivisionError):
            next(iterator)
    assert len(iterator) == 24
    assert next(iterator)["tokens"].tolist() == blend.batch(range(8, 16))["tokens"].tolist()


def test_a_copy_of_an_iterator_has_passes_of_its_own(blend: BlendedDataset) -> None:
    iterator = SampleIterator(blend, 8, consumed_samples=184)
    copies = [copy.deepcopy(iterator), pickle.loads(pickle.dumps(iterator))]
    assert sum(1 for _ in iterator) == 2
    for one in copies:
        assert [sum(1 for _ in one) for _ in range(2)] == [2, 25]


@pytest.mark.promises
def test_a_state_goes_on_with_another_world_size(blend: BlendedDataset) -> None:
    seen = []
    ranks = [SampleIterator(blend, 2, rank=rank, world_size=5) for rank in range(5)]
    for _ in range(4):
        seen += [row for rank in ranks for row in next(rank)["tokens"].tolist()]
    states = [json.dumps(rank.state_dict()) for rank in ranks]
    assert len(set(states)) == 1
    ranks = [SampleIterator(blend, 3, rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        next(rank)  # what was done before does not matter
        rank.load_state_dict(json.loads(states[0]))
        assert rank.consumed_samples == 40
    for batches in zip(*ranks, strict=True):
        seen += [row for batch in batches for row in batch["tokens"].tolist()]
    assert seen == [blend[number]["tokens"].tolist() for number in range(196)]


def test_a_state_of_other_samples_is_refused(blend: BlendedDataset) -> None:
    state = SampleIterator(blend, 2).state_dict()
    other = BlendedDataset(blend.datasets, [0.36, 0.64], 200)
    with pytest.raises(ResumeError, match=f"{blend.fingerprint}.*{other.fingerprint}"):
        SampleIterator(other, 2).load_state_dict(state)
    for nothing in (
        {},
        {"consumed_samples": 0},
        {**state, "consumed_samples": -1},
        {**state, "consumed_samples": "1"},
    ):
        with pytest.raises(ResumeError):
            SampleIterator(blend, 2).load_state_dict(nothing)
    longer = BlendedDataset(blend.datasets, [0.35, 0.65], 999)
    SampleIterator(longer, 2).load_state_dict(state)
