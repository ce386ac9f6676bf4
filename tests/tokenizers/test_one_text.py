"""One text to ids and back, as somebody does at a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.tiny_tokenizers import EOD, save, tiny

from tokpack.errors import TokenizerError, UsageError
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


def test_any_other(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save(tmp_path, tiny())))
    for text in ("a b", "b\n a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("words", [False, True])
def test_what_is_no_row_of_ids(tmp_path: Path, words: bool) -> None:
    path = save(tmp_path, {"a": 0, "b": 2} if words else tiny())
    tokenizer = load_tokenizer(path, tokenizer_type="Whitespace" if words else None)
    for wrong in ("a", None, 5, [1.5], ["1"], [[1]], np.zeros((2, 2), int)):
        with pytest.raises(UsageError, match=r"^decode "):
            tokenizer.decode(wrong)  # type: ignore[arg-type]
    for unknown in (-1, 10**9, *([1] if words else [])):
        with pytest.raises(TokenizerError, match=f" {unknown}: "):
            tokenizer.decode([unknown])
    assert tokenizer.decode(np.array([0, 2], np.uint16)) == tokenizer.decode([0, 2])
