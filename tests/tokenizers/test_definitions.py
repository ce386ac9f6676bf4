"""Whole tokenizers: what no published one has, beside the Hugging Face library."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.tiny_tokenizers import ALPHABET, added, save, tiny
from support.tokenizers_twin import Twin
from torture import definitions, pieces

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_made_up_tokenizers_give_the_ids_of_the_library() -> None:
    """A short round of ``python -m torture.definitions``."""
    counts = Counter(definitions.check(seed) for seed in range(100))
    for kind in ("byte_level_bpe", "metaspace_bpe", "unigram", "wordpiece"):
        assert counts[f"{kind}: equal"] > 3


def test_made_up_models_give_the_ids_of_sentencepiece() -> None:
    """A short round of ``python -m torture.pieces``."""
    counts = Counter(pieces.check(seed) for seed in range(60))
    assert counts["equal"] > 30


def test_text_behind_a_run_of_spaces_gets_a_space_in_front(tmp_path: Path) -> None:
    """Where such runs are added tokens, as GPT-NeoX's, and the pre_tokenizer adds a prefix."""
    runs = [added(" " * n, 254 + n, normalized=True, special=False) for n in (2, 3, 4)]
    definition = {
        **tiny(vocab={byte: i for i, byte in enumerate(ALPHABET)}, merges=[]),
        "added_tokens": runs,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
    }
    texts = ["a  b", "  \u2028", "a   \nb", " " * 9 + "c", "a    "]
    Twin(load_tokenizer(save(tmp_path, definition))).compare(texts)
