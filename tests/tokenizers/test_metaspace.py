"""A tokenizer.json with U+2581 for a space in the native core: the ids of its library."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.families import families
from support.sentencepiece_tools import HOSTILE, hugging_face, mistral, sentencepiece
from support.tiny_tokenizers import added, any_vocabulary, save, some_added, with_ids
from support.tokenizers_twin import (
    Twin,
    corpus,
    is_as_with_the_library,
    left_to_the_library,
    loaded_and_kept,
    made_of,
)
from support.wordpiece_tools import CUTS

from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
LLAMA = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
GEMMA_SPLIT = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def replaced(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def metaspace(scheme: str, split: bool | None = None, **more: Any) -> dict[str, Any]:
    known = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, **more}
    return known if split is None else {**known, "split": split}


# normalizer, pre_tokenizer
FORMS: dict[str, tuple[Any, Any]] = {
    "llama": (LLAMA, None),
    "llama, the other way round": ({"type": "Sequence", "normalizers": [REPLACE, PREPEND]}, None),
    "gemma": (REPLACE, GEMMA_SPLIT),
    "replace": (REPLACE, None),
    "old": (None, {"type": "Metaspace", "replacement": SPACE, "add_prefix_space": True}),
    **{
        f"{scheme}, {split}": (None, metaspace(scheme, split))
        for scheme in ("first", "always", "never")
        for split in (True, False)
    },
    "replace and metaspace": (REPLACE, metaspace("always", True)),
    "llama and metaspace": (LLAMA, metaspace("first", False)),
    # With more to do, texts are cut into words first.
    "llama and NFC": (
        {**LLAMA, "normalizers": [{"type": "NFC"}, *LLAMA["normalizers"]]},
        None,
    ),
    "NFKC and metaspace": ({"type": "NFKC"}, metaspace("always", True)),
    **{
        f"{name}'s": (families()[name].normalizer, families()[name].pre_tokenizer)
        for name in ("ChatGLM 3", "SigLIP 2's text encoder", "SeamlessM4T")
    },
    "NFKC, runs and first": (
        {"type": "Sequence", "normalizers": [{"type": "NFKC"}, RUNS, STRIP]},
        metaspace("first", True),
    ),
    "replaced by what is cut at": (
        {"type": "Sequence", "normalizers": [REPLACE, replaced("a", " ")]},
        GEMMA_SPLIT,
    ),
    "put together by what is removed": (
        {"type": "Sequence", "normalizers": [replaced("ab", "_"), replaced("_", ""), REPLACE]},
        {**GEMMA_SPLIT, "pattern": {"String": "ab"}},
    ),
    "replace and digits": (REPLACE, {"type": "Digits", "individual_digits": True}),
    "metaspace and others": (None, CUTS["Metaspace and others"]),
    "others and metaspace": (None, CUTS["others and Metaspace"]),
}
TOKENS = [
    *("<s>", "</s>", "<x>", "ab", "a b", " b", "b ", SPACE, SPACE + "a", "\n", "\n\n", "a<x"),
    *("\u00e9", "\u4e2d", "<0xC3>", "<", "b\u3000"),
]


def definition(
    characters: Iterable[str],
    merges: Iterable[tuple[str, str]],
    form: tuple[Any, Any],
    tokens: Iterable[dict[str, Any]] = (),
    /,
    **model: Any,
) -> dict[str, Any]:
    """A tokenizer.json of what the merges need, and all 256 bytes."""
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = list(merges)
    for left, right in merges:
        texts += [left, right, left + right]
    vocab = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": with_ids(vocab, [added("<unk>", 0), *tokens]),
        "normalizer": form[0],
        "pre_tokenizer": form[1],
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in merges],
            **model,
        },
    }


MERGES = [
    *(("a", "b"), (SPACE, "a"), (SPACE, SPACE), (SPACE + "a", "b"), (SPACE, "ab"), ("b", "b")),
    *((SPACE + SPACE, SPACE + SPACE), ("\n", "\n"), ("b", SPACE), ("b" + SPACE, "a")),
    *(("\u4e2d", "\u4e2d"), ("a", "\u00e9"), ("<", "x"), ("ab", "ab")),
]
FLAGGED = [
    added("<s>", 0),
    added("<x>", 0, lstrip=True, rstrip=True),
    added("</s>", 0, normalized=True),
    added("a b", 0, normalized=True, special=False),
    added(SPACE + "b", 0, special=False),
    added("ab\u00e9", 0, special=False, lstrip=True),
]


# With these an added token that is normalized is left to the library.
PLAIN = ("SeamlessM4T's", "NFKC, runs and first", "replaced by what is cut at")


def some(form: str = "llama", **model: Any) -> dict[str, Any]:
    tokens = [token for token in FLAGGED if not (form in PLAIN and token["normalized"])]
    return definition("<0x>ab", MERGES, FORMS[form], tokens, **model)


def twin(folder: Path, written: dict[str, Any]) -> Twin:
    return Twin(load_tokenizer(save(folder, written)))


PIECES = [
    *(" ", "  ", "a", "b", "ab", "bb", SPACE, "\n", "\t", "\u3000", "\u00e9", "\u4e2d", "c", "\0"),
    *(
        "<s>",
        "<x>",
        "</s>",
        "a b",
        "ab\u00e9",
        "<unk>",
        "<0x0A>",
        "<",
        "x>",
        "\U0001f600",
        "\ufffd",
    ),
]


# Equal ids.


@pytest.mark.parametrize("form", FORMS)
def test_texts_at_awkward_places(tmp_path: Path, form: str) -> None:
    twin(tmp_path, some(form)).compare([*made_of(PIECES, 300, form), *HOSTILE])


@pytest.mark.parametrize(
    "model",
    [
        {"byte_fallback": False},
        {"byte_fallback": False, "fuse_unk": False},
        {"ignore_merges": True},
        {"merges": [" ".join(pair) for pair in MERGES]},
        {"merges": ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]},
    ],
)
@pytest.mark.parametrize("form", ["llama", "first, False", "always, True"])
def test_other_settings(tmp_path: Path, form: str, model: dict[str, Any]) -> None:
    if "ignore_merges" in model and form.endswith("True"):
        return
    twin(tmp_path, some(form, **model)).compare([*made_of(PIECES, 200, form), "ab", " ab", "abab"])


def test_every_character_of_two_planes_and_some_of_the_others(tmp_path: Path) -> None:
    both = twin(tmp_path, some("first, True"))
    every = "".join(
        map(chr, [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 61)])
    )
    texts = [every[at : at + 50_000] for at in range(0, len(every), 50_000)]
    assert both.native(texts, "text") == both.slow(texts, "text")


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    characters = draw(st.sets(st.sampled_from(f"ab <0xC3>\n\u00e9\u4e2d{SPACE}"), min_size=1))
    texts = sorted(characters)
    merges = []
    for _ in range(draw(st.integers(0, 15))):
        pair = (draw(st.sampled_from(texts)), draw(st.sampled_from(texts)))
        merges.append(pair)
        texts.append("".join(pair))
    tokens = draw(some_added(TOKENS, 4))
    form = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    flags = ("byte_fallback", "fuse_unk", "ignore_merges")
    model = {key: draw(st.booleans()) for key in flags}
    return definition(characters, draw(st.permutations(merges)), form, tokens, **model)


test_any_vocabulary = any_vocabulary(definitions(), [*PIECES, *TOKENS], examples=30)


@pytest.fixture(scope="module")
def real(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mistral's model as a tokenizer.json."""
    path = tmp_path_factory.mktemp("mistral") / "tokenizer.json"
    written = hugging_face(mistral(data).tokenizer.raw).to_str()
    path.write_text(written)
    return path


