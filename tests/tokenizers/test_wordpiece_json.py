"""The WordPiece of a tokenizer.json (BERT, models of embeddings) in the core: its library's ids."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.tiny_tokenizers import SPARSELY, added, any_vocabulary, characters, save, some_added
from support.tokenizers_twin import (
    Twin,
    block,
    corpus,
    is_as_with_the_library,
    left_to_the_library,
    loaded_and_kept,
    made_of,
)
from support.wordpiece_tools import (
    BERT,
    CUTS,
    PIECES,
    SPACE,
    bert_normalizer,
    definition,
    sequence,
    trained,
)

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def twin(folder: Path, written: dict[str, Any]) -> Twin:
    return Twin(load_tokenizer(save(folder, written)))


# Equal ids.


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_trained_vocabulary(tmp_path: Path, data: Path, *, lowercase: bool) -> None:
    both = twin(tmp_path, trained(lowercase=lowercase))
    corpora = [corpus(data, of, 400_000) for of in ("english", "code", "multi", "nasty")]
    both.compare([text[:3000] for texts in corpora for text in texts[:20]])
    both.compare(made_of(PIECES, 300, "trained"))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("one_in", SPARSELY)
def test_each_character(tmp_path: Path, cut: str, one_in: int) -> None:
    """Which characters begin a word, are one, and are left out."""
    words = dict.fromkeys(["[UNK]", "a", "##a", *"\u00e9\u4e2d.!1", "##\u00e9", "##1", "##."])
    written = definition(words, None, CUTS[cut])
    every = characters(one_in)
    both = twin(tmp_path, written)
    text = "".join(f"a{c}a {c}" for c in every)
    both.compare(made_of([*every[:0x3000], "a", " "], 300, cut))
    assert both.native([text], "text") == both.slow([text], "text")


def test_words_of_many_characters(tmp_path: Path) -> None:
    words = dict.fromkeys(["[UNK]", "a", "##a", "\u4e2d", "##\u4e2d", "aaaa", "##" + "a" * 200])
    for longest in (0, 1, 3, 100, 250):
        both = twin(tmp_path, definition(words, None, CUTS["white space"], longest=longest))
        sizes = (1, 2, 3, 4, 15, 16, 17, 99, 100, 101, 249, 250, 251, 1024, 5000, 300_000)
        both.compare([f"a {c * size} {c}" for size in sizes for c in ("a", "\u4e2d")])


def test_more_words_than_a_window(tmp_path: Path) -> None:
    both = twin(tmp_path, definition(dict.fromkeys(["[UNK]", "a", "##a", "."]), None, BERT))
    for count in range(250, 262):
        both.compare([text * count for text in ("a ", ".", "aaa. ", " .a")])


CHARACTERS = ["a", "b", "B", "#", "##", "1", "\u00e9", "e", "\u0301", "\u4e2d", ".", "_", "\u302e"]
TOKENS = ["[MASK]", "a b", "ab", "B", " a", "\u00c9", "[UNK]", "b\n", "a  ", "\u4e2d"]


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    prefix = draw(st.sampled_from(["##", "##", "", "a", "\u00e9"]))
    texts = draw(
        st.lists(st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=4).map("".join))
    )
    words = ["[UNK]", *CHARACTERS[: draw(st.integers(0, 13))], *texts, *(prefix + t for t in texts)]
    flag = st.booleans()
    tokens = draw(some_added(TOKENS, 3))
    normalizer = bert_normalizer(
        clean_text=draw(flag),
        handle_chinese_chars=draw(flag),
        strip_accents=draw(st.sampled_from([None, True, False])),
        lowercase=draw(flag),
    )
    return definition(
        dict.fromkeys(words),
        draw(st.sampled_from([None, normalizer, normalizer])),
        draw(st.sampled_from(list(CUTS.values()))),
        tokens,
        prefix=prefix,
        longest=draw(st.sampled_from([2, 5, 100])),
    )


test_any_vocabulary = any_vocabulary(definitions(), [*PIECES, *TOKENS, *CHARACTERS], examples=60)


def test_golden_ids(tmp_path: Path) -> None:
    words = dict.fromkeys(
        ["[UNK]", "[CLS]", "un", "##aff", "##able", "cafe", "\u4e2d", ",", "##,", "a"]
    )
    tokens = [added("[UNK]", 0), added("[CLS]", 1)]
    both = twin(tmp_path, definition(words, bert_normalizer(), BERT, tokens))
    texts = ["UNaffable", "caf\u00e9,a", "un\u4e2daff", "b", " \n\x00", "[CLS]a[cls]", "unable aff"]
    expected = [[2, 3, 4], [5, 7, 9], [2, 6, 0], [0], [], [1, 9, 0, 0, 0], [2, 4, 0]]
    assert both.native(texts, "encode") == expected
    both.compare(texts)


def test_what_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(draw.randrange(40)) for _ in range(300)]
    core = twin(tmp_path, trained(lowercase=True)).tokenizer.core(dtype="int32")
    assert len(core.encode(*block([*texts, "the cat"])).lengths) == 301


# What is not native.

WORDS: dict[str, None] = dict.fromkeys(["[UNK]", "a"])
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no unknown token": (definition(WORDS, None, BERT, unk_token="x"), "no token for unknown"),
    "a setting": (definition(WORDS, None, BERT, alpha=1), "the setting 'alpha'"),
    "an id twice": (definition(WORDS, None, BERT, vocab={"[UNK]": 0, "a": 0}), "have the same id"),
    "a long token": (
        definition({**WORDS, "a" * 600: None}, None, BERT, longest=600),
        "very long token",
    ),
    "another pretokenizer": (
        definition(WORDS, None, {"type": "Metaspace", "replacement": SPACE, "splits": True}),
        "a Metaspace of settings",
    ),
    "a begin that goes": (
        definition(WORDS, bert_normalizer(), CUTS["Metaspace and others"]),
        "the begin of a text",
    ),
    "two that put spaces in front": (
        definition(WORDS, None, sequence(CUTS["Metaspace"], CUTS["Metaspace"])),
        "two that put spaces in front",
    ),
    "a normalizer": (
        definition(WORDS, {"type": "ByteLevel"}, BERT),
        "normalizer is ByteLevel",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_goes_to_the_library(tmp_path: Path, case: str) -> None:
    written, reason = REFUSED[case]
    left_to_the_library(save(tmp_path, written), reason)


# Tokenizers.


def test_a_tokenizer_is_what_it_was_with_the_library(tmp_path: Path) -> None:
    path = save(tmp_path, trained(lowercase=True))
    texts = ["The  cat [MASK] sat[SEP]", "", "\u4e2d\U0001f600", "[CLS]", "the cat"]
    is_as_with_the_library(path, ("the", "[CLS]", "[MASK]", "none"), texts)


def test_its_definition_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, trained(lowercase=True))
    first, again = loaded_and_kept(path, tmp_path, "spec_of", monkeypatch)
    assert again.encode("The \u00c9t\u00e9") == first.encode("The \u00c9t\u00e9")
