"""Which documents are looked at: ranges of numbers, samples, random ones."""

from __future__ import annotations

import pytest
from support.report_tools import run_json, sample_texts

from tokpack.dataset.overview import random_documents, ranges, sample_documents
from tokpack.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", [3]),
        ("-1", [9]),
        ("2:5", [2, 3, 4]),
        ("-2:", [8, 9]),
        (":2", [0, 1]),
        ("1,7, 4:6", [1, 7, 4, 5]),
        ("8:99", [8, 9]),
    ],
)
def test_ranges(text: str, expected: list[int]) -> None:
    assert [number for part in ranges(text, 10) for number in part] == expected


@pytest.mark.parametrize("text", ["10", "-11", "x", "", "1-3", "5:5", "20:30", "1:2:3"])
def test_wrong_ranges(text: str) -> None:
    with pytest.raises(UsageError):
        ranges(text, 10)


def test_ranges_on_the_command_line(prefix: str) -> None:
    count = len(sample_texts())

    def numbers(*arguments: str) -> list[int]:
        shown = run_json("inspect", prefix, *arguments)["documents"]
        return [entry["document"] for entry in shown]

    assert numbers("--doc", "-2:") == [count - 2, count - 1]
    assert numbers("--doc", "1", "--doc=4:6") == [1, 4, 5]
    assert numbers("--sample", "3") == [0, (count - 1) // 2, count - 1]
    assert numbers("--random", "4", "--seed", "7") == numbers("--random", "4", "--seed", "7")
    assert len(numbers("--random")) == 1


def test_samples() -> None:
    assert sample_documents(10, 3) == [0, 4, 9]
    assert sample_documents(2, 5) == [0, 1]
    assert sample_documents(7, 1) == [0]
    chosen = random_documents(1000, 50, seed=1)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 50
    assert chosen != random_documents(1000, 50, seed=2)
