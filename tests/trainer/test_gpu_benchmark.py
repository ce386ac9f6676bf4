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


def run_toy(folder: str) -> tuple[int, str]:
    """Its exit code, and what it prints."""
    sys.path.insert(0, BENCHMARKS)
    import gpu

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = gpu.main(["-o", folder, "--toy"])
    return code, said.getvalue()


@pytest.mark.slow
def test_it_ends_with_a_report(tmp_path: Path) -> None:
    (found,) = in_processes([(1, run_toy, str(tmp_path / "report"))])
    code, said = found[0]
    assert code == 0, said
    assert said.endswith("report.md; wrong: 0\n")
    report = (tmp_path / "report/report.md").read_text()
    for words in ("## Parity", "| bf16, Muon |", "## Waiting", "## Compilation", "## Sizes"):
        assert words in report
    assert "- What limits toy: of a step of " in report
    pytest.importorskip("matplotlib")
    assert (tmp_path / "report/report.png").stat().st_size > 5000