@pytest.mark.parametrize("of", ["english", "code", "multi", "nasty"])
def test_real_documents(data: Path, real: Path, of: str) -> None:
    texts = [text[:5000] for text in corpus(data, of, limit=300_000)]
    Twin(load_tokenizer(real)).compare(texts[:30], modes=["text"])


def test_the_model_file_gives_the_same_ids(data: Path, real: Path) -> None:
    """Where no scores are equal, as those of runs of spaces are."""
    texts = [" ".join(text.split()) for text in corpus(data, "english", limit=300_000)[:30]]
    native = Twin(load_tokenizer(real)).native(texts, "text")
    model = sentencepiece.SentencePieceProcessor(model_proto=mistral(data).tokenizer.raw)
    assert native == model.encode(texts)


def test_a_long_word(tmp_path: Path) -> None:
    """Merging it takes time by its length, not by its square."""
    both = twin(tmp_path, some("first, True"))
    draw = random.Random(1)
    word = "".join(draw.choices("ab\u00e9\u4e2d", k=1 << 18))
    both.compare([word], modes=["text"])


# What is merged word by word, since texts cannot be cut elsewhere with the same ids.
BY_WORDS: dict[str, dict[str, Any]] = {
    "suffix": some(end_of_word_suffix="</w>", merges=[]),
    "ignore_merges of words": some("first, True", ignore_merges=True),
    "a byte is missing": definition(
        "a", [], FORMS["llama"], vocab={"<unk>": 0, "a": 1, "<0x00>": 2}
    ),
    "a byte that is merged": definition("a", [("a", "<0xC3>")], FORMS["llama"]),
    "an unknown token that is text": some(byte_fallback=False, unk_token="a"),
    "no space": definition("a", [], FORMS["first, True"], byte_fallback=False),
    "another mark": {
        **some("first, True"),
        "pre_tokenizer": metaspace("first", replacement="_"),
    },
}


