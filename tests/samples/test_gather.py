"""Gathered batches equal a slow twin, and an index that lies is an error, never other tokens."""

from __future__ import annotations

import re
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from support.gather_twin import same, stacked, twin_sample
from support.indexed_twin import CODES, Plain, write_plainly
from support.samples_twin import some_lengths, write_dataset

from tokpack import BlendedDataset, GPTDataset, _core
from tokpack.dataset.merge import merge
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.samples.orders.rules import FLAVOURS

if TYPE_CHECKING:
    from pathlib import Path

EOD = 3  # one of the tokens 0 to 5 of the datasets made here
LIMITS = {"B": (0, 255), "b": (-128, 127), "h": (-(2**15), 2**15 - 1), "H": (0, 2**16 - 1)}


def write(prefix: Path, lengths: list[int], letter: str, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    sequences = [random.integers(0, 6, length).tolist() for length in lengths]
    if sequences and sequences[0]:
        sequences[0][0] = LIMITS.get(letter, (-(2**31), 2**31 - 1))[seed % 2]
    write_plainly(prefix, Plain(letter, sequences, list(range(len(sequences) + 1))))
    return sequences


options = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["stateless", "stateless", *FLAVOURS]),
        "seq_length": st.integers(1, 70),
        "add_extra_token": st.booleans(),
        "drop_last": st.booleans(),
        "eod_mask_loss": st.booleans(),
        "reset_position_ids": st.booleans(),
        "cut": st.sampled_from(["", "document_boundaries", "reset_attention_mask"]),
        "split": st.sampled_from([None, "1,1", "8,1,1"]),
        "split_index": st.integers(0, 1),
        "epochs": st.sampled_from([None, 3]),
    }
)


datasets = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.one_of(st.just(0), st.integers(0, 90)), min_size=1, max_size=60),
        "letter": st.sampled_from(sorted(CODES)),
        "seed": st.integers(0, 99),
        "virtual": st.booleans(),
    }
)


def make(folder: Path, kind: dict[str, Any]) -> tuple[Path, list[list[int]]]:
    """A dataset, in two pieces where it is virtual, and its sequences."""
    lengths, half = kind["lengths"], len(kind["lengths"]) // 2
    if not kind["virtual"]:
        return folder / "0", write(folder / "0", lengths, kind["letter"], kind["seed"])
    sequences = []
    for number, part in enumerate((lengths[:half], lengths[half:])):
        sequences += write(folder / str(number), part, kind["letter"], kind["seed"] + number)
    merge([str(folder / "0"), str(folder / "1")], str(folder / "virtual"), virtual=True)
    return folder / "virtual", sequences


@settings(max_examples=60, deadline=None)
@given(kind=datasets, chosen=options, picks=st.lists(st.integers(0, 10**6), max_size=12))
def test_samples_are_those_of_the_twin(
    tmp_path_factory: pytest.TempPathFactory,
    kind: dict[str, Any],
    chosen: dict[str, Any],
    picks: list[int],
) -> None:
    prefix, sequences = make(tmp_path_factory.mktemp("gather"), kind)
    chosen = {**chosen, "eod_id": EOD}
    if cut := chosen.pop("cut"):
        chosen[cut] = True
    if chosen["order"] == "stateless":
        chosen["drop_last"] = True
    try:
        dataset = GPTDataset(prefix, **chosen)
    except (UsageError, InputError):  # too few tokens
        reject()
    numbers = [pick % len(dataset) for pick in picks]
    expected = [twin_sample(dataset, sequences, number, **chosen) for number in numbers]
    for number, sample in zip(numbers, expected, strict=True):
        assert same(dataset[number], sample)
    assert all(map(same, dataset.__getitems__(numbers), expected))
    if numbers:
        assert same(dataset.batch(numbers), stacked(expected))
        assert same(dataset.batch(np.array(numbers)), stacked(expected))
    assert dataset.batch([])["tokens"].shape == (0, chosen["seq_length"])


@pytest.mark.parametrize("order", ["stateless", "megatron", "microsoft"])
@pytest.mark.parametrize("size", [1, 5, 64])
def test_large_batches_are_their_samples(tmp_path: Path, order: str, size: int) -> None:
    sequences = write_dataset(tmp_path / "data", some_lengths(900, longest=300))
    chosen = {"order": order, "document_boundaries": True, "split": "1,2", "split_index": 1}
    dataset = GPTDataset(tmp_path / "data", 257, epochs=2, **chosen)
    held = []
    for begin in range(0, len(dataset) - size, size):
        numbers = range(begin, begin + size)
        batch = dataset.batch(numbers)
        expected = stacked([twin_sample(dataset, sequences, k, **chosen) for k in numbers])
        assert same(batch, expected)
        held.append((batch, expected))
    assert all(same(batch, expected) for batch, expected in held)  # memory in use is left alone


