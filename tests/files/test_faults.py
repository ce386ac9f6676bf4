"""A short round of faults at the calls of every command that writes (``make torture``: all)."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torture.faults import CASES, Case, Server, compiler, make_inputs, memory, rounds, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Path]]:
    """The process that runs commands with faults, and a folder with the inputs of these."""
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory(prefix="tokpack-faults-", dir=memory()) as name:
        folder = Path(name)
        make_inputs(folder / "inputs")
        with Server(folder, "pyarrow.parquet") as server:
            yield server, folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_old_new_or_nothing(served: tuple[Server, Path], case: Case) -> None:
    server, folder = served
    some = sample(2, random.Random(case.name))
    assert rounds(server, case, folder / "case", folder / "inputs", some).total() >= len(case.kinds)
