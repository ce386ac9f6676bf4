"""What people see of objects at a prompt is a line that says what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tokpack import GPTDataset, MMapIndexedDatasetBuilder, SampleIterator, open_blend, stats
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    path = str(tmp_path / "wiki")
    with MMapIndexedDatasetBuilder(f"{path}.bin") as builder:
        builder.add_item(range(100))
        builder.finalize(f"{path}.idx")
    return path


def test_objects_show_themselves_in_a_line(prefix: str) -> None:
    dataset = GPTDataset(prefix, seq_length=8)
    iterator = SampleIterator(dataset, 2)
    next(iterator)
    blends = open_blend({"datasets": [prefix], "seq_length": 8, "split": "100,0,0"})
    assert repr(iterator).endswith("2 of 12 samples consumed)")
    assert repr(blends).startswith(f"Blends(train=GPTDataset({prefix!r}")
    assert repr(stats(prefix)) == f"Stats({prefix!r}, 1 documents, 100 tokens)"


def test_a_slice_of_samples_says_how_it_is_asked_for(prefix: str) -> None:
    with pytest.raises(TypeError, match=r"batch\(range"):
        GPTDataset(prefix, seq_length=8)[0:2]  # type: ignore[index]


def test_a_tokenizer_says_how_many_ids_it_has(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text('{"a": 0, "b": 1, "<eod>": 2}')
    tokenizer = load_tokenizer(path, tokenizer_type="Whitespace")
    assert repr(tokenizer).endswith("3 ids)")
    assert str(path) in repr(tokenizer)
