"""The house does not grow unnoticed: budget.txt has the lines of each room, and of some words.

No file has over 400 lines.

A room that needs more lines gets a larger number there, where whoever reviews the change sees it.
``TOKPACK_WRITE_BUDGET=1 make test ROOM=house`` writes the numbers of now.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from support.places import ROOT

BUDGET = Path(__file__).with_name("budget.txt")
# Participles that stand for nouns: tokens, header and entries say more than what was found or made.
WORDS = ("found", "known", "own", "given", "made")
MOST_LINES = 400  # of a file
SLACK = 40  # lines that a room may shrink by before its number must follow


def counted() -> dict[str, int]:
    """Lines of Python of each room, and how many lines have each of the words."""
    lines: Counter[str] = Counter()
    for path in (ROOT / "src").rglob("*.py"):
        room = path.relative_to(ROOT / "src").parts[:-1]
        text = path.read_text(encoding="utf-8").splitlines()
        lines["/".join(room[:2])] += len(text)
        for line in text:
            lines.update(f"the word {word}" for word in WORDS if re.search(rf"\b{word}\b", line))
    return dict(sorted(lines.items()))


def test_no_room_grows_unnoticed() -> None:
    budget = {
        name: int(number)
        for name, _, number in (
            line.rpartition(" ") for line in BUDGET.read_text(encoding="utf-8").splitlines()
        )
    }
    now = counted()
    if os.environ.get("TOKPACK_WRITE_BUDGET"):
        rows = (f"{name} {number}\n" for name, number in now.items())
        BUDGET.write_text("".join(rows), encoding="utf-8")
        budget = now
    assert now.keys() == budget.keys()
    grown = {name: (budget[name], count) for name, count in now.items() if count > budget[name]}
    assert not grown, "larger than budget.txt says"
    shrunk = {name: count for name, count in now.items() if count < budget[name] - SLACK}
    assert not shrunk, "smaller than budget.txt says: lower the numbers"


def test_no_file_is_long() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("src", "tests", "benchmarks", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not {path: count for path, count in lengths.items() if count > MOST_LINES}
