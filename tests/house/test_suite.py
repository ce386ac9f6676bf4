"""What holds for every test: tests/conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LEAVES_A_PROCESS = """
import subprocess, sys
import pytest

def test_first():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    {ends}

def test_second():
    for _ in range(3):
        [[] for _ in range(100_000)]  # enough for a collection
"""


def test_a_process_left_open_fails_its_own_test(tmp_path: Path) -> None:
    names = []
    for ends in ("pytest.skip()", "assert not process", "process.me = process"):
        names.append(f"test_{len(names)}.py")
        (tmp_path / names[-1]).write_text(LEAVES_A_PROCESS.format(ends=ends))
    words = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "conftest", "-q", "-rA"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", *names],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name in names:
        assert f"ERROR {name}::test_first" in done.stdout, done.stdout + done.stderr
        assert f"PASSED {name}::test_second" in done.stdout
    assert done.stdout.count("ResourceWarning: subprocess") >= len(names)