@pytest.mark.parametrize("case", BY_WORDS)
def test_words(tmp_path: Path, case: str) -> None:
    both = twin(tmp_path, BY_WORDS[case])
    assert both.tokenizer.spec.encoder == "WordBPE"
    both.compare([*made_of(PIECES, 200, case), *HOSTILE])


def test_flags_of_normalized_tokens(tmp_path: Path) -> None:
    tokens = [added("<x>", 0, normalized=True, lstrip=True), added("b", 0, normalized=True)]
    written = definition("a", [], FORMS["llama"], tokens)
    twin(tmp_path, written).compare(made_of(PIECES, 200, "flags"))


def test_two_prefixes(tmp_path: Path) -> None:
    normalizer = {**LLAMA, "normalizers": [PREPEND, *LLAMA["normalizers"]]}
    twin(tmp_path, {**some(), "normalizer": normalizer}).compare(made_of(PIECES, 200, "two"))


# What is not native.

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no unknown token": (some(byte_fallback=False, unk_token=None), "neither byte fallback nor"),
    "a flag": ({**some(), "added_tokens": [added("<s>", 0, lazy=True)]}, "has 'lazy'"),
    "rstrip before white space": (
        definition("a", [], FORMS["llama"], [added("<x>", 0, rstrip=True), added(" a", 0)]),
        "around it",
    ),
    "two tokens are one": (
        definition(
            "a",
            [],
            FORMS["replace"],
            [added(text, 0, normalized=True) for text in ("a b", f"a{SPACE}b")],
        ),
        "twice, normalized",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_goes_to_the_library(tmp_path: Path, case: str) -> None:
    written, reason = REFUSED[case]
    left_to_the_library(save(tmp_path, written), reason)


# Tokenizers.


def test_a_tokenizer_is_what_it_was_with_the_library(tmp_path: Path) -> None:
    path = save(tmp_path, some())
    texts = ["ab  a </s>", "", "\u4e2d\U0001f600", "<s>", "<x>ab<s>", "ab  a \u4e2d\U0001f600"]
    is_as_with_the_library(path, (SPACE + "a", "<s>", "ab\u00e9", "none"), texts)


def test_its_definition_is_kept(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again = loaded_and_kept(real, tmp_path, "spec_of", monkeypatch)
    assert again.describe() == first.describe()
