"""What the core says of wrong requests, word for word: messages.txt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.transcripts import replay

if TYPE_CHECKING:
    import pytest


def test_what_is_said_of_wrong_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay(Path(__file__).with_name("messages.txt"), tmp_path, monkeypatch)
