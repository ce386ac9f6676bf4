"""What benchmarks take from the package is there: they are run by hand, and seldom."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_of_the_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tokpack"):
            continue
        if node.module.startswith("tokpack.trainer"):  # seconds of torch
            continue
        module = importlib.import_module(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")


def test_the_results_that_are_kept_can_be_printed() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "show.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n== ") >= 7
    assert "megatron-fast" in done.stdout


def test_the_table_of_families_is_what_the_results_say() -> None:
    program = (
        "import families; text = families.PAGE.read_text(); print(families.page(text) == text)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", f"run: python benchmarks/families.py --page\n{done.stderr}"


def test_the_bars_of_the_picture_are_as_long_as_their_values(tmp_path: Path) -> None:
    picture = tmp_path / "speed.svg"
    subprocess.run([sys.executable, FOLDER / "show.py", "--chart", picture], check=True)
    nodes = [*ET.parse(picture).getroot()]
    texts = [node.text or "" for node in nodes if node.tag.endswith("text")]
    widths = [int(node.attrib["width"]) for node in nodes if node.tag.endswith("rect")]
    values = [float(text) for text in texts if text.replace(".", "").isdigit()]
    assert len(values) == len(widths)
    share = values[1] / values[0]
    assert widths[1] == pytest.approx(share * widths[0], abs=1 + 0.01 * widths[0])
