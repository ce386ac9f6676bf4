"""The bar of ``progress=True``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import tokpack
from tokpack.progress import Progress, shown

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_bar_is_drawn_without_a_thread(capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    with shown(True) as show:
        assert show is not None
        show(Progress(stage="encode", done=5, total=10, seconds=1.0, tokens=1234))
        assert threading.active_count() == threads
        show(Progress(stage="sync", done=10, total=10, seconds=2.0, tokens=2345))
    out = capsys.readouterr().out
    assert "100%" in out
    assert "2.35k tokens" in out


def test_without_a_bar_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    def own(progress: Progress) -> None:
        raise AssertionError(progress)

    for given, expected in ((None, None), (False, None), (own, own)):
        with shown(given) as show:
            assert show is expected
    assert capsys.readouterr().out == ""


def test_long_calls_draw_a_bar_for_true(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, merged = str(tmp_path / "wiki"), str(tmp_path / "two")
    with tokpack.MMapIndexedDatasetBuilder(f"{prefix}.bin") as builder:
        builder.add_item([1, 2, 3])
        builder.end_document()
        builder.finalize(f"{prefix}.idx")
    tokpack.merge([prefix, prefix], merged, progress=True)
    tokpack.verify(merged, progress=True)
    tokpack.stats(merged, progress=True)
    out = capsys.readouterr().out
    for stage in ("merge", "verify", "stats"):
        assert stage in out
    tokpack.verify(merged, progress=False)
    assert capsys.readouterr().out == ""


NOTEBOOK = """
import builtins, sys

class ZMQInteractiveShell:  # as rich recognizes a notebook
    config = {"IPKernelApp": {}}

builtins.get_ipython = ZMQInteractiveShell
sys.modules["ipywidgets"] = None  # even where it is installed
from tokpack.progress import Progress, shown
with shown(True) as show:
    show(Progress(stage="encode", done=5, total=10, seconds=1.0, tokens=1234))
    show(Progress(stage="encode", done=10, total=10, seconds=1.0, tokens=2345))
"""


def test_a_notebook_without_widgets_gets_text_and_no_warning() -> None:
    code = [sys.executable, "-W", "error", "-c", NOTEBOOK]
    environment = {**os.environ, "TERM": "xterm"}  # a dumb terminal gets the last line alone
    done = subprocess.run(code, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(
        "encode .*50%.*1.23k tokens.*\r.*encode .*100%.*2.35k tokens", done.stdout.decode()
    )
