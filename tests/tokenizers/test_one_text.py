"""One text to ids and back, as somebody does at a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.tiny_tokenizers import EOD, save, tiny

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_gpt2(shared: Path) -> None:
    folder = shared / "tokenizers"
    tokenizer = load_tokenizer(
        vocab_file=str(folder / "gpt2-vocab.json"), merge_file=str(folder / "gpt2-merges.txt")
    )
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode("") == []
    assert tokenizer.decode([15496, 995]) == "Hello world"
    assert tokenizer.encode(EOD, special_tokens="encode") == [50256]
    assert len(tokenizer.encode(EOD, special_tokens="text")) > 1
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("\ud83d")


def test_any_other(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save(tmp_path, tiny())))
    for text in ("a b", "b\n a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
