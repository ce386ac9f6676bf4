"""GPTDataset: every sample is the right tokens, and every wrong request is named."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
from support.samples_twin import some_lengths, write_dataset, write_manifest

from tokpack import GPTDataset, open_blend
from tokpack.samples import load_blend, plan_blend
from tokpack.samples.blend.spec import BlendSpec
from tokpack.samples.orders.rules import FLAVOURS, OrderName, PackingName
from tokpack.samples.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 16


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", some_lengths(200))
    return tmp_path / "data"


def follows(tokens: list[int], sequences: list[list[int]], boundaries: list[int]) -> bool:
    """Whether tokens are pieces of sequences: the first a tail, the last a head, others whole."""
    pieces = [tokens[a:b] for a, b in pairwise(boundaries)]
    for number, piece in enumerate(pieces):
        whole = next(s for s in sequences if piece[0] in s)
        first, last = whole.index(piece[0]), whole.index(piece[0]) + len(piece)
        if whole[first:last] != piece:
            return False
        if (number > 0 and first) or (number + 1 < len(pieces) and last != len(whole)):
            return False
    return True


@pytest.mark.promises
@pytest.mark.parametrize("extra", [True, False])
def test_an_epoch_has_every_token_once(tmp_path: Path, extra: bool) -> None:
    sequences = write_dataset(tmp_path / "data", some_lengths(200))
    total = sum(map(len, sequences))
    dataset = GPTDataset(
        tmp_path / "data", LENGTH, add_extra_token=extra, epochs=3, document_boundaries=True
    )
    per_epoch = (total - extra) // LENGTH
    assert len(dataset) == 3 * per_epoch == 3 * dataset.samples_per_epoch
    assert dataset.tokens == total
    orders = []
    for epoch in range(3):
        seen: Counter[int] = Counter()
        for number in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            sample = dataset[number]
            tokens = sample["tokens"].tolist()
            seen.update(tokens)
            edges = sorted(set(sample["cu_seqlens"].tolist()))
            assert follows(tokens, sequences, edges)
        assert max(seen.values()) == 1
        assert total - len(seen) < LENGTH + extra
        orders.append(list(seen))
    assert orders[0] != orders[1] != orders[2]


def test_the_shape_of_a_sample(prefix: Path) -> None:
    dataset = GPTDataset(prefix, LENGTH, document_boundaries=True)
    for number in range(len(dataset)):
        sample = dataset[number]
        kinds = {name: (str(array.dtype), array.shape) for name, array in sample.items()}
        assert kinds == {
            "tokens": ("int64", (LENGTH,)),
            "labels": ("int64", (LENGTH,)),
            "loss_mask": ("float32", (LENGTH,)),
            "position_ids": ("int64", (LENGTH,)),
            "cu_seqlens": ("int32", (LENGTH + 1,)),
            "max_seqlen": ("int32", ()),
        }
        assert np.array_equal(sample["tokens"][1:], sample["labels"][:-1])
        assert sample["loss_mask"].all()
        edges = sample["cu_seqlens"]
        assert edges[0] == 0
        assert edges[-1] == LENGTH
        steps = np.diff(edges)
        inside = steps[: int(np.count_nonzero(edges < LENGTH))]
        assert inside.min() > 0
        assert inside.max() == sample["max_seqlen"]
        expected = [place for step in inside for place in range(step)]
        assert sample["position_ids"].tolist() == expected
    assert set(GPTDataset(prefix, LENGTH)[0]) == {"tokens", "labels", "loss_mask", "position_ids"}


def test_samples_do_not_share_memory(prefix: Path) -> None:
    dataset = GPTDataset(prefix, LENGTH)
    first, again = dataset[0], dataset[0]
    for array in first.values():
        array[:] = -1
    assert all((array != -1).all() for array in again.values())
    assert all((array != -1).all() for array in dataset[0].values())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.promises
def test_sample_k_depends_on_nothing_but_the_settings(prefix: Path, tmp_path: Path) -> None:
    dataset = GPTDataset(prefix, LENGTH, seed=7)
    longer = GPTDataset(prefix, LENGTH, seed=7, num_samples=10 * len(dataset))
    assert len(longer) == 10 * len(dataset)
    assert dataset.fingerprint == longer.fingerprint
    backwards = {k: longer[k] for k in reversed(range(len(longer)))}
    for k in range(len(longer)):
        assert same(dataset.sample(k), backwards[k])
    for suffix in (".bin", ".idx"):
        (tmp_path / f"copy{suffix}").write_bytes((tmp_path / f"data{suffix}").read_bytes())
    assert GPTDataset(tmp_path / "copy", LENGTH, seed=7).fingerprint == dataset.fingerprint
    for other in (
        GPTDataset(prefix, LENGTH, seed=8),
        GPTDataset(prefix, LENGTH, seed=7, split="0:0.99"),
        GPTDataset(prefix, LENGTH, seed=7, add_extra_token=False),
    ):
        assert other.fingerprint != dataset.fingerprint
        assert not all(same(dataset[k], other[k]) for k in range(10))
    megatron = [GPTDataset(prefix, LENGTH, order="megatron", pad_id=pad) for pad in (None, 3)]
    assert megatron[0].fingerprint != megatron[1].fingerprint


def test_index_negative_index_and_beyond(prefix: Path) -> None:
    dataset = GPTDataset(prefix, LENGTH)
    count = len(dataset)
    assert same(dataset[-1], dataset[count - 1])
    assert same(dataset[np.int32(3)], dataset[3])
    for beyond in (count, -count - 1):
        with pytest.raises(IndexError):
            dataset[beyond]
    with pytest.raises(IndexError):
        dataset.sample(-1)


EOD = 5


def test_eod_comes_from_the_manifest(prefix: Path) -> None:
    options = {"eod_mask_loss": True, "reset_position_ids": True}
    write_manifest(prefix, "gpt2", "ab", eod_id=EOD)
    found, given_id = GPTDataset(prefix, LENGTH, **options), GPTDataset(prefix, LENGTH, eod_id=EOD)
    number = next(k for k in range(len(found)) if EOD in found[k]["tokens"][:-1])
    place = found[number]["tokens"].tolist().index(EOD)
    assert found[number]["loss_mask"].tolist() == [float(k != place) for k in range(LENGTH)]
    assert found[number]["position_ids"][place + 1] == 0
    assert given_id[number]["loss_mask"].all()
    other = next(sample for sample in found if 9 in sample["tokens"][:-1])["tokens"]
    chosen = GPTDataset(prefix, LENGTH, eod_id=9, **options)
    sample = next(sample for sample in chosen if np.array_equal(sample["tokens"], other))
    assert sample["loss_mask"].tolist() == [float(token != 9) for token in other]


def test_a_pickle_is_small_and_gives_the_same(prefix: Path) -> None:
    dataset = GPTDataset(prefix, LENGTH, seed=3, split="9,1", document_boundaries=True)
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert len(again) == len(dataset)
    assert all(same(dataset[k], again[k]) for k in range(0, len(dataset), 7))


def test_type_checkers_know_every_order() -> None:
    """The Literal types are those of the table of programs, and of GPTDataset's parameters."""
    assert set(get_args(OrderName)) == {"stateless", "stateless-blocks", *FLAVOURS}
    known = {"OrderName": OrderName, "PackingName": PackingName}
    parameters = inspect.signature(GPTDataset).parameters
    assert known[parameters["order"].annotation] == OrderName
    assert known[parameters["packing"].annotation] == PackingName


def test_the_options_are_said_in_one_record() -> None:
    """What inspect and help show, and the record: the same in all."""
    for record, without, functions in (
        (Settings, "seq_length", [GPTDataset]),
        (BlendSpec, "source", [plan_blend, load_blend, open_blend]),
    ):
        options = {one.name: one for one in fields(record) if one.name != without}
        for function in functions:
            parameters = inspect.signature(function).parameters
            for name, one in options.items():
                factory = one.default_factory is not MISSING
                assert factory or parameters[name].default == one.default
                assert factory or parameters[name].annotation == one.type
                assert f"- ``{name}``: {one.metadata['help']}" in str(function.__doc__)


def test_torch_is_not_loaded(prefix: Path) -> None:
    code = (
        "import sys, tokpack; tokpack.GPTDataset(sys.argv[1], 16)[0];"
        "print('torch' in sys.modules, 'tokpack.encoding' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(prefix)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "False"]