def test_memory_is_used_again_when_nobody_holds_it(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(900, longest=300))
    dataset = GPTDataset(tmp_path / "data", 256)
    addresses = {dataset.batch(range(k, k + 64))["tokens"].ctypes.data for k in range(40)}
    assert len(addresses) <= 2
    kept = [dataset.batch(range(64))["tokens"][3, 5:9] for _ in range(20)]  # parts hold the whole
    assert len({array.ctypes.data for array in kept}) == 20


def test_threads_gather_the_same(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(900, longest=300))
    dataset = GPTDataset(tmp_path / "data", 64, epochs=9)
    expected = [dataset.batch(range(k, k + 16)) for k in range(0, 4000, 16)]
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in [*range(first, 250), *range(first)]:
            if not same(dataset.batch(range(16 * number, 16 * number + 16)), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(60 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_blends_give_batches_too(tmp_path: Path) -> None:
    datasets = []
    for number in range(3):
        write_dataset(tmp_path / str(number), some_lengths(60, number), 10_000 * number + 1)
        datasets.append(GPTDataset(tmp_path / str(number), 24, document_boundaries=number < 3))
    inner = BlendedDataset(datasets[:2], [1, 2], 500)
    blend = BlendedDataset([inner, datasets[2]], [0.7, 0.3], 400)
    for numbers in ([], [0], [399, 7, 7, 0, 250], range(100, 164)):
        samples = blend.__getitems__(numbers)
        assert all(same(s, blend[k]) for s, k in zip(samples, numbers, strict=True))
        if len(numbers):
            assert same(blend.batch(numbers), stacked([blend[k] for k in numbers]))
    with pytest.raises(IndexError):
        blend.__getitems__([3, 400])


@pytest.mark.parametrize("order", ["stateless", "megatron"])
def test_samples_that_are_not_there(tmp_path: Path, order: str) -> None:
    write_dataset(tmp_path / "data", [100, 100])
    dataset = GPTDataset(tmp_path / "data", 9, order=order)
    count = len(dataset)
    for numbers in ([count], [0, count], [-1 - count, 0]):
        with pytest.raises(IndexError):
            dataset.__getitems__(numbers)
    for numbers in ([-1], [3, -1]):
        with pytest.raises(IndexError):
            dataset.batch(numbers)


def change(prefix: Path, sequence: int, what: str, value: int, count: int) -> None:
    """Overwrite an entry of an index."""
    at, form = (
        (34 + 4 * sequence, "<i") if what == "length" else (34 + 4 * count + 8 * sequence, "<q")
    )
    with open(f"{prefix}.idx", "r+b") as file:
        file.seek(at)
        file.write(struct.pack(form, value))


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("pointer", 4 * 10**6),
        ("pointer", -8),
        ("pointer", 2**63 - 1),
        ("pointer", -(2**63)),
        ("pointer", 804),
        ("pointer", 801),
        ("length", 100_000),
        ("length", 101),
        ("length", 99),
    ],
)
@pytest.mark.parametrize("order", ["stateless", "megatron"])
@pytest.mark.parametrize("virtual", [False, True])
def test_an_index_that_lies_is_an_error(
    tmp_path: Path, order: str, what: str, value: int, virtual: bool
) -> None:
    write_dataset(tmp_path / "data", [100] * 10)
    prefix = tmp_path / "data"
    if virtual:
        write_dataset(tmp_path / "other", [5])
        prefix = tmp_path / "virtual"
        merge([str(tmp_path / "other"), str(tmp_path / "data")], str(prefix), virtual=True)
    change(tmp_path / "data", 2, what, value, 10)
    dataset = GPTDataset(prefix, 24, order=order)
    refused = 0
    for number in range(min(len(dataset), 50)):
        sample, problem = attempt(dataset, number)
        if sample is None:
            assert re.search("data.idx: byte|does not fit", problem)
            refused += 1
        else:
            assert 0 < sample["tokens"].min() <= sample["labels"].max() <= 1000
    assert refused
    with pytest.raises(FormatError):
        dataset.batch(range(min(len(dataset), 50)))


