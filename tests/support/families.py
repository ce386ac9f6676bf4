"""Families of tokenizers that people use: their pipelines as published, on known vocabularies.

families.jsonl has a line for each: its ``kind`` of model, the ``vocabulary`` that stands in for its
own, its normalizer and pre_tokenizer (or the name of an earlier family that has the same one),
settings of its ``model`` that are not the usual ones, and its added tokens by their flags: ``s``
special, ``n`` normalized, ``l`` lstrip, ``r`` rstrip, ``w`` single_word. Where there are many, some
are listed, and ``more`` counts the others. ``read`` says where, and ``how``: in a published
tokenizer.json, in the class of transformers that makes it, or quoted in another program, which
tells nothing of its normalizer and its added tokens.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.tiny_tokenizers import ALPHABET, added, with_ids
from support.tokenizers_twin import EMPTY_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE = Path(__file__).with_name("families.jsonl")
FLAGS = {"s": "special", "n": "normalized", "l": "lstrip", "r": "rstrip", "w": "single_word"}
_SUFFIX = "</w>"

Node = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A line of the file."""

    name: str
    years: str
    kind: str
    vocabulary: str
    normalizer: Node | None
    pre_tokenizer: Node | None
    model: Node
    added: list[Node]
    how: str
    read: str

    def added_tokens(self) -> Iterator[Node]:
        """Added tokens as a tokenizer.json has them, but for their ids."""
        for group in self.added:
            flags = {name: letter in group["flags"] for letter, name in FLAGS.items()}
            for content in _contents(group):
                yield added(content, 0, **flags)

    def definition(self, model: Node) -> Node:
        """The tokenizer.json with a model of ``models``."""
        model = {**model, **self.model}
        vocab, unknown = model["vocab"], model.get("unk_token")
        if isinstance(vocab, list):
            vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
            model["unk_id"] = vocab["<unk>"]
        elif unknown and unknown not in vocab:
            model["vocab"] = vocab = {**vocab, unknown: len(vocab)}
        return {
            **EMPTY_MODEL,
            "added_tokens": with_ids(vocab, self.added_tokens()),
            "normalizer": _with_rules(self.normalizer),
            "pre_tokenizer": self.pre_tokenizer,
            "decoder": EMPTY_MODEL["decoder"] if self.kind == "byte-level BPE" else None,
            "model": model,
        }


@cache
def families() -> dict[str, Family]:
    """All of the file, by their names."""
    found: dict[str, Family] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if isinstance(row["pre_tokenizer"], str):
            row["pre_tokenizer"] = found[row["pre_tokenizer"]].pre_tokenizer
        found[row["name"]] = Family(**row)
    return found


def _contents(group: Node) -> Iterator[str]:
    yield from group.get("contents", [])
    for before, first, last, behind in group.get("series", []):
        yield from (f"{before}{number}{behind}" for number in range(first, last + 1))
    for character, least, most in group.get("runs", []):
        yield from (character * times for times in range(least, most + 1))
    yield from (f"<|{group['flags']}{number}|>" for number in range(group.get("more", 0)))


def _with_rules(normalizer: Node | None) -> Any:
    """The normalizer with the rules themselves, where the file has their name."""
    if normalizer is None:
        return None
    if normalizer["type"] == "Sequence":
        return {**normalizer, "normalizers": [*map(_with_rules, normalizer["normalizers"])]}
    if normalizer["type"] == "Precompiled":
        from support.sentencepiece_tools import named_rules

        rules = named_rules(normalizer["precompiled_charsmap"])
        return {**normalizer, "precompiled_charsmap": base64.b64encode(rules).decode()}
    return normalizer


def trained_model(vocabulary: str, texts: Sequence[str], size: int) -> Node:
    """The model of a tokenizer.json for families with this vocabulary, learned from texts."""
    if vocabulary == "wordpiece":
        from support.wordpiece_tools import trained as trained_wordpiece

        model: Node = trained_wordpiece(lowercase=True, texts=tuple(texts), size=size)["model"]
        return model
    if vocabulary in ("unigram", "byte unigram", "mistral"):
        return _of_sentencepiece(vocabulary, texts, size)
    return _of_words(vocabulary, texts, size)


def _of_sentencepiece(vocabulary: str, texts: Sequence[str], size: int) -> Node:
    from support.sentencepiece_tools import hugging_face, trained, unigram_json

    lines = [line for text in texts for line in text.splitlines() if 0 < len(line) < 1000]
    raw = trained("llama" if vocabulary == "mistral" else vocabulary, tuple(lines), size)
    written = hugging_face(raw).to_str() if vocabulary == "mistral" else unigram_json(raw, "T5")
    model: Node = json.loads(str(written))["model"]
    return model


def _of_words(vocabulary: str, texts: Sequence[str], size: int) -> Node:
    """A BPE: of bytes, of bytes with a mark at the end of a word, or of characters with one."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    settings: Node = {"initial_alphabet": ALPHABET}
    if vocabulary == "characters":
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        settings = {"end_of_word_suffix": _SUFFIX}
    if vocabulary == "end of word":
        words = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), "removed", True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, tokenizer.pre_tokenizer])
        settings["end_of_word_suffix"] = _SUFFIX
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **settings)
    tokenizer.train_from_iterator(texts, trainer)
    model: Node = json.loads(tokenizer.to_str())["model"]
    if vocabulary == "end of word":
        for letter in ALPHABET:
            model["vocab"].setdefault(letter + _SUFFIX, len(model["vocab"]))
    return model
