"""The Unigram of a tokenizer.json (T5, XLM-R, ALBERT, DeBERTa) in the core: its library's ids."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.sentencepiece_tools import CONVERTED, HOSTILE, TEXTS, pb, trained, unigram_json
from support.tiny_tokenizers import added, any_vocabulary, save, some_added, with_ids
from support.tokenizers_twin import (
    Twin,
    block,
    corpus,
    is_as_with_the_library,
    left_to_the_library,
    loaded_and_kept,
    made_of,
)
from support.wordpiece_tools import CUTS, sequence

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SPACE = "\u2581"
PIECES = [
    *(" ", "  ", "the", " cat", "mat", "0", "12", ".", "'", "''", "``", "\n", "\t", "\r\n", "\0"),
    *(SPACE, "A", "\u00c5", "\u0130", "\u00e9", "e\u0301", "\u0301", "\u3000", "\u00a0", "\u200b"),
    *("\u4e2d", "\u0441", "\uff21", "\ufb01", "\u00bd", "\u2122", "\u00ad", "\ufdfa", "\ufeff"),
    # What grapheme clusters are made of.
    *("\u0600", "\u0958", "\u0915\u094d\u0915", "\u200d", "\u3099", "\u304b", "\uff76\uff9e"),
    *("\u1100", "\u1161", "\u11a8", "\uac00", "\U0001f600", "\U0001d165", "\U000110bd", "\u0e33"),
    *("\U0001f1e9", "\u00a9", "\ufe0f", "\r", "\u0903", "\u02b0"),
    *("<unk>", "</s>", "<mask>", "[UNK]", "<extra_id_0>", "<0x41>", "<"),
]


def twin(folder: Path, written: str) -> Twin:
    path = folder / "tokenizer.json"
    path.write_text(written)
    return Twin(load_tokenizer(path))


# Equal ids.


@pytest.mark.parametrize("form", CONVERTED)
def test_converted_models(tmp_path: Path, data: Path, form: str) -> None:
    both = twin(tmp_path, unigram_json(trained("folding unigram"), form))
    corpora = [corpus(data, of, 300_000) for of in ("code", "multi", "nasty")]
    documents = [text[:1500] for texts in corpora for text in texts[:12]]
    both.compare([*TEXTS, *HOSTILE, *documents, *made_of(PIECES, 250, form)])


@pytest.mark.parametrize("name", ["byte unigram", "nfkc unigram", "unigram"])
def test_other_rules_and_bytes(tmp_path: Path, name: str) -> None:
    texts = [*TEXTS, *HOSTILE, *made_of(PIECES, 250, name)]
    twin(tmp_path, unigram_json(trained(name), "T5")).compare(texts)
    twin(tmp_path, unigram_json(trained(name), "without rules")).compare(texts)


def test_every_character_in_clusters(tmp_path: Path) -> None:
    """A rule for the beginning of a cluster of up to five bytes replaces all of it."""
    both = twin(tmp_path, unigram_json(trained("folding unigram"), "T5"))
    ideographs = range(0x3400, 0xA000, 31)
    every = [*range(0x3400), *ideographs, *range(0xA000, 0xAC00), *range(0xAC00, 0xD800, 7)]
    every += [*range(0xF900, 0x12000), *range(0x12000, 0x110000, 211), *range(0xE0000, 0xE0200)]
    texts = [f"A{chr(c)} {chr(c)}A\uff21{chr(c)}\u0301" for c in every]
    actual, expected = both.native(texts, "text"), both.slow(texts, "text")
    assert [t for t, a, e in zip(texts, actual, expected, strict=True) if a != e] == []


def test_words_of_many_parts(tmp_path: Path) -> None:
    """Rounding decides between equal ways by what is before them in the word."""
    vocab = [["<unk>", 0.0], [SPACE, -3.1]]
    vocab += [[text, -0.1 * (3 + number % 5)] for number, text in enumerate("abcdefgh\u4e2d\u6587")]
    vocab += [[a + b, -1.3] for a in "ab" for b in "ab"] + [["cd", -0.7], ["aba", -1.9]]
    both = twin(tmp_path, json.dumps(definition(vocab, None, METASPACES["always"])))
    draw = random.Random(2)
    both.compare(["".join(draw.choices("abcdefgh\u4e2d\u6587 x", k=3000)) for _ in range(30)])
    both.compare(["".join(draw.choices("abcd\u4e2d", k=60_000))], modes=["text"])


def definition(
    vocab: list[list[Any]], normalizer: Any, pretokenizer: Any, tokens: Any = (), **model: Any
) -> dict[str, Any]:
    known = {text: number for number, (text, _) in enumerate(vocab)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": with_ids(known, tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pretokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False, **model},
    }


METASPACES: dict[str, Any] = {
    scheme: {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": scheme,
        "split": True,
    }
    for scheme in ("always", "first", "never")
}
PRETOKENIZERS = [
    *METASPACES.values(),
    {"type": "Metaspace", "replacement": SPACE, "add_prefix_space": True},
    sequence({"type": "WhitespaceSplit"}, METASPACES["always"]),
    sequence({"type": "WhitespaceSplit"}, METASPACES["first"]),
    {**METASPACES["first"], "split": False},
    CUTS["Metaspace and others"],
    CUTS["others and Metaspace"],
]
BYTES = [[f"<0x{byte:02X}>", -9.5] for byte in range(256)]


def replaces(kind: str, pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def steps() -> list[dict[str, Any]]:
    proto = pb.ModelProto()
    proto.ParseFromString(trained("folding unigram"))
    rules = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    return [
        {"type": "Precompiled", "precompiled_charsmap": rules},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        *(replaces("Regex", " {2,}", content) for content in (" ", SPACE)),
        *(replaces("String", " ", SPACE), replaces("String", "aa", "b"), LINES),
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD")),
        *({"type": name} for name in ("Lowercase", "Nmt", "StripAccents")),
        {"type": "Prepend", "prepend": "a "},
        replaces("Regex", r"\p{Lu}|[^\s<>]$", "b "),
    ]


LINES = replaces("Regex", r"\s{2,}|[\n\r\t]", " ")
CHARACTERS = ["a", "b", "B", SPACE, "\u00e9", "e", "\u0301", "\u4e2d", "1", "<", "k>"]
TOKENS = ["<s>", "a b", "ab", "B", " a", SPACE + "a", "\u00c9", "<unk>", "b\n", "a  "]


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Few scores, so that many ways are equally good."""
    scores = st.sampled_from([0.0, -0.1, -0.2, -0.3, -1.1, -1.2, -2.3, -7.77])
    texts = draw(st.lists(st.lists(st.sampled_from(CHARACTERS), max_size=4).map("".join)))
    vocab = dict.fromkeys(["<unk>", SPACE, *texts])
    rows = [[text, draw(scores)] for text in vocab]
    fallback = draw(st.booleans())
    tokens = draw(some_added(TOKENS, 3))
    normalizers = draw(st.lists(st.sampled_from(steps()), max_size=4))
    return definition(
        rows + (BYTES if fallback else []),
        {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        draw(st.sampled_from(PRETOKENIZERS)),
        tokens,
        byte_fallback=fallback,
    )


test_any_vocabulary = any_vocabulary(definitions(), [*PIECES, *TOKENS, *CHARACTERS], examples=40)


def test_golden_ids(tmp_path: Path) -> None:
    vocab = [
        *(["<unk>", 0.0], [SPACE, -2.0], [SPACE + "the", -3.0], ["cat", -4.0], ["s", -3.5]),
        *([SPACE + "cat", -5.0], ["a", -6.0], ["t", -6.5], ["cats", -8.0]),
    ]
    steps_ = {"type": "Sequence", "normalizers": [LINES, replaces("String", "dog", "cat")]}
    written = definition(vocab, steps_, METASPACES["always"], [added("<unk>", 0)])
    both = twin(tmp_path, json.dumps(written))
    texts = ["the cats", "the\n\ndogs", "  ", "thexxe", "<unk>cat", "catat s", ""]
    expected = [[2, 5, 4], [2, 5, 4], [1], [2, 0], [0, 5], [5, 6, 7, 1, 4], []]
    assert both.native(texts, "encode") == expected
    both.compare(texts)


def test_what_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    draw = random.Random(5)
    texts = [draw.randbytes(draw.randrange(40)) for _ in range(300)]
    for form in ("T5", "ALBERT of 5", "DeBERTa"):
        tokenizer = twin(tmp_path, unigram_json(trained("folding unigram"), form)).tokenizer
        core = tokenizer.core(dtype="int32")
        assert len(core.encode(*block([*texts, "the cat"])).lengths) == 301


# What is not native.

VOCAB = [["<unk>", 0.0], [SPACE, -1.0], ["a", -2.0]]
SPLIT = METASPACES["first"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a positive score": (definition([*VOCAB, ["b", 0.5]], None, SPLIT), "score above 0"),
    "no space": (definition([["<unk>", 0.0], ["a", 0.0]], None, SPLIT), "no token for a space"),
    "twice": (definition([*VOCAB, ["a", -3.0]], None, SPLIT), "a token twice"),
    "no unknown token": (definition(VOCAB, None, SPLIT, unk_id=None), "no token for unknown"),
    "an unknown token that is text": (definition(VOCAB, None, SPLIT, unk_id=2), "stands for text"),
    "unknown twice": (definition([*VOCAB, ["<unk><unk>", -2.0]], None, SPLIT), "several times"),
    "a byte is missing": (definition(VOCAB, None, SPLIT, byte_fallback=True), "byte 0x00"),
    "a setting": (definition(VOCAB, None, SPLIT, alpha=0.1), "unknown setting 'alpha'"),
    "a long token": (definition([*VOCAB, ["a" * 600, -2.0]], None, SPLIT), "very long token"),
    "no pretokenizer": (definition(VOCAB, None, None), "pre_tokenizer"),
    "another mark": (definition(VOCAB, None, {**SPLIT, "replacement": "_"}), "'_' for a space"),
    "two of them": (definition(VOCAB, None, sequence(SPLIT, SPLIT)), "pre_tokenizer"),
    "a normalizer": (
        definition(VOCAB, {"type": "ByteLevel"}, SPLIT),
        "normalizer is ByteLevel",
    ),
    "an expression": (
        definition(VOCAB, replaces("Regex", "a*", "a"), SPLIT),
        "its normalizer has a Replace of what may be empty",
    ),
    "a begin that goes": (
        definition(VOCAB, {"type": "Strip", "strip_left": True, "strip_right": True}, SPLIT),
        "the begin of a text",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_goes_to_the_library(tmp_path: Path, case: str) -> None:
    written, reason = REFUSED[case]
    left_to_the_library(save(tmp_path, written), reason)


def test_rules_that_are_broken_go_to_the_library(tmp_path: Path) -> None:
    """A place outside of them: the library fails only at a text that leads there."""
    units = [1 << 10 | 0x100, *[0xFFFFFC00 | byte for byte in range(255)]]
    blob = (1024).to_bytes(4, "little") + b"".join(u.to_bytes(4, "little") for u in units) + b"a\0"
    rules = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}
    written = definition(VOCAB, rules, METASPACES["always"])
    left_to_the_library(save(tmp_path, written), "normalization rules")


# Tokenizers.


def test_a_tokenizer_is_what_it_was_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(unigram_json(trained("folding unigram"), "XLM-R"))
    texts = ["The  cat <mask> sat</s>", "", "\u4e2d\U0001f600", "<s>", "the cat"]
    is_as_with_the_library(path, (SPACE + "the", "<s>", "<mask>", "none"), texts)


def test_its_definition_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(unigram_json(trained("folding unigram"), "ALBERT"))
    first, again = loaded_and_kept(path, tmp_path, "spec_of", monkeypatch)
    assert again.encode("The \u00c9t\u00e9") == first.encode("The \u00c9t\u00e9")
