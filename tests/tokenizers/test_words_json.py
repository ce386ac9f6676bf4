"""WordLevel, and BPE over the characters of words, of a tokenizer.json: the ids of its library."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.tiny_tokenizers import added, any_vocabulary, save, some_added, with_ids
from support.tokenizers_twin import (
    EMPTY_MODEL,
    Twin,
    block,
    corpus,
    is_as_with_the_library,
    left_to_the_library,
    loaded_and_kept,
    made_of,
)
from support.wordpiece_tools import BERT, CUTS, PIECES, bert_normalizer, sequence
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SOME_CUTS: list[dict[str, Any] | None] = [
    *CUTS.values(),
    None,
    {
        "type": "Split",
        "pattern": {"Regex": r"\p{L}+|\p{N}"},
        "behavior": "Removed",
        "invert": True,
    },
    {"type": "Punctuation", "behavior": "MergedWithPrevious"},
    {"type": "CharDelimiterSplit", "delimiter": "a"},
]


def definition(
    model: dict[str, Any], normalizer: Any, pre_tokenizer: Any, tokens: Any = ()
) -> dict[str, Any]:
    """A tokenizer.json; added tokens get the ids that they must have."""
    return {
        **EMPTY_MODEL,
        "added_tokens": with_ids(model["vocab"], tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": None,
        "model": model,
    }


def twin(folder: Path, written: dict[str, Any]) -> Twin:
    return Twin(load_tokenizer(save(folder, written)))


# WordLevel.


def word_level(words: list[str], unknown: str = "[UNK]") -> dict[str, Any]:
    vocab = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return {"type": "WordLevel", "vocab": vocab, "unk_token": unknown}


WORDS = ["[UNK]", "a", "ab", "the", "cat", ".", "\u00e9", "e\u0301", "\u4e2d", "12", "", " ", "a b"]
TOKENS = ["[MASK]", "a b", "ab", "B", " a", "\u00c9", "[UNK]", "b\n", "a  ", "\u4e2d"]


@st.composite
def word_levels(draw: st.DrawFn) -> dict[str, Any]:
    words = draw(st.lists(st.sampled_from([*WORDS, *PIECES])))
    return definition(
        word_level([*words, "[UNK]"]),
        draw(st.sampled_from([None, bert_normalizer(), {"type": "Lowercase"}])),
        draw(st.sampled_from(SOME_CUTS)),
        draw(some_added(TOKENS, 3)),
    )


test_any_word_level = any_vocabulary(word_levels(), [*PIECES, *TOKENS, *WORDS], examples=100)


def test_words_of_all_lengths(tmp_path: Path) -> None:
    words = ["[UNK]", *("a" * n for n in range(1, 40)), "\u4e2d" * 170, "a" * 512]
    both = twin(tmp_path, definition(word_level(words), None, {"type": "WhitespaceSplit"}))
    both.compare([" ".join("a" * n for n in range(k)) for k in range(45)])
    sizes = (169, 170, 171, 511, 512, 513, 5000, 300_000)
    both.compare([c * size for size in sizes for c in "a\u4e2d"])


# BPE over characters.


def bpe(vocab: list[str], merges: list[tuple[str, str]], **model: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(dict.fromkeys(vocab))},
        "merges": [list(pair) for pair in dict.fromkeys(merges)],
        **model,
    }


CHARACTERS = [
    "\u2581",
    "a",
    "b",
    "c",
    "B",
    "#",
    "<",
    "/",
    "1",
    "\u00e9",
    "e",
    "\u0301",
    "\u4e2d",
    ".",
]


@st.composite
def merging(draw: st.DrawFn) -> dict[str, Any]:
    """Merges of characters, of unknown ones and of bytes, too."""
    prefix = draw(st.sampled_from(["", "", "##", "#", "\u00e9"]))
    suffix = draw(st.sampled_from(["", "</w>", "b", "\u4e2d"]))
    some = CHARACTERS[: draw(st.integers(1, len(CHARACTERS)))]
    first = [*some, *(c + suffix for c in some)]
    later = [prefix + c for c in first]
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    names = draw(st.sampled_from([[], names, names[:0x80], names]))
    known = dict.fromkeys(["<unk>", *first, *later, *names])
    removed = draw(st.lists(st.sampled_from([*first, *later]), max_size=3))
    known = {token: None for token in known if token not in removed}
    merges = []
    for _ in range(draw(st.integers(0, 12))):
        left = draw(st.sampled_from(list(known)))
        right = draw(st.sampled_from(list(known)))
        if not right.startswith(prefix):
            continue
        known.setdefault(left + right[len(prefix) :])
        merges.append((left, right))
    flag = st.booleans()
    model = bpe(
        list(known),
        merges,
        continuing_subword_prefix=draw(st.sampled_from([prefix, prefix or None])),
        end_of_word_suffix=suffix or None,
        fuse_unk=draw(flag),
        byte_fallback=draw(flag),
        ignore_merges=draw(flag),
        dropout=draw(st.sampled_from([None, 0.0])),
    )
    return definition(
        model,
        draw(st.sampled_from([None, None, bert_normalizer(), {"type": "NFC"}])),
        draw(st.sampled_from(SOME_CUTS)),
        draw(some_added(TOKENS, 3)),
    )


test_any_merges = any_vocabulary(merging(), [*PIECES, *CHARACTERS, "ab", "<unk>"], examples=200)


def test_unknown_characters(tmp_path: Path) -> None:
    """Bytes do not end a run of unknown characters."""
    names = [f"<0x{byte:02X}>" for byte in range(0x80)]
    for fuse in (True, False):
        for fallback in (True, False):
            model = bpe(["<unk>", "a", *names], [], fuse_unk=fuse, byte_fallback=fallback)
            both = twin(tmp_path, definition(model, None, {"type": "Whitespace"}))
            both.compare(["\u4e2dxa", "\u4e2d\u4e2d", "a\u4e2dxx\u4e2da x \u4e2d", "\u4e2dx\u4e2d"])


def test_candidates_that_have_changed(tmp_path: Path) -> None:
    merges = [
        ("a", "b"),
        ("b", "a"),
        ("aa", "b"),
        ("a", "ab"),
        ("a", "a"),
        ("ab", "ab"),
        ("b", "b"),
    ]
    vocab = ["<unk>", "a", "b", *(left + right for left, right in merges)]
    draw = random.Random(1)
    for _ in range(30):
        draw.shuffle(merges)
        both = twin(tmp_path, definition(bpe(vocab, merges), None, {"type": "WhitespaceSplit"}))
        both.compare(["".join(draw.choices("aab ", k=draw.randrange(60))) for _ in range(60)])


def trained(suffix: str, prefix: str, texts: list[str]) -> dict[str, Any]:
    """A vocabulary as of GPT or HerBERT."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    affixes = {"end_of_word_suffix": suffix, "continuing_subword_prefix": prefix}
    affixes = {name: text for name, text in affixes.items() if text}
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<unk>", "<s>"],
        limit_alphabet=300,
        show_progress=False,
        **affixes,
    )
    tokenizer.train_from_iterator(texts, trainer)
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    made["model"].update(affixes)
    return made


