"""What is no dataset is named for what it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tokpack import MMapIndexedDataset, MMapIndexedDatasetBuilder, open_blend
from tokpack.configuration.request import RunRequest
from tokpack.errors import InputError, UsageError
from tokpack.files.mistaken import is_dataset, not_a_dataset
from tokpack.sources import discover

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
        ("wiki.jsonl", "encode it first, tokpack encode"),
        ("wiki.jsonl.zst", "encode it first, tokpack encode"),
        ("wiki.parquet", "encode it first, tokpack encode"),
        ("mix.yaml", "a blend file"),
        ("model.pt", "is a file, but none of a dataset"),
    ],
)
def test_files_that_are_no_dataset_are_named(tmp_path: Path, name: str, said: str) -> None:
    path = tmp_path / name
    path.write_text("{}\n")
    with pytest.raises(InputError, match=said):
        MMapIndexedDataset(path)


def test_a_folder_names_the_datasets_in_it(tmp_path: Path, dataset: str) -> None:
    with pytest.raises(InputError, match=f"the datasets in it are {re.escape(dataset)}$"):
        MMapIndexedDataset(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no dataset lies in it" in not_a_dataset(str(tmp_path / "empty"))
    assert not_a_dataset(str(tmp_path / "nothing")) == ""


def test_a_blend_of_text_says_that_it_is_text(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match="encode it first"):
        open_blend({"datasets": [str(path)], "seq_length": 8})


def test_a_dataset_is_no_text_and_no_settings(dataset: str) -> None:
    assert is_dataset(dataset)
    assert is_dataset(f"{dataset}.bin")
    for name in (dataset, f"{dataset}.bin"):
        with pytest.raises(InputError, match="whose documents are tokens already"):
            discover([name])
    with pytest.raises(UsageError, match=f"is a dataset, no file of settings: data_path {dataset}"):
        RunRequest.of([dataset], 1)
