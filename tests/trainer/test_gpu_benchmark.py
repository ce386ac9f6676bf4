"""benchmarks/gpu.py runs to its end in toy sizes, so that it does so where a GPU is borrowed."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.parallel_tools import in_processes

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def run_toy(_: None) -> tuple[int, str]:
    """Its exit code, and what it prints."""
    sys.path.insert(0, BENCHMARKS)
    import gpu

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = gpu.main(["--toy"])
    return code, printed.getvalue()


@pytest.mark.slow
def test_it_ends_with_tables() -> None:
    (found,) = in_processes([(1, run_toy, None)])
    code, printed = found[0]
    assert code == 0, printed
    assert printed.endswith("wrong: 0\n")
    for words in ("\nparity\n", "bf16, Muon ", "\nsteady\n", "\nsizes\n", "\nprofile\n"):
        assert words in printed