@pytest.mark.parametrize(("suffix", "prefix"), [("</w>", ""), ("", "##"), ("</w>", "##"), ("", "")])
def test_a_trained_vocabulary(tmp_path: Path, data: Path, suffix: str, prefix: str) -> None:
    corpora = [corpus(data, of, 200_000) for of in ("english", "code", "multi", "nasty")]
    texts = [text[:3000] for some in corpora for text in some[:20]]
    written = trained(suffix, prefix, texts[:40])
    both = twin(tmp_path, written)
    both.compare(texts)
    both.compare(made_of([*PIECES, "<s>", "</w>", "the" * 30], 200, "trained"))
    path = tmp_path / "tokenizer.json"
    is_as_with_the_library(path, ("the", "<s>", "none"), ["the cat <s>", "", "\u4e2d", ""])


def test_long_words(tmp_path: Path) -> None:
    merges = [("a", "b"), ("ab", "ab"), ("abab", "ab</w>"), ("b", "a")]
    vocab = ["<unk>", "a", "b", "a</w>", "b</w>", "ab", "abab", "ab</w>", "ababab</w>", "ba"]
    model = bpe(vocab, [*merges, ("a", "b</w>")], end_of_word_suffix="</w>", fuse_unk=True)
    both = twin(tmp_path, definition(model, None, {"type": "WhitespaceSplit"}))
    both.compare(
        [f"{text * n} {text}" for text in ("ab", "aab", "a\u4e2d", "b") for n in range(40)]
    )
    both.compare(["ab" * 100_000, "\u4e2d" * 100_000, "aab" * 1000])


def test_what_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(draw.randrange(40)) for _ in range(300)]
    for cut in (BERT, None):
        model = bpe(["<unk>", "a", "b"], [], byte_fallback=True)
        core = twin(tmp_path, definition(model, None, cut)).tokenizer.core(dtype="int32")
        assert len(core.encode(*block([*texts, "the cat"])).lengths) == 301


# What is not native.

A_BPE = bpe(["<unk>", "a"], [])
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no unknown word": (definition(word_level(["a"]), None, BERT), "no token for unknown"),
    "no unknown character": (
        definition({**A_BPE, "unk_token": None}, None, BERT),
        "no token for unknown",
    ),
    "an unknown character that is no token": (
        definition({**A_BPE, "unk_token": "x"}, None, BERT),
        "no token for unknown",
    ),
    "an empty token": (definition(bpe(["<unk>", ""], []), None, BERT), "an empty token"),
    "a setting": (definition({**word_level(["[UNK]"]), "x": 1}, None, BERT), "the setting 'x'"),
    "two that put spaces in front": (
        definition(A_BPE, None, sequence(CUTS["Metaspace"], CUTS["Metaspace"])),
        "two that put spaces in front",
    ),
    "words of bytes": (
        definition(word_level(["[UNK]"]), None, EMPTY_MODEL["pre_tokenizer"]),
        "a ByteLevel, and its model is not of bytes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_goes_to_the_library(tmp_path: Path, case: str) -> None:
    written, reason = REFUSED[case]
    left_to_the_library(save(tmp_path, written), reason)


def test_a_definition_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = SOME_CUTS[-3]
    model = bpe(["<unk>", "a", "b</w>", "ab</w>"], [("a", "b</w>")], end_of_word_suffix="</w>")
    written = definition(model, {"type": "Lowercase"}, split, [added("<unk>", 0)])
    path = save(tmp_path, written)
    first, again = loaded_and_kept(path, tmp_path, "spec_of", monkeypatch)
    assert again.encode("AB a\u00e9b") == first.encode("AB a\u00e9b") == [3, 1, 0, 2]
