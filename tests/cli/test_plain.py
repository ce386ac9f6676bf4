"""What commands say: flags where flags are typed, and lines that fit a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.report_tools import run

import tokpack
from tokpack.display import in_flags
from tokpack.errors import UsageError
from tokpack.samples import GPTDataset

if TYPE_CHECKING:
    from pathlib import Path


def small_dataset(path: Path, documents: int = 3) -> Path:
    """A dataset of documents of four tokens."""
    with tokpack.MMapIndexedDatasetBuilder(path.with_suffix(".bin"), dtype="uint16") as builder:
        for number in range(documents):
            builder.add_item([number, 1, 2, 0])
            builder.end_document()
        builder.finalize(path.with_suffix(".idx"))
    return path


def test_errors_name_flags(tmp_path: Path) -> None:
    """The same rule says a name to who calls it, and a flag to who typed a command."""
    prefix = small_dataset(tmp_path / "x")
    with pytest.raises(UsageError, match=r"^packing='best_fit' goes with order='stateless', not"):
        GPTDataset(prefix, seq_length=2, packing="best_fit", order="megatron")
    flags = ("--seq-length", 2, "--packing", "best_fit", "--order", "megatron")
    said = run("blend", prefix, *flags, code=1).stderr
    assert "error: --packing best_fit goes with --order stateless, not" in said
    said = run("blend", prefix, "--seq-length", 4000, code=1).stderr
    assert "(--seq-length 4,000 and 1 more)" in said
    said = run("encode", "x.jsonl", "--json-keys", "a", "a", code=1).stderr
    assert "--json-keys is ['a', 'a']; it needs" in said
    said = run("encode", "x.jsonl", "--keep-newlines", code=1).stderr
    assert "--keep-newlines needs --split-sentences" in said
    said = run("train", "--micro-batch-size", 0, code=1).stderr
    assert "--micro-batch-size is 0, expected at least 1" in said
    said = run("train", "--zero-stage", 1, "--engine", "torch", code=1).stderr
    assert "--zero-stage 1 needs" in said


def test_what_a_file_says_is_named_as_there(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("seq_length: 0\n")
    assert "seq_length is 0" in run("train", file, code=1).stderr
    assert "--seq-length is 0" in run("train", file, "--seq-length", 0, code=1).stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs is 3 and num_samples is 4", "--epochs is 3 and --samples is 4"),
        ("the order of epochs is not known", "the order of epochs is not known"),
        ("x/num_samples: 'num_samples' is a file", "x/num_samples: 'num_samples' is a file"),
        ("--epochs 3 (epochs=3, num_samples=4)", "--epochs 3 (epochs=3, num_samples=4)"),
        ("order=True needs num_samples=4", "--order needs --samples 4"),
    ],
)
def test_what_is_a_name_and_what_a_word(text: str, expected: str) -> None:
    flags = {"epochs": "--epochs", "num_samples": "--samples", "order": "--order"}
    assert in_flags(text, flags, []) == expected
