"""Weights that change on the way: the past stays, epochs stay whole, shares hold in a phase."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset
from tokpack.errors import ResumeError
from tokpack.samples import SampleIterator

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 8
NAMES = ("wiki", "owt", "code")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[GPTDataset]:
    folder: Path = tmp_path_factory.mktemp("data")
    for number, name in enumerate(NAMES):
        write_dataset(folder / name, some_lengths(40 * (number + 1), number), 100_000 * number)
    return [GPTDataset(folder / name, LENGTH) for name in NAMES]


def schedules(changes: int = 4) -> st.SearchStrategy[list[tuple[int, list[float]]]]:
    weights = st.lists(
        st.sampled_from((0.0, 0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0, 17.0)), min_size=3, max_size=3
    ).filter(any)
    firsts = st.lists(st.integers(1, 400), unique=True, max_size=changes).map(sorted)
    return (
        firsts.flatmap(lambda found: st.tuples(*(weights for _ in range(len(found) + 1))).map(
            lambda rows: list(zip((0, *found), rows, strict=True))
        ))
        .filter(lambda rows: all(any(w[i] for _, w in rows) for i in range(3)))
    )  # fmt: skip


def located(blend: BlendedDataset, size: int) -> list[tuple[int, int]]:
    return [blend.locate(number) for number in range(size)]


@settings(max_examples=60, deadline=None)
@given(schedule=schedules())
def test_a_schedule_is_its_segments_one_after_the_other(
    datasets: list[GPTDataset], schedule: list[tuple[int, list[float]]]
) -> None:
    size = 600
    blend = BlendedDataset(datasets, size=size, schedule=schedule)
    twin, given_so_far = [], [0, 0, 0]
    ends = [first for first, _ in schedule[1:]] + [size]
    for (first, weights), end in zip(schedule, ends, strict=True):
        active = [i for i in range(3) if weights[i]]
        own = BlendedDataset([datasets[i] for i in active], [weights[i] for i in active], size)
        total, before = math.fsum(weights), list(given_so_far)
        for number in range(end - first):
            place = active[own.locate(number)[0]]
            twin.append((place, given_so_far[place]))  # epochs go on across every change
            given_so_far[place] += 1
            for i in range(3):
                share = weights[i] / total * (number + 1)
                assert abs(given_so_far[i] - before[i] - share) < 1.5
            assert weights[place] > 0
        assert blend.counts(end) == given_so_far
    assert located(blend, size) == twin
    again = pickle.loads(pickle.dumps(blend))
    assert again.fingerprint == blend.fingerprint
    assert located(again, size) == twin


@settings(max_examples=60, deadline=None)
@given(schedule=schedules(), later=st.integers(0, 50), data=st.data())
def test_a_further_change_touches_nothing_before_it(
    datasets: list[GPTDataset],
    schedule: list[tuple[int, list[float]]],
    later: int,
    data: st.DataObject,
) -> None:
    at = schedule[-1][0] + 1 + later
    weights = data.draw(st.lists(st.floats(0.01, 9), min_size=3, max_size=3))
    blend = BlendedDataset(datasets, size=900, schedule=schedule)
    longer = BlendedDataset(datasets, size=900, schedule=[*schedule, (at, weights)])
    assert located(longer, at) == located(blend, at)
    for consumed in (0, 1, at // 2, at - 1, at):
        assert longer.fingerprint_at(consumed) == blend.fingerprint_at(consumed)
    assert longer.fingerprint_at(at + 1) != blend.fingerprint_at(at + 1)
    assert longer.fingerprint != blend.fingerprint


def texts(batches: SampleIterator, count: int) -> list[Any]:
    return [next(batches)["tokens"].tolist() for _ in range(count)]


def test_a_run_goes_on_with_other_weights_and_another_dataset(
    datasets: list[GPTDataset],
) -> None:
    run = SampleIterator(BlendedDataset(datasets[:2], [0.35, 0.65], 500), 4)
    seen = texts(run, 25)
    state = run.state_dict()
    first, then = (0, [0.35, 0.65, 0]), (100, [0.1, 0.2, 0.7])
    changed = BlendedDataset(datasets, size=500, schedule=[first, then])
    resumed = SampleIterator(changed, 4)
    resumed.load_state_dict(state)
    seen += texts(resumed, 25)
    assert seen == texts(SampleIterator(changed, 4), 50)
    own = [changed.locate(number) for number in range(200)]
    alone = BlendedDataset(datasets[:1], [1], 500)
    joined = BlendedDataset(datasets[:2], size=500, schedule=[(0, [1, 0]), (100, [1, 1])])
    assert joined.fingerprint_at(100) == alone.fingerprint_at(100)
    for dataset in range(3):
        numbers = [k for i, k in own if i == dataset]
        assert numbers == list(range(len(numbers)))


def test_a_change_before_what_was_consumed_is_refused(datasets: list[GPTDataset]) -> None:
    run = SampleIterator(BlendedDataset(datasets[:2], [0.35, 0.65], 500), 4)
    texts(run, 25)
    for schedule in (
        [(0, [0.35, 0.65]), (99, [0.5, 0.5])],
        [(0, [0.35, 0.66]), (100, [0.5, 0.5])],
    ):
        other = BlendedDataset(datasets[:2], size=500, schedule=schedule)
        with pytest.raises(ResumeError, match=r" v2:\w+, .* v2:\w+ .*\bsample 100:"):
            SampleIterator(other, 4).load_state_dict(run.state_dict())


def test_one_segment_is_a_plain_blend(datasets: list[GPTDataset]) -> None:
    plain = BlendedDataset(datasets, [1, 2, 3], 300)
    other = BlendedDataset(datasets, size=300, schedule=[(0, [1, 2, 3])])
    assert located(other, 300) == located(plain, 300)
    assert other.fingerprint == plain.fingerprint == plain.fingerprint_at(10**9)
    assert plain.schedule == [(0, (1 / 6, 1 / 3, 1 / 2))]
    assert plain.weights == list(plain.schedule[0].shares)


def test_a_schedule_inside_a_blend(datasets: list[GPTDataset]) -> None:
    """The inner blend is asked for its own number of samples, not the outer one's."""
    wiki, owt, code = datasets

    def outer(*changes: tuple[int, list[float]]) -> BlendedDataset:
        inner = BlendedDataset([wiki, owt], size=500, schedule=[(0, [1.0, 1.0]), *changes])
        return BlendedDataset([inner, code], [0.5, 0.5], 500)

    plain, changed = outer(), outer((50, [1.0, 3.0]))
    assert plain.counts(100) == [50, 50]
    assert plain.fingerprint_at(100) == changed.fingerprint_at(100)
    assert plain.fingerprint_at(102) != changed.fingerprint_at(102)


def test_without_size_nothing_comes_twice(datasets: list[GPTDataset]) -> None:
    blend = BlendedDataset(datasets, schedule=[(0, [1, 1, 0]), (30, [0, 0, 1])])
    lengths = [len(dataset) for dataset in datasets]
    assert len(blend) == 30 + lengths[2]
    assert blend.counts(len(blend)) == [15, 15, lengths[2]]


def test_there_is_no_sample_before_the_first(datasets: list[GPTDataset]) -> None:
    blend = BlendedDataset(datasets, schedule=[(0, [1, 1, 1]), (9, [1, 1, 2])])
    with pytest.raises(IndexError):
        blend.locate(-1)
    assert np.sum(blend.counts(9)) == 9
