"""What is no dataset is named for what it is."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tokpack import MMapIndexedDataset, MMapIndexedDatasetBuilder, open_blend
from tokpack.errors import InputError, UsageError
from tokpack.sources import discover
from tokpack.storage.disk.mistaken import is_dataset, not_a_dataset
from tokpack.storage.disk.whole_folder import MARKER
from tokpack.trainer.config.flags import resolve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    prefix = str(tmp_path / "wiki")
    with MMapIndexedDatasetBuilder(f"{prefix}.bin") as builder:
        builder.add_item([1, 2, 3])
        builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wiki.jsonl", r"tokpack encode .*/wiki\.jsonl$"),
        ("wiki.jsonl.zst", r"tokpack encode .*/wiki\.jsonl\.zst$"),
        ("wiki.parquet", r"tokpack encode .*/wiki\.parquet$"),
        ("mix.yaml", r"/mix\.yaml .*tokpack blend, tokpack train"),
        ("model.pt", r"/model\.pt "),  # the file itself, not a .idx of this name
    ],
)
def test_files_that_are_no_dataset_are_named(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    path.write_text("{}\n")
    with pytest.raises(InputError, match=said):
        MMapIndexedDataset(path)


def test_a_folder_names_the_datasets_in_it(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(InputError, match=f" {re.escape(dataset)}$"):
        MMapIndexedDataset(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "is a folder without a dataset" in not_a_dataset(str(tmp_path / "empty"))
    assert not_a_dataset(str(tmp_path / "nothing")) == ""


@pytest.mark.parametrize("name", [".", "./"])
def test_this_folder_is_a_folder_too(
    tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(os.path.join(name, os.path.basename(dataset)))):
        MMapIndexedDataset(name)


def test_a_blend_of_text_says_that_it_is_text(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match=r"tokpack encode .*/wiki\.jsonl$"):
        open_blend({"datasets": [str(path)], "seq_length": 8})


def test_a_dataset_is_no_text_and_no_settings(dataset: str) -> None:
    assert is_dataset(dataset)
    assert is_dataset(f"{dataset}.bin")
    for name in (dataset, f"{dataset}.bin"):
        with pytest.raises(InputError, match=f"^{name}: .*dataset"):
            discover([name])
    for name in (dataset, f"{dataset}.bin"):
        with pytest.raises(UsageError, match=f"data_path {dataset}$"):
            resolve([name], 1)


def test_texts_and_folders_of_runs_are_no_settings(tmp_path: Path) -> None:
    text = tmp_path / "wiki.jsonl.zst"
    with pytest.raises(UsageError, match=f"tokpack encode {text}.*data_path"):
        resolve([str(text)], 1)
    (tmp_path / "latest").write_text("3\n")
    with pytest.raises(UsageError, match=f"load {tmp_path}"):
        resolve([str(tmp_path)], 1)


def test_runs_checkpoints_and_tokenizers_are_named(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step_00000001"
    checkpoint.mkdir()
    (tmp_path / "latest").write_text("1\n")
    (checkpoint / MARKER).write_text('{"tokpack": "checkpoint", "files": []}')
    assert f"a training run, not a dataset: see tokpack view {tmp_path}" in not_a_dataset(
        str(tmp_path)
    )
    assert "a training checkpoint" in not_a_dataset(str(checkpoint))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "added_tokens": []}')
    for name in ("tokenizer.json", "tokenizer"):  # as given, and as a prefix
        assert not_a_dataset(str(tmp_path / name)).endswith(
            "tokenizer.json is a tokenizer, not a dataset"
        )


def test_a_blend_is_no_text(tmp_path: Path, dataset: str) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(f"# a comment\ntokpack_blend: 1\ndatasets:\n- prefix: {dataset}\n")
    with pytest.raises(InputError, match=f"^{path}: .*tokpack blend"):
        discover([str(path)])
