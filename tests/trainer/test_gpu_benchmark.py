"""benchmarks/gpu.py runs to its end in toy sizes, so that it does so where a GPU is borrowed."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.parallel_tools import in_processes
from support.warm_python import warm_python

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def run_toy(command: list[str]) -> tuple[int, str]:
    """Its exit code, and what it prints; the ranks of layouts are run by the first word."""
    sys.path.insert(0, BENCHMARKS)
    import gpu

    sys.executable, *words = command
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = gpu.main(["--toy", *words])
    return code, printed.getvalue()


@pytest.mark.slow
def test_it_ends_with_tables() -> None:
    (found,) = in_processes([(1, run_toy, [sys.executable])])
    code, printed = found[0]
    assert code == 0, printed
    assert printed.endswith("wrong: 0\n")
    for words in ("\nparity\n", "bf16, Muon ", "\nsteady\n", "\nsizes\n", "\nprofile\n"):
        assert words in printed


@pytest.mark.slow
def test_layouts_of_several_processes_have_rows() -> None:
    python = str(warm_python() / "python")
    (found,) = in_processes([(1, run_toy, [python, "--gpus", "2"])])
    code, printed = found[0]
    assert code == 0, printed
    layouts = ("toy, ZeRO 1 ", "toy, tensor 2 ", "toy, pipeline 2 ")
    for words in ("\nlayouts\n", *layouts, "expected_mfu"):
        assert words in printed
    assert "failed" not in printed
