"""Tokenizers of a few merges, as files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from support.tokenizers_twin import EMPTY_MODEL, MODES, Twin
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOD = "<|endoftext|>"
# A normalizer that changes hardly any text, and whose expression the core does not know.
OF_THE_LIBRARY = {"type": "Replace", "pattern": {"Regex": "(?>ab|a)\uffff"}, "content": ""}

# Thousands of characters that are of one kind: ideographs, syllables, private use, and none.
ALIKE = (
    *((0x3500, 0x4D00), (0x4F00, 0x9F00), (0xAD00, 0xD700), (0xE100, 0xF800), (0x12600, 0x12F00)),
    *((0x13500, 0x14300), (0x14700, 0x16000), (0x16200, 0x16700), (0x17100, 0x18700)),
    *((0x18E00, 0x1AF00), (0x1B400, 0x1BB00)),
    *((0x20100, 0x2A600), (0x2A800, 0x2B600), (0x2B900, 0x2CE00), (0x2CF00, 0x2EB00)),
    *((0x30100, 0x31300), (0x31400, 0x32300), (0x32400, 0xE0000), (0xE1000, 0x110000)),
)
# Every so many of those that are alike; every single one is for `make test-slow`.
SPARSELY = (89, pytest.param(1, marks=pytest.mark.slow))


def characters(step: int) -> list[str]:
    """All characters, but of those that are alike one in ``step``; behind U+34000 one in 89."""
    chosen = {*range(0xD800), *range(0xE000, 0x110000)}
    for begin, end in ALIKE:
        each = 89 if begin > 0x32000 else step
        chosen -= {c for c in range(begin, end) if c % each and c & 0xFFFF <= 0xFFFB}
    return list(map(chr, sorted(chosen)))


def added(content: str, token_id: int, **flags: bool) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
        **flags,
    }


def with_ids(known: Mapping[str, int], tokens: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Added tokens with the ids that they must have beside a vocabulary, each text once."""
    ids, listed = dict(known), dict[str, dict[str, Any]]()
    for token in tokens:
        text = token["content"]
        listed.setdefault(text, {**token, "id": ids.setdefault(text, len(ids))})
    return list(listed.values())


@st.composite
def some_added(draw: st.DrawFn, texts: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Added tokens of some texts, with any flags."""
    flag = st.booleans()
    return [
        added(
            draw(st.sampled_from(texts)),
            0,
            **{
                key: draw(flag)
                for key in ("special", "normalized", "lstrip", "rstrip", "single_word")
            },
        )
        for _ in range(draw(st.integers(0, most)))
    ]


def any_vocabulary(
    definitions: st.SearchStrategy[dict[str, Any]], pieces: Sequence[str], examples: int
) -> Callable[..., None]:
    """A test that made up tokenizers, where they are native, give their library's ids."""
    text = st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=15).map("".join)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.filter_too_much,
            HealthCheck.too_slow,
        ],
    )
    @given(
        written=definitions,
        texts=st.lists(text, min_size=1, max_size=8),
        mode=st.sampled_from(MODES),
    )
    def compare(tmp_path: Path, written: dict[str, Any], texts: list[str], mode: str) -> None:
        tokenizer = load_tokenizer(save(tmp_path, written))
        assume(tokenizer.native)
        Twin(tokenizer).compare(texts, modes=[mode])

    return compare


def tiny(**model: Any) -> dict[str, Any]:
    """A tokenizer.json with the 256 bytes, two merges and an EOD."""
    vocab = {token: i for i, token in enumerate([*ALPHABET, "ab", "abc", EOD])}
    settings = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [["a", "b"], ["ab", "c"]],
        **model,
    }
    return {**EMPTY_MODEL, "added_tokens": [added(EOD, 258)], "model": settings}


def save(folder: Path, definition: object, name: str = "tokenizer.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(definition), encoding="utf-8")
    return path


def pair(folder: Path, vocab: object, merges: str) -> dict[str, Path]:
    (folder / "merges.txt").write_bytes(merges.encode())
    return {"vocab_file": save(folder, vocab, "vocab.json"), "merge_file": folder / "merges.txt"}
