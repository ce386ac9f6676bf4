"""The corpus of the Python fuzz targets, and seeds for them: every input that ever broke one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fuzz import targets
from support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = ROOT / "tests" / "fuzz" / "corpus"


@pytest.mark.parametrize("name", targets.TARGETS)
def test_replay(name: str, tmp_path: Path) -> None:
    targets.seeds(tmp_path)
    committed = sorted((CORPUS / name).iterdir()) if (CORPUS / name).is_dir() else []
    inputs = sorted((tmp_path / name).iterdir()) + committed
    assert inputs
    for path in inputs:
        targets.TARGETS[name](path.read_bytes())
