"""The structure of the code, as tools/house.py measures it, stays within tests/house/budget.txt."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.places import ROOT

if TYPE_CHECKING:
    from types import ModuleType

ADVICE = (
    "Look for a way without it. Where there is none, run `python tools/house.py --write`, commit "
    "the budget together with what changed it, and say in the message why it has to grow. Run it "
    "too in a commit that makes figures smaller, so that they stay so"
)


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec
    assert spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


house = tool()


def module(code: str) -> Any:
    return house.Module("own", "", "", code, tuple(ast.walk(ast.parse(code))))


def check(figures: dict[str, int], budget: dict[str, int]) -> None:
    """Each figure has a line in the budget, and is equal to it or lower."""
    above = [
        f"{name}: {figure:,} are more than {budget[name]:,}"
        if name in budget
        else f"{name}: {figure:,}, which is new"
        for name, figure in figures.items()
        if figure > budget.get(name, -1)
    ]
    assert not above, "\n".join([*above, ADVICE])


def test_the_files_are_within_the_budget() -> None:
    check(house.static_figures(), house.read_budget())


@pytest.mark.slow
def test_the_journeys_are_within_the_budget() -> None:
    budget = house.read_budget()
    check(house.journeys(budget), budget)


def test_the_design_lists_every_door() -> None:
    """And nothing else as one: docs/design.md, "Doors"."""
    known = house.modules()
    doors = {
        other
        for name, module in known.items()
        for other in house.imports(module, known)
        if known[other].room not in ("", module.room)
    }
    text = (ROOT / "docs" / "design.md").read_text().partition("## Doors")[2]
    tables = re.findall(r"(?m)^\| (?:src/)?([\w/]+)/ \| .*\n.*\n((?:\|.*\n)+)", text)
    listed = {
        ".".join(filter(None, ["tokpack", *room.split("/"), name]))
        for room, rows in tables
        for name in re.findall(r"(?m)^\| (?:`(\w+)`|the room itself) \|", rows)
    }
    assert listed == doors


@pytest.mark.parametrize(
    ("code", "tokens"),
    [
        ("import os\nx = 1\n", 3),
        ('"""Says."""\nx = 1  # why\n', 3),
        ('def f():\n    """Says."""\n    return 1\n', 7),
        ("if x:\n    y()\n", 6),
    ],
)
def test_tokens(code: str, tokens: int) -> None:
    assert house.tokens(module(code)) == tokens


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from a.b import c", {"a.b"}),
        ("from a import b", {"a.b"}),
        ("def f():\n    import a.b", {"a.b"}),
        ('import_module("a.b")', {"a.b"}),
        ('importlib.import_module("a.b")', {"a.b"}),
        ('import_module(f"a.{b}")', set()),
        ("if TYPE_CHECKING:\n    import a.b\nelse:\n    import a", {"a"}),
        ("import other", set()),
        ("import own", set()),
    ],
)
def test_imports(code: str, found: set[str]) -> None:
    assert house.imports(module(code), {"a", "a.b", "own"}) == found


def test_circles() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, house.circles(graph))) == [["a", "b", "c"], ["d", "e"]]
