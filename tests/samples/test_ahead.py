"""A thread that gathers ahead: the same batches, errors where they belong, and no hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.samples_twin import some_lengths, write_dataset

from tokpack import GPTDataset
from tokpack.errors import FormatError, UsageError
from tokpack.samples import SampleIterator
from tokpack.samples.iterate import ahead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("tokpack-ahead")]


def test_no_more_than_asked_for_is_made_and_nothing_before() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            yield number

    stream = ahead(items(), 3)
    time.sleep(0.05)
    assert not made
    for number in range(5):
        assert next(stream) == number
        deadline = time.monotonic() + 60
        while len(made) < number + 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        assert len(made) == number + 4


def test_an_error_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise FormatError("broken")

    stream = ahead(items(), 5)
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(FormatError):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_the_thread_ends_with_its_iterator() -> None:
    stream = ahead(range(10**9), 3)
    next(stream)
    assert workers()
    del stream
    deadline = time.monotonic() + 60
    while workers() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not workers()


def test_batches_and_states_are_those_without(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(200))
    dataset = GPTDataset(tmp_path / "data", 16)
    plain, early = SampleIterator(dataset, 4), SampleIterator(dataset, 4, prefetch=3)
    for _ in range(9):
        one, other = next(plain), next(early)
        assert all(np.array_equal(one[name], other[name]) for name in one)
        assert plain.state_dict() == early.state_dict()
    early.load_state_dict({**plain.state_dict(), "consumed_samples": 12})
    assert np.array_equal(next(early)["tokens"][0], dataset[12]["tokens"])
    assert sum(1 for _ in early) == len(dataset) // 4 - 4
    with pytest.raises(StopIteration):
        next(early)
    with pytest.raises(UsageError, match=r"^prefetch .*-1\b"):
        SampleIterator(dataset, 4, prefetch=-1)


def test_a_program_that_stops_early_exits(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", some_lengths(200))
    code = (
        "import sys, tokpack; from tokpack.samples import SampleIterator;"
        "i = SampleIterator(tokpack.GPTDataset(sys.argv[1], 16), 2, prefetch=50);"
        "print(next(i)['tokens'].shape)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("(2, 16)\n", "")