def attempt(dataset: GPTDataset, number: int) -> tuple[dict[str, Any] | None, str]:
    try:
        return dataset[number], ""
    except FormatError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([10, 0, 5], "tokens 0 to 5 of sequence 10, which does not exist|sequence 10 of 10"),
        ([-1, 0, 5], "sequence -1, which does not exist"),
        ([3, 96, 5], "tokens 96 to 101 of sequence 3, which has 100 tokens"),
        ([3, -1, 5], "tokens -1 to 4 of sequence 3, which has 100 tokens"),
        ([3, 101, 0], "tokens 101 to 101 of sequence 3"),
        ([2**62, 0, 5], "sequence"),
        ([3, 2**63 - 1, 5], "sequence 3"),
        ([3, 0, 26], "a row of 26 tokens where 25 fit"),
        ([3, 0, -1], "a row of -1 tokens"),
    ],
)
@pytest.mark.parametrize("virtual", [False, True])
def test_an_order_that_lies_is_an_error(
    tmp_path: Path, row: list[int], message: str, virtual: bool
) -> None:
    if virtual:
        for number in range(2):
            write_dataset(tmp_path / str(number), [100] * 5)
        parts = [str(tmp_path / str(number)) for number in range(2)]
        merge(parts, str(tmp_path / "data"), virtual=True)
    else:
        write_dataset(tmp_path / "data", [100] * 10)
    dataset = GPTDataset(tmp_path / "data", 24)
    rows = np.array([[0, 0, 1], row], np.int64)
    text = np.empty((1, 25), np.int64)
    one = np.array([2]), np.array([0])
    with pytest.raises(FormatError, match=message.replace("25 fit", "24 fit")):
        dataset._gatherer.fill(text, rows, *one)


def test_listed_samples_that_lie_are_an_error(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [100] * 10)
    for name, value in (("document_index", 10), ("sample_index", 99), ("shuffle_index", 10**6)):
        dataset = GPTDataset(tmp_path / "data", 24, order="megatron")
        array = getattr(dataset._order, name).copy()
        array[3] = value
        setattr(dataset._order, name, array)
        with pytest.raises(FormatError, match=r"\border megatron\b.*\bsample \d+ "):
            dataset.batch(range(len(dataset)))


def test_the_core_refuses_arrays_of_other_shapes() -> None:
    tokens = np.arange(10, dtype=np.uint16)
    pointers, lengths = np.array([0, 8]), np.array([4, 6], np.int32)
    for wrong in (tokens.astype(np.float32), tokens.astype(np.uint32), tokens[::2], tokens[None]):
        with pytest.raises(ValueError, match=rf"\btokens of {wrong.dtype}:"):
            _core.TokenFile(wrong, pointers, lengths)
    with pytest.raises(ValueError, match=r"\bpointers and lengths\b"):
        _core.TokenFile(tokens, pointers[:1], lengths)
    file = _core.TokenFile(tokens, pointers, lengths)
    rows, one = np.array([[1, 2, 3]]), np.array([1])
    text = np.zeros((1, 4), np.int64)
    assert file.gather_samples(rows, one, one - 1, text) == -1
    assert text.tolist() == [[6, 7, 8, 0]]
    read_only = text.copy()
    read_only.flags.writeable = False
    for bad in (
        text[0],
        text[:, ::2],
        text.astype(np.int32),
        read_only,
        np.empty((1, 0), np.int64),
    ):
        with pytest.raises((ValueError, TypeError)):
            file.gather_samples(rows, one, one - 1, bad)
    for bad_rows in (rows[0], rows[:, :2]):
        with pytest.raises(ValueError, match="rows"):
            file.gather_samples(bad_rows, one, one - 1, text)


def test_levels_agree() -> None:
    random = np.random.default_rng(5)
    for name in ("uint8", "int8", "int16", "uint16", "int32", "int64"):
        info = np.iinfo(name)
        tokens = random.integers(info.min, info.max, 500, name, endpoint=True)
        pointers = np.array([0, 499 * tokens.itemsize])
        results = []
        for level in _core.simd_levels():
            file = _core.TokenFile(tokens, pointers, np.array([499, 1], np.int32), level)
            text = np.empty((1, 500), np.int64)
            rows = np.array([[0, 3, 490], [1, 0, 1]])
            assert file.gather_samples(rows, np.array([2]), np.array([0]), text) == -1
            results.append(text)
        expected = np.concatenate([tokens[3:493], tokens[499:], np.zeros(9, name)])
        for text in results:
            assert np.array_equal(text[0], expected)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_the_core_looks_up_the_sequences_of_a_view(dtype: Any) -> None:
    tokens = np.arange(60, dtype=np.uint16)
    lengths = np.full(20, 3, np.int32)
    pointers = np.arange(20, dtype=np.int64) * 6
    numbers = np.array([19, 0, 5, 5, *range(20), 20, 2**32 - 1], dtype)
    file = _core.TokenFile(tokens, pointers, lengths, numbers=numbers)
    rows = np.array([[n, n % 3, 1] for n in range(24)])
    text = np.zeros((1, 24), np.int64)
    assert file.gather(rows, np.arange(24), text) == -1
    assert text[0].tolist() == [3 * int(numbers[n]) + n % 3 for n in range(24)]
    for wrong in (24, 25, 26, -1):  # numbers that the file does not have, and no number
        some = np.array([[0, 0, 1], [wrong, 0, 1]])
        assert file.gather(some, np.arange(2), text) == 1
    for bad in (numbers.astype(np.int64), numbers[::2], numbers.reshape(2, -1)):
        with pytest.raises(ValueError, match=r"^numbers "):
            _core.TokenFile(tokens, pointers, lengths, numbers=bad)
