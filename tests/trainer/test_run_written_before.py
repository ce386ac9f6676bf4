"""A training run that tokpack 0.1.0 saved, moved to another folder, goes on as it did then."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.places import GOLDEN
from support.written import losses

torch = pytest.importorskip("torch")

from support.warm_python import warm_python  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = GOLDEN / "written"
ROUNDED = 1e-4  # losses of one loop in fp32 on other processors; a step lowers them by 0.04


def test_a_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(WRITTEN, folder)
    expected = json.loads((folder / "expected.json").read_text())["train"]
    before = losses(str(folder / "run"))
    words = ["train", *expected["words"], "--save", "run", "--load", "run"]
    done = subprocess.run(
        [warm_python() / "tokpack", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = losses(str(folder / "run"))
    assert list(before) == [str(n + 1) for n in range(expected["before"])]
    assert {step: found[step] for step in before} == before
    assert found.keys() == expected["losses"].keys()
    apart = max(abs(found[step] - loss) for step, loss in expected["losses"].items())
    assert apart < ROUNDED
    assert (folder / "run" / "latest").read_text().strip() == "step_00000006"
