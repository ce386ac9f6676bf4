"""Byte-level BPE of a tokenizer.json with parts that are rare: the ids of its library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.tiny_tokenizers import (
    EOD,
    added,
    any_vocabulary,
    save,
    some_added,
    tiny,
    with_ids,
)
from support.tokenizers_twin import Twin, block, made_of

from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer

if TYPE_CHECKING:
    from pathlib import Path

BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
TOKENS = [
    "<m>",
    "ab",
    "a",
    "b",
    "\u00e9",
    "e\u0301",
    "<m",
    "m>",
    "\u4e2d",
    "_",
    "a b",
    "\u2581",
    EOD,
]
PIECES = [
    *(
        "a",
        "b",
        "c",
        "ab",
        "abc",
        " ",
        "  ",
        "\n",
        "\t",
        "\u00a0",
        "\u3000",
        "\u0085",
        "'s",
        "1",
        "23",
    ),
    *(
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u4e2d",
        "\u200d",
        "\u00b2",
        "_",
        ".",
        "!?",
        "\U0001f600",
        "A",
    ),
    *("\u212b", "\ufb01", "\u0130", "\0", "\u2028", "\u0e33", "\U0001d400", "\u203f", "\u180e"),
]


def sequence(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(steps) < 2:
        return steps[0] if steps else None
    return {"type": "Sequence", kind: steps}


def with_tokens(written: dict[str, Any], tokens: list[dict[str, Any]]) -> dict[str, Any]:
    known = dict(written["model"]["vocab"])
    return {**written, "added_tokens": [added(EOD, 258), *with_ids(known, tokens)]}


# Added tokens that take white space along, or are only found between words.

FORMS: list[list[dict[str, Any]]] = [[], [], [{"type": "NFC"}], [{"type": "NFKD"}]]


@st.composite
def with_added(draw: st.DrawFn) -> dict[str, Any]:
    settings = {"add_prefix_space": draw(st.booleans()), "use_regex": draw(st.booleans())}
    written = {
        **tiny(),
        "normalizer": sequence("normalizers", draw(st.sampled_from(FORMS))),
        "pre_tokenizer": {**BYTES, **settings},
    }
    return with_tokens(written, draw(some_added(TOKENS[:-1], 4)))


test_any_added_tokens = any_vocabulary(with_added(), [*PIECES, *TOKENS], examples=150)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_each_character_beside_a_token(tmp_path: Path, flag: str) -> None:
    """Which are white space, and which are of words."""
    written = with_tokens(tiny(), [added("<m>", 0, **{flag: True})])
    both = Twin(load_tokenizer(save(tmp_path, written)))
    planes = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000)]
    rest = [c for c in range(0x34000, 0x110000) if c % 89 == 0 or c & 0xFFFF > 0xFFFB]
    every = list(map(chr, sorted({*planes, *rest})))
    texts = ["".join(f"{c}<m>{d}." for c in every) for d in (" ", "")]
    texts.append("".join(f".<m>{c}<m>" for c in every))
    for mode in ("text", "encode"):
        assert both.native(texts, mode) == both.slow(texts, mode)


PHI_4 = {"lstrip": True, "rstrip": True, "special": True}
FAMILIES = {
    "Phi-4's": [added(f"<|dummy_{i}|>", 0, **PHI_4) for i in range(96)],
    "RoBERTa's": [added("<mask>", 0, lstrip=True), added("<s>", 0, normalized=True)],
    "ModernBERT's": [
        added("[MASK]", 0, lstrip=True),
        added("|||IP_ADDRESS|||", 0, special=False, normalized=True),
        *(added(" " * n, 0, special=False, normalized=True) for n in range(24, 1, -1)),
    ],
    "of a config": [added("<tool>", 0, special=False, single_word=True, normalized=True)],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path: Path, family: str) -> None:
    tokens = FAMILIES[family]
    path = save(tmp_path, with_tokens(tiny(), tokens))
    both = Twin(load_tokenizer(path))
    names = [token["content"] for token in tokens]
    both.compare(made_of([*PIECES, *names, *(f" {name}\n" for name in names)], 300, family))
    both.compare([" " * n + f"{names[0]}" + " " * n for n in range(70)])


def is_as_before(path: Path) -> None:
    """Manifests have the fingerprint from a version in which the library encoded."""
    tokenizer = load_tokenizer(path)
    assert tokenizer.native
    library = HuggingFaceTokenizer(str(path), path.read_bytes(), why_not_native="")
    library.special_tokens_default = tokenizer.special_tokens_default
    assert tokenizer.fingerprint == library.fingerprint
    assert tokenizer.kind == library.kind


@pytest.mark.parametrize("special", [True, False])
def test_the_fingerprint_is_that_of_the_library(tmp_path: Path, *, special: bool) -> None:
    for flags in ({"lstrip": True}, {"rstrip": True}, {"single_word": True}):
        token = added("<m>", 0, special=special, **flags)
        is_as_before(save(tmp_path, with_tokens(tiny(), [token])))


def test_a_token_is_placed_with_its_white_space(tmp_path: Path) -> None:
    path = save(tmp_path, with_tokens(tiny(), [added("<m>", 0, lstrip=True, rstrip=True)]))
    core = load_tokenizer(path).core(dtype="int32")  # type: ignore[attr-defined]
    text = b"ab  <m>\n\nc"
    encoded = core.encode(*block([text]), offsets=True)
    assert encoded.offsets.tolist() == [[0, 2], [2, 9], [9, 10]]
    assert encoded.unplaced.tolist() == []


def test_tokens_that_compete_for_white_space_go_to_the_library(tmp_path: Path) -> None:
    tokens = [added("<m>", 0, rstrip=True), added(" x", 0)]
    tokenizer = load_tokenizer(save(tmp_path, with_tokens(tiny(), tokens)))
    assert "takes in the text around it" in tokenizer.why_not_native


# Byte fallback, for which a BPE that has a token for each byte has no use.


@st.composite
def with_fallback(draw: st.DrawFn) -> dict[str, Any]:
    names = [f"<0x{byte:02X}>" for byte in (0, 0x20, 0x61, 0xC3, 0xE4, 0xFF)]
    written = tiny(
        byte_fallback=True,
        fuse_unk=draw(st.booleans()),
        unk_token=draw(st.sampled_from([None, "<unk>", "ab"])),
        ignore_merges=draw(st.booleans()),
    )
    for name in [*draw(st.lists(st.sampled_from(names))), "<unk>"]:
        vocab = written["model"]["vocab"]
        vocab.setdefault(name, len(vocab))
    return written


test_any_byte_fallback = any_vocabulary(with_fallback(), [*PIECES, "<0x61>"], examples=40)


def test_byte_fallback_keeps_the_fingerprint(tmp_path: Path) -> None:
    is_as_before(save(tmp_path, tiny(byte_fallback=True)))
    assert load_tokenizer(save(tmp_path, tiny())).kind == "byte-level BPE"
