"""The self-check: it passes on everything, and stops at a native core that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.tiny_tokenizers import EOD, OF_THE_LIBRARY, pair, save, tiny
from support.tokenizers_twin import block, corpus

from tokpack.errors import TokenizerError
from tokpack.tokenizers import load_tokenizer, self_check
from tokpack.tokenizers.check import first_documents
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["abc abcabc", "", f"x{EOD}y", "\u00e9 abc"]


@pytest.mark.promises
@pytest.mark.parametrize("mode", ["auto", "text", "encode", "error"])
def test_it_passes_on_both_kinds_of_files(tmp_path: Path, mode: str) -> None:
    files = pair(tmp_path, tiny()["model"]["vocab"], "#version: 0.2\na b\nab c\n")
    for tokenizer in (load_tokenizer(save(tmp_path, tiny())), load_tokenizer(**files)):
        assert tokenizer.native
        self_check(tokenizer, *block(TEXTS), special_tokens=mode)
        self_check(tokenizer, *block([]), special_tokens=mode)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_vocabulary_may_be_json_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    files = pair(tmp_path, tiny()["model"]["vocab"], "#version: 0.2\na b\nab c\n")
    vocab = files["vocab_file"]
    vocab.write_bytes(vocab.read_text("utf-8").encode(encoding))
    self_check(load_tokenizer(**files), *block(TEXTS))


def test_it_passes_on_real_data(data: Path) -> None:
    texts, spans = block(corpus(data, "nasty", limit=1_000_000))
    folder = data / "tokenizers"
    for tokenizer in (
        load_tokenizer(folder / "20B_tokenizer.json"),
        load_tokenizer(
            vocab_file=folder / "gpt2-vocab.json", merge_file=folder / "gpt2-merges.txt"
        ),
    ):
        self_check(tokenizer, texts, spans)


@pytest.mark.promises
@pytest.mark.parametrize("form", ["tokenizer.json", "files"])
def test_a_difference_is_shown(tmp_path: Path, form: str) -> None:
    """A native definition that lost a merge on the way."""
    files = pair(tmp_path, tiny()["model"]["vocab"], "#version: 0.2\na b\nab c\n")
    path = save(tmp_path, tiny())
    tokenizer = load_tokenizer(path) if form == "tokenizer.json" else load_tokenizer(**files)
    assert isinstance(tokenizer, NativeTokenizer)
    object.__setattr__(tokenizer.spec, "merges", tokenizer.spec.merges[:1])
    self_check(tokenizer, *block(["ab ab"]))
    with pytest.raises(TokenizerError) as caught:
        self_check(tokenizer, *block(["fine", "the words before abc and after"]))
    message = str(caught.value)
    assert "in document 2 of the sample, token 17, near 'the words before abc and after'" in message
    assert "core gives [68, 220, 256, 66, 220," in message
    assert "library [68, 220, 257, 220," in message


def test_a_slow_tokenizer_needs_none(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, {**tiny(), "normalizer": OF_THE_LIBRARY}))
    self_check(tokenizer, *block(TEXTS))


def test_the_sample_is_bounded_and_ends_between_characters() -> None:
    data, spans = block(["ab", "\u4e2d" * 100, "never"])
    assert first_documents(data, spans, 1000).tolist() == spans.tolist()
    for limit in range(1, 12):
        sample = first_documents(data, spans, limit)
        sizes = sample[:, 1] - sample[:, 0]
        assert limit - 3 < sizes.sum() <= limit
        assert np.array_equal(sample[:, 0], spans[: len(sample), 0])
        for begin, end in sample.tolist():
            data[begin:end].tobytes().decode()
