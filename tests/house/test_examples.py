"""The scripts and the notebook of examples/ run, in the order in which a reader would run them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from support.places import ROOT
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"


def script_of(notebook: Path) -> str:
    """The code cells of a notebook, one after the other."""
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def output(code: str, folder: Path) -> str:
    """What a Python process printed that ran ``code`` in ``folder``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    script = folder / "script.py"
    script.write_text(code)
    run = subprocess.run(
        [str(warm_python() / "python"), str(script)],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def running(*names: str) -> str:
    """Code that runs scripts in one process."""
    calls = (f"run_path({str(EXAMPLES / name)!r}, run_name='__main__')" for name in names)
    return "\n".join(("from runpy import run_path", *calls))


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets of the first example."""
    folder = tmp_path_factory.mktemp("examples")
    printed = output(running("encode_and_look.py"), folder)
    assert "code: " in printed
    assert "from manual.jsonl:" in printed
    return folder


def test_the_torch_loop(encoded: Path) -> None:
    assert "resumes with sample 80" in output(running("torch_loop.py"), encoded)


def test_the_shapes_of_megatrons_sft_dataset(encoded: Path) -> None:
    pytest.importorskip("jinja2")
    code = """
import runpy, sys
import numpy as np, tokpack
found = runpy.run_path(sys.argv[1], run_name="__main__")
data, train, seen = tokpack.MMapIndexedDataset("chats"), found["SFTDataset"]("chats", 512), []
for sample in map(train.__getitem__, range(len(train))):
    ends, tokens = sample["cu_seqlens"].numpy(), sample["tokens"].numpy()
    assert {str(value.dtype) for value in sample.values()} == {
        "torch.int64", "torch.float32", "torch.int32"}
    assert ends[0] == 0 and ends[-1] == len(tokens) + 1 <= 512
    whole = np.append(tokens, sample["labels"][-1])
    mask = np.append(0, sample["loss_mask"])
    seen += [(whole[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(ends, ends[1:])]
assert sorted(seen) == sorted((data[i].tolist(), data.mask[i].tolist()) for i in range(len(data)))
"""
    code = code.replace("sys.argv[1]", repr(str(EXAMPLES / "megatron_sft.py")))
    assert "samples of whole conversations" in output(code, encoded)


def test_the_notebook(encoded: Path) -> None:
    printed = output(script_of(EXAMPLES / "look.ipynb"), encoded)
    assert "sample 2 is sample" in printed
    assert "140 of the first 200 samples are from code" in printed


@pytest.mark.slow
def test_the_trainer_of_hugging_face_and_the_checkpoints_of_lightning(encoded: Path) -> None:
    printed = output(running("hf_trainer.py", "lightning_data.py"), encoded)
    assert "'loss'" in printed
    assert "resumes with sample 16" in printed
    assert "resumes with step 6 of 10" in printed


@pytest.mark.slow
def test_faster_tokenizers_in_other_programs(encoded: Path) -> None:
    for package in ("transformers", "datasets", "datatrove"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    assert "the same ids in transformers" in output(running("faster_tokenizers.py"), encoded)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "says"),
    [("grain", "2 hosts, then 1: resumes with sample 80"),
     ("torchtitan", "2 ranks, then 1: resumes with sample 80")],
)  # fmt: skip
def test_loaders_of_other_trainers(encoded: Path, package: str, says: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: its loader is not tested")
    assert says in output(running(f"{package}_loader.py"), encoded)
