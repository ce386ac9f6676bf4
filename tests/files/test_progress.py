"""The bar of ``progress=True``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tokpack.progress import Progress, shown

if TYPE_CHECKING:
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
    assert "2,345 tokens" in out


def test_without_a_bar_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    def own(progress: Progress) -> None:
        raise AssertionError(progress)

    for given, expected in ((None, None), (False, None), (own, own)):
        with shown(given) as show:
            assert show is expected
    assert capsys.readouterr().out == ""
