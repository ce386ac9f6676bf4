"""``tokpack blend --cache`` and ``--megatron-cache``: what it builds, says and refuses."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.places import GOLDEN

from tokpack.cli.main import main
from tokpack.samples.blend.open import open_blend

if TYPE_CHECKING:
    from pathlib import Path

MEGATRON = ["--order", "megatron", "--split", "80,15,5", "--seq-length", "64"]
COUNTS = ["--samples", "3000", "--valid-samples", "40", "--test-samples", "20"]


@pytest.fixture
def inputs() -> list[str]:
    return ["0.3", str(GOLDEN / "index" / "short"), "0.7", str(GOLDEN / "index" / "long")]


def test_what_is_built_is_what_is_read(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["blend", *inputs, *MEGATRON, *COUNTS, "--cache", str(tmp_path / "cache"), "--json"]
    for built in (True, False):
        assert main(command) == 0
        files = json.loads(capsys.readouterr().out)["files"]
        assert [one["part"] for one in files] == ["train"] * 2 + ["valid"] * 2 + ["test"] * 2
        assert {one["built"] for one in files} == {built}
        assert len({one["path"] for one in files}) == 6
    before = sorted(os.scandir(tmp_path / "cache"), key=lambda one: one.name)
    values = {"order": "megatron", "split": "80,15,5", "seq_length": 64, "samples": 3000}
    values |= {"valid_samples": 40, "test_samples": 20}
    values["datasets"] = [
        {"prefix": prefix, "weight": float(weight)}
        for weight, prefix in zip(inputs[::2], inputs[1::2], strict=True)
    ]
    cached = open_blend(values, cache=str(tmp_path / "cache"))
    plain = open_blend(values)
    for number in range(0, len(plain.train), 101):
        np.testing.assert_array_equal(cached.train[number]["tokens"], plain.train[number]["tokens"])
    after = sorted(os.scandir(tmp_path / "cache"), key=lambda one: one.name)
    assert [one.inode() for one in after] == [one.inode() for one in before]


def test_the_stateless_order_needs_nothing(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["blend", *inputs, "--seq-length", "64", "--cache", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [one["path"] or "" for one in files] == ["", ""]
    assert os.listdir(tmp_path) == []
    packed = ["blend", *inputs, "--packing", "best_fit", "--cache", str(tmp_path), "--json"]
    assert main(packed) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert all(one["path"].endswith(".json") for one in files)
    assert len(list(tmp_path.glob("*.json"))) == 2


@pytest.mark.parametrize("form", ["json", "file", "description", "blend description"])
def test_files_of_megatron(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    ids = {"class": "HuggingFaceTokenizer", "path": "/t"}
    text = {
        "json": ids,
        "file": ids,
        "description": {"class": "GPTDataset", "dataset_path": "d", "tokenizer": ids},
        "blend description": {"datasets": [{"dataset_path": "d", "tokenizer": ids}]},
    }[form]
    word = json.dumps(text)
    if form != "json":
        (tmp_path / "ids").write_text(word)
        word = str(tmp_path / "ids")
    folder = os.path.dirname(inputs[1])
    command = ["blend", *inputs, *MEGATRON, *COUNTS, "--tokenizer-ids", word, "--json"]
    command += ["--megatron-cache", str(tmp_path / "cache"), "--rename", f"{folder}=/data"]
    assert main(command) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == 9
    with open(files[0]["paths"][-1], encoding="utf-8") as file:
        description = json.load(file)
    assert description["dataset_path"] == "/data/short"
    assert description["tokenizer"] == ids
    assert description["split"] == "80,15,5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cache", "a", "--megatron-cache", "b"], "give one of them"),
        (["--megatron-cache", "b"], "stateless order has no index files"),
        (["--megatron-cache", "b", "--order", "neox"], "give it, such as 969,30,1"),
        (["--megatron-cache", "b", *MEGATRON, *COUNTS], "unique_identifiers"),
        (
            ["--megatron-cache", "b", "--order", "neox", "--split", "8,1,1", *COUNTS],
            "writes no files of blends",
        ),
        (
            ["--megatron-cache", "b", *MEGATRON, *COUNTS, "--tokenizer-ids", "[]"],
            "neither JSON nor a JSON file",
        ),
        (
            ["--megatron-cache", "b", *MEGATRON, *COUNTS, "--tokenizer-ids", "{"],
            "--tokenizer-ids: not JSON",
        ),
        (["--cache", "/dev/null/x"], "cannot be made"),
        (["--fused"], "--fused belongs to --megatron-cache"),
        (["--cache", "a", "--rename", "a=b"], "--rename belongs to --megatron-cache"),
        (["--cache", "a", "--order", "megatorn"], "megatorn"),
    ],
)
def test_what_it_refuses(
    *,
    inputs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["blend", *inputs, *words]) == 1
    assert message in capsys.readouterr().err
    assert not [one for _, _, files in os.walk(tmp_path) for one in files]


def test_a_cache_that_cannot_be_written_is_an_error_here(
    inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "/proc/self"  # it is there, and nobody can write into it
    if not os.path.isdir(folder):
        pytest.skip("no /proc here: the refusal of a folder without write access is not tested")
    assert main(["blend", *inputs, *MEGATRON, *COUNTS, "--cache", folder]) == 1
    said = capsys.readouterr().err
    assert "cannot be written" in said
    assert "Traceback" not in said
