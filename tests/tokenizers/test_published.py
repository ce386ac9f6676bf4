"""Each family of support/families.jsonl, on a small vocabulary: ids, and who encodes it."""

from __future__ import annotations

import argparse
import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from support.families import families, trained_model
from support.sentencepiece_tools import HOSTILE, TEXTS
from support.tiny_tokenizers import save
from support.tokenizers_twin import Twin, left_to_the_library
from support.traps import TRAPS

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

# Vocabularies of bytes, which the benchmark has.
_REAL = ("gpt2", "neox", "cl100k", "o200k", "qwen2", "deepseek")
# Those that the core does not encode, and why.
NOT_NATIVE = {}
_SOURCES = (*TEXTS * 3, inspect.getsource(argparse)[:20_000])
_WORLD = [
    "\u00dcber die \u00c4pfel: caf\u00e9, na\u00efve, \u0130stanbul, \u01c5ungla, Don't WE'LL",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u0438 2,5 \u043c\u043b\u043d 1234567 \u0661\u0662\u0663",
    "\u6771\u4eac\u90fd\u306f\u9996\u90fd\u3067\u3059\u3002\u30ab\u30bf\u30ab\u30ca \u4e2d\u6587",
    "\u6587\u672c\uff01 \uff21\uff22\uff23 \u3105\u3106 \uc548\ub155 \u0e2a\u0e27\u0e31\u0e2a",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0643\u062a\u0627\u0628\u064c \u05e9\u05c1\u05b8\u05dc",
    "``quotes'' '' and <sentinel:12>IMGIMGABCZ <!dummy-prefix!> (x) [y] 'quoted' .../ //",
]
_LONGEST = 400  # characters of a trap: the library is slow
_TRAPS = [text for trap in TRAPS.values() for text in trap if len(text) <= _LONGEST]
_TEXTS = [*_WORLD, *TEXTS, *(text[:_LONGEST] for text in HOSTILE), *_TRAPS[::3]]


@cache
def _small(vocabulary: str) -> dict[str, Any]:
    size = {"byte unigram": 380, "mistral": 380, "unigram": 150, "wordpiece": 3000}
    texts = TEXTS * 20 if vocabulary in ("byte unigram", "mistral", "unigram") else _SOURCES
    return trained_model(vocabulary, texts, size.get(vocabulary, 1000))


def test_each_says_where_it_was_read() -> None:
    assert len(families()) >= 60
    for family in families().values():
        assert family.read.startswith(("https://", "transformers ")), family.name
        assert family.how in ("published", "transformers", "quoted"), family.name


@pytest.mark.parametrize("name", families())
def test_ids(name: str, tmp_path: Path) -> None:
    family = families()[name]
    known = "bytes" if family.vocabulary in _REAL else family.vocabulary
    path = save(tmp_path, family.definition(_small(known)))
    if name in NOT_NATIVE:
        left_to_the_library(path, NOT_NATIVE[name])
        return
    added = [token["content"] for token in family.added_tokens()][:: 1 + len(family.added) // 8]
    around = [f"a {text}{text}, {text} b {text.upper()}\n{text}" for text in added[:6]]
    Twin(load_tokenizer(path)).compare([*_TEXTS, *around, "".join(added[:20])])
