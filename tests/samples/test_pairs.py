"""Pairs of documents: two samples that follow each other, in every order of asking."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import orders_twin as twin
from support.golden_orders import golden
from support.samples_twin import write_dataset, write_manifest

import tokpack
from tokpack import BlendedDataset, GPTDataset, MMapIndexedDatasetBuilder, open_blend
from tokpack.dataset import Manifest
from tokpack.errors import UsageError
from tokpack.samples import SampleIterator
from tokpack.samples.look import find
from tokpack.samples.orders.packing import PairOrder
from tokpack.samples.orders.rows import OrderInput

if TYPE_CHECKING:
    from pathlib import Path


def order_of(lengths: list[int], begin: int, end: int, seed: int = 7, **given: int) -> PairOrder:
    array = np.array(lengths, np.int32)
    shape = {"seq_length": 10, "extra": 1, "fingerprint": 9, **given}
    return PairOrder(OrderInput(array, begin, end, seed=seed, **shape))


@given(st.lists(st.integers(0, 30), min_size=2, max_size=60), st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_equals_its_twin(lengths: list[int], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(begin, len(lengths)))
    seed = data.draw(st.integers(0, 2**64 - 1))
    expected = [twin.epoch_of_pairs(begin, end, (seed, 9, begin, end, e)) for e in range(2)]
    if not expected[0]:
        with pytest.raises(UsageError, match=rf"^sequences {begin} to {end}: .*\bpair\b"):
            order_of(lengths, begin, end, seed)
        return
    order = order_of(lengths, begin, end, seed)
    rows = [[s, 0, min(lengths[s], 11)] for epoch in expected for s in epoch]
    numbers = data.draw(st.permutations(range(len(rows))))
    found, counts = order.locate_many(numbers)
    assert counts.tolist() == [1] * len(rows)
    assert found.tolist() == [rows[number] for number in numbers]
    assert [order.locate(number).tolist() for number in range(len(rows))] == [[r] for r in rows]
    inside = range(begin, data.draw(st.integers(begin, len(lengths))))
    chosen = [k for k, (s, _, count) in enumerate(rows) if s in inside and count]
    assert list(order.find(inside, len(rows))) == chosen
    kept = [row[2] for row in rows[: order.samples]]
    stats = order.stats
    assert (stats.placed, stats.labels) == (sum(kept), sum(max(k - 1, 0) for k in kept))
    used = [lengths[row[0]] for row in rows[: order.samples]]
    assert stats.tokens - stats.left_out == stats.placed == 11 * len(used) - stats.padding
    assert stats.tokens == sum(used)
    assert stats.cut == sum(length > 11 for length in used)
    assert stats.short == sum(length < 2 for length in used)


def test_pairs_that_fill_their_samples_to_the_last_token() -> None:
    """Samples of 11 tokens; the pairs begin at sequence 2, and end with 7."""
    order = order_of([9, 9, 11, 12, 1, 0, 2, 11, 9], 1, 9)
    samples = order.stats.samples
    assert (samples, order.stats.cut, order.stats.short, order.stats.labels) == (6, 1, 2, 31)
    assert (order.stats.left_out, order.stats.padding) == (1, 30)
    sequences = [int(order.locate(number)[0, 0]) for number in range(samples)]
    for asked in (range(9), range(1, 3), range(2, 4), range(4, 6), range(7, 9), range(8, 9)):
        held = [n for n, sequence in enumerate(sequences) if sequence in asked and sequence != 5]
        assert list(order.find(asked, samples)) == held
    rows, counts = order.locate_many([])
    assert (rows.shape, counts.shape) == ((0, 3), (0,))


@pytest.mark.promises
def test_values_never_change() -> None:
    for words, first, values in golden("pairs"):
        if int(words[3]) > 10**6:
            continue  # for the core alone: as many lengths are too much here
        seed, fingerprint, begin, end, epoch = map(int, words)
        order = order_of([5] * end, begin, end, seed, fingerprint=fingerprint)
        numbers = [epoch * order.samples + first + i for i in range(len(values))]
        assert order.locate_many(numbers)[0][:, 0].tolist() == values


def test_pairs_are_adjacent_whoever_asks(tmp_path: Path) -> None:
    sequences = write_dataset(tmp_path / "prefs", [3 + k * 7 % 25 for k in range(60)])
    dataset = GPTDataset(tmp_path / "prefs", 16, packing="pairs", split="7,3", epochs=2)
    assert len(dataset) == 2 * dataset.samples_per_epoch == 2 * dataset._order.samples
    batch = dataset.batch(range(len(dataset)))
    firsts = [int(row[0]) for row in batch["tokens"]]
    place = {sequence[0]: number for number, sequence in enumerate(sequences)}
    for chosen, rejected in zip(firsts[::2], firsts[1::2], strict=True):
        assert place[chosen] % 2 == 0
        assert place[rejected] == place[chosen] + 1
    assert {place[first] for first in firsts} == set(range(42))
    assert GPTDataset(tmp_path / "prefs", 16, packing="document").fingerprint != dataset.fingerprint
    again = pickle.loads(pickle.dumps(dataset))
    for number in (0, 5, 83):
        length = len(sequences[place[firsts[number]]])
        sample = again[number]
        assert sample["loss_mask"].tolist() == [1.0] * min(length - 1, 16) + [0.0] * (17 - length)
        assert np.array_equal(sample["tokens"], batch["tokens"][number])
    iterator = SampleIterator(dataset, 2, world_size=2, rank=1)
    next(iterator)
    state = iterator.state_dict()
    resumed = SampleIterator(dataset, 4)
    resumed.load_state_dict(state)
    assert np.array_equal(next(resumed)["tokens"][2:], next(iterator)["tokens"])
    assert list(find(dataset, dataset.path_prefix, 4, 42)) == [firsts.index(sequences[4][0])]


@pytest.mark.parametrize("on_view", [False, True])
def test_answers_that_are_cut_off_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_view: bool
) -> None:
    """Those whose prompt alone fills the sample: no label of them is trained."""
    lengths = [(20, 12), (5, 3), (20, 16), (17, 16), (30, 2), (18, 17)]  # tokens, untrained ones
    path = tmp_path / "prefs.bin"
    with MMapIndexedDatasetBuilder(path, np.int32, tracks=["mask"]) as builder:
        for number, (count, prompt) in enumerate(lengths):
            mask = [0] * prompt + [1] * (count - prompt)
            builder.add_item(np.arange(count) + 100 * number, mask=mask)
            builder.end_document()
        builder.finalize(tmp_path / "prefs.idx")
    manifest = Manifest.load(tmp_path / "prefs")
    replace(manifest, pairs=True).save(tmp_path / "prefs")
    name = "prefs"
    if on_view:
        tokpack.select(tmp_path / "prefs", tmp_path / "view", first=4)
        name, lengths = "view", lengths[:4]
    dataset = GPTDataset(tmp_path / name, 16, packing="pairs")
    samples = dataset.batch(range(len(dataset)))
    without = int(np.count_nonzero(samples["loss_mask"].sum(axis=1) == 0))
    assert dataset.packing_stats is not None
    assert dataset.packing_stats.untrained == without == (0 if on_view else 1)
    assert ("have no trained token" in caplog.text) is (without > 0)
    caplog.clear()
    shorter = GPTDataset(tmp_path / name, 15, packing="pairs")
    assert shorter.packing_stats is not None
    samples = shorter.batch(range(len(shorter)))
    without = int(np.count_nonzero(samples["loss_mask"].sum(axis=1) == 0))
    assert shorter.packing_stats.untrained == without > 0
    assert f"{without} of {len(lengths)} answers" in caplog.text
    everything = GPTDataset(tmp_path / name, 15, packing="pairs", loss="all")
    assert everything.packing_stats is not None
    assert everything.packing_stats.untrained == 0


def test_pairs_without_a_manifest_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_dataset(tmp_path / "prefs", [20] * 10)
    assert len(GPTDataset(tmp_path / "prefs", 16, packing="pairs")) == 10
    assert "no manifest says that it has pairs" in caplog.text
    write_manifest(tmp_path / "prefs", "gpt2", "0" * 64)
    assert len(GPTDataset(tmp_path / "prefs", 16, packing="pairs")) == 10
    manifest = Manifest.load(tmp_path / "prefs")
    replace(manifest, options={"keys": ["text"]}).save(tmp_path / "prefs")
    with pytest.raises(UsageError, match="packing='pairs'"):
        GPTDataset(tmp_path / "prefs", 16, packing="pairs")


def test_blends_keep_pairs_together(tmp_path: Path) -> None:
    for name, count, first in (("a", 60, 1), ("b", 20, 10_000)):
        write_dataset(tmp_path / name, [3 + k * 7 % 15 for k in range(count)], first)
    spec: dict[str, Any] = {"datasets": {str(tmp_path / "a"): 3, str(tmp_path / "b"): 1}}
    spec |= {"seq_length": 16, "packing": "pairs"}
    blend = open_blend(spec).train
    assert isinstance(blend, BlendedDataset)
    assert len(blend) == 80
    for number in range(0, 80, 2):
        (one, index), (other, following) = blend.locate(number), blend.locate(number + 1)
        assert (one, index % 2, following) == (other, 0, index + 1)
        assert blend.position(one, following) == number + 1
    for size in range(81):
        expected = [sum(blend.locate(n)[0] == which for n in range(size)) for which in (0, 1)]
        assert blend.counts(size) == expected
    for (before, _), (after, _) in pairwise(map(blend.locate, range(1, 79, 2))):
        assert {before, after} <= {0, 1}
    changed = open_blend({**spec, "schedule": {10: {str(tmp_path / "b"): 1}}})
    assert {changed.train.locate(k)[0] for k in range(10, 20)} == {1}


def test_a_plan_warns_of_pairs_that_are_read_as_text(tmp_path: Path) -> None:
    write_dataset(tmp_path / "prefs", [20] * 10)
    write_manifest(tmp_path / "prefs", "gpt2", "0" * 64)
    path = tmp_path / "prefs.json"
    spec: dict[str, Any] = {"datasets": str(path.with_suffix("")), "seq_length": 16}
    assert not any("pairs" in one for one in open_blend(spec).plan.warnings(4))
    path.write_text(path.read_text().replace('"options": {}', '"options": {"pairs": ["a", "b"]}'))
    said = " ".join(open_blend(spec).plan.warnings(4))
    assert "are pairs of a chosen and a rejected answer" in said
    assert said.isprintable()
    paired = open_blend(spec, packing="pairs")
    assert not any("pairs" in one for one in paired.plan.warnings(4))
    assert len(paired.train) == 10
