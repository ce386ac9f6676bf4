"""Byte-level BPE of a tokenizer.json with parts that are rare: the ids of its library."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from support.tiny_tokenizers import (
    ALPHABET,
    EOD,
    SPARSELY,
    added,
    any_vocabulary,
    characters,
    save,
    some_added,
    tiny,
    with_ids,
)
from support.tokenizers_twin import Twin, block, is_as_with_the_library, made_of

from tokpack import _core
from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, assembled
from tokpack.tokenizers.patterns import core_pattern, recognize

if TYPE_CHECKING:
    from pathlib import Path

BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
WHOLE = {**BYTES, "use_regex": False}
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
@pytest.mark.parametrize("one_in", SPARSELY)
def test_each_character_beside_a_token(tmp_path: Path, flag: str, one_in: int) -> None:
    """Which are white space, and which are of words."""
    written = with_tokens(tiny(), [added("<m>", 0, **{flag: True})])
    both = Twin(load_tokenizer(save(tmp_path, written)))
    every = characters(one_in)
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


# Pre-tokenizers that leave text out, or put spaces in front of pieces.


def split(expression: str, behavior: str, *, invert: bool = False) -> dict[str, Any]:
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
EXPRESSIONS = [
    r"\s",
    r"\s+",
    r"\p{L}+",
    "a|b",
    r"\w+|[^\w\s]+",
    "b?",
    r"(?=a)",
    r"\p{N}{1,2}|.",
    "c$",
]


@st.composite
def cuts(draw: st.DrawFn) -> dict[str, Any]:
    """A pre-tokenizer."""
    kinds = ["Split", "Split", "text", "plain", "Digits", "Punctuation", "Metaspace", "else"]
    kind = draw(st.sampled_from(kinds))
    behavior, flag = draw(st.sampled_from(BEHAVIORS)), draw(st.booleans())
    if kind == "Split":
        return split(draw(st.sampled_from(EXPRESSIONS)), behavior, invert=flag)
    if kind == "text":
        return {
            **split("", behavior, invert=flag),
            "pattern": {"String": draw(st.sampled_from(["a", "b.", " "]))},
        }
    if kind == "plain":
        plain = ["WhitespaceSplit", "Whitespace", "BertPreTokenizer", "UnicodeScripts"]
        return {"type": draw(st.sampled_from(plain))}
    if kind == "Metaspace":
        scheme = draw(st.sampled_from(["always", "first", "never"]))
        return {"type": kind, "replacement": draw(st.sampled_from("\u2581 _")), "split": flag} | {
            "prepend_scheme": scheme
        }
    if kind == "Digits":
        return {"type": "Digits", "individual_digits": flag}
    if kind == "Punctuation":
        return {"type": "Punctuation", "behavior": behavior}
    if flag:
        return {"type": "CharDelimiterSplit", "delimiter": draw(st.sampled_from("ab \u00e9."))}
    return {"type": "FixedLength", "length": draw(st.integers(1, 4))}


@st.composite
def with_cuts(draw: st.DrawFn) -> dict[str, Any]:
    some = st.lists(cuts(), max_size=2)
    settings = {"add_prefix_space": draw(st.booleans()), "use_regex": draw(st.booleans())}
    steps = [*draw(some), {**BYTES, **settings}, *draw(some)]
    written = {**tiny(), "pre_tokenizer": sequence("pretokenizers", steps)}
    return with_tokens(written, draw(some_added(TOKENS[:-1], 2)))


test_any_cuts = any_vocabulary(with_cuts(), [*PIECES, *TOKENS], examples=150)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "WhitespaceSplit"},
        {"type": "Whitespace"},
        {"type": "BertPreTokenizer"},
        {"type": "Punctuation", "behavior": "Removed"},
        {"type": "CharDelimiterSplit", "delimiter": "^"},
        {"type": "FixedLength", "length": 3},
        {"type": "UnicodeScripts"},
    ],
    ids=lambda step: str(step["type"]),
)
@pytest.mark.parametrize("one_in", SPARSELY)
def test_each_character_is_cut_as_by_the_library(step: dict[str, Any], one_in: int) -> None:
    text = "".join(f"a{c}a.{c}\u4e2d" for c in characters(one_in))
    steps = {"type": "Sequence", "pretokenizers": [step, WHOLE]}
    library = assembled("the library", pre_tokenizer=steps).pre_tokenizer
    assert library is not None
    ends = list(accumulate(len(piece) for piece, _ in library.pre_tokenize_str(text)))
    assert _core.Pretokenizer(core_pattern(recognize(steps))).ends(text.encode()).tolist() == ends


@pytest.mark.parametrize("step", ["WhitespaceSplit", "Whitespace"])
def test_words_of_all_lengths(tmp_path: Path, step: str) -> None:
    steps = [{"type": step}, {**BYTES, "add_prefix_space": True, "use_regex": False}]
    written = {**tiny(), "pre_tokenizer": sequence("pretokenizers", steps)}
    both = Twin(load_tokenizer(save(tmp_path, written)))
    texts = ["abc" * n + "\u4e2d" * m for n in (*range(12), 30, 400, 40_000) for m in (0, 1, 5, 70)]
    both.compare([" ".join(texts), *texts, *(" a" * n for n in range(250, 262))])


def test_what_removes_text_keeps_the_fingerprint(tmp_path: Path) -> None:
    steps = [{"type": "Whitespace"}, WHOLE]
    path = save(tmp_path, {**tiny(), "pre_tokenizer": sequence("pretokenizers", steps)})
    is_as_before(path)
    texts = ["abc", "ab c. \u00e9", "", f"a{EOD}", "abc"]
    is_as_with_the_library(path, ("ab", EOD, "none"), texts)


# Normalizers.


def replace(text: str, content: str, kind: str = "Regex") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: text}, "content": content}


NOT_EMPTY = [text for text in EXPRESSIONS if text not in ("b?", "(?=a)")]


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """A normalizer."""
    kind = draw(st.sampled_from(["Replace", "Replace", "plain", "plain", "Strip", "Prepend"]))
    if kind == "Replace":
        content = draw(st.sampled_from(["", " ", "b", "a\u00e9", "\u0301"]))
        if draw(st.booleans()):
            return replace(draw(st.sampled_from(["a", "ab", "\u00e9", "  "])), content, "String")
        return replace(
            draw(st.sampled_from([*NOT_EMPTY, r"\s{2,}|[\n\r\t]", " {2,}", r"^\s+", "\u0301$"])),
            content,
        )
    if kind == "Strip":
        sides = {side: draw(st.booleans()) for side in ("strip_left", "strip_right")}
        return {"type": "Strip", **sides}
    if kind == "Prepend":
        return {
            "type": "Prepend",
            "prepend": draw(st.sampled_from([" ", "a", "\u2581", "\u0301"])),
        }
    kinds = ["Lowercase", "StripAccents", "Nmt", "NFC", "NFD", "NFKC", "NFKD"]
    return {"type": draw(st.sampled_from(kinds))}


@st.composite
def with_changes(draw: st.DrawFn) -> dict[str, Any]:
    settings = {"add_prefix_space": draw(st.booleans())}
    written = {
        **tiny(),
        "normalizer": sequence("normalizers", draw(st.lists(changes(), max_size=4))),
        "pre_tokenizer": {**BYTES, **settings},
    }
    return with_tokens(written, draw(some_added(TOKENS[:-1], 3)))


test_any_changes = any_vocabulary(with_changes(), [*PIECES, *TOKENS], examples=150)


CLIP_CUT = split(
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", invert=True
)


@pytest.mark.parametrize(
    ("normalizer", "reason"),
    [
        (replace("b?", "x"), "a Replace of what may be empty"),
        (replace("(?>a|ab)c", "x"), "an atomic group"),
        ({"type": "Prepend", "prepend": ""}, "prepends nothing"),
        ({"type": "ByteLevel"}, "normalizer is ByteLevel"),
    ],
)
def test_what_the_library_fails_at_is_left_to_it(
    tmp_path: Path, normalizer: dict[str, Any], reason: str
) -> None:
    tokenizer = load_tokenizer(save(tmp_path, {**tiny(), "normalizer": normalizer}))
    assert reason in tokenizer.why_not_native


LOWER: list[dict[str, Any]] = [{"type": "NFC"}, replace(r"\s+", " "), {"type": "Lowercase"}]


def test_lower_case_keeps_the_fingerprint(tmp_path: Path) -> None:
    path = save(tmp_path, {**tiny(), "normalizer": sequence("normalizers", LOWER)})
    is_as_before(path)
    is_as_with_the_library(
        path, ("ab", EOD, "none"), ["ABC", "\u0130 \u03a3  c", "", f"a{EOD}", "abc"]
    )


def test_what_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    draw = random.Random(3)
    texts = [draw.randbytes(draw.randrange(60)) for _ in range(300)]
    written = suffixed()
    core = load_tokenizer(save(tmp_path, written)).core(dtype="int32")  # type: ignore[attr-defined]
    assert len(core.encode(*block([*texts, "abc"])).lengths) == 301


# The ends of words: CLIP's.


def suffixed(**model: Any) -> dict[str, Any]:
    """CLIP's pipeline with a few merges."""
    ends = ["ab</w>", "abc", "abc</w>", "bc</w>", "ab", "c<", "</", "w>"]
    merges = [("a", "b</w>"), ("ab", "c</w>"), ("b", "c</w>"), ("a", "b"), ("ab", "c"), ("c", "<")]
    tokens = [*ALPHABET, *(f"{letter}</w>" for letter in ALPHABET), *ends, EOD]
    written = tiny(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[*merges, ("<", "/"), ("w", ">")],
        end_of_word_suffix="</w>",
        **model,
    )
    return {
        **written,
        "normalizer": sequence("normalizers", LOWER),
        "pre_tokenizer": sequence("pretokenizers", [CLIP_CUT, BYTES]),
        "added_tokens": [added(EOD, len(tokens) - 1)],
    }


@st.composite
def with_suffix(draw: st.DrawFn) -> dict[str, Any]:
    written = suffixed(unk_token=EOD)
    merges = draw(st.permutations(written["model"]["merges"]))
    written["model"]["merges"] = merges[: draw(st.integers(0, len(merges)))]
    written["pre_tokenizer"] = sequence(
        "pretokenizers", draw(st.sampled_from([[CLIP_CUT, BYTES], [WHOLE], [BYTES]]))
    )
    written["normalizer"] = draw(st.sampled_from([None, written["normalizer"]]))
    known = dict(written["model"]["vocab"])
    tokens = with_ids(known, draw(some_added(TOKENS[:-1], 2)))
    return {**written, "added_tokens": [*written["added_tokens"], *tokens]}


test_any_suffix = any_vocabulary(with_suffix(), [*PIECES, *TOKENS, "</w>", "c<"], examples=100)


def test_words_with_an_end_of_all_lengths(tmp_path: Path) -> None:
    path = save(tmp_path, suffixed())
    both = Twin(load_tokenizer(path))
    both.compare(made_of([*PIECES, "</w>", "abc", "ABC"], 300, "suffix"))
    texts = [
        "abc" * n + c * m for n in (*range(12), 400, 40_000) for c, m in (("\u4e2d", 70), ("b", 1))
    ]
    both.compare(texts)
    is_as_before(path)
    is_as_with_the_library(
        path, ("ab</w>", EOD, "none"), ["abc c", "\u4e2d", "", f"a{EOD}", "abc ab ", ""]
    )


# Tokens that go on a word.


@st.composite
def with_prefix(draw: st.DrawFn) -> dict[str, Any]:
    prefix, suffix = (
        draw(st.sampled_from(["##", "a", "\u00e9"])),
        draw(st.sampled_from(["", "</w>"])),
    )
    letters = [letter + end for end in dict.fromkeys(("", suffix)) for letter in ALPHABET]
    tokens = dict.fromkeys([*letters, *(prefix + letter for letter in letters), EOD])
    firsts = ["a", "b", "ab", "#", "c"]
    merges = []
    for _ in range(draw(st.integers(0, 8))):
        left = draw(st.sampled_from([*firsts, *(prefix + one for one in firsts)]))
        right = draw(st.sampled_from(firsts)) + draw(st.sampled_from(["", suffix]))
        for token in (left, prefix + right, left + right):
            tokens.setdefault(token)
        merges.append((left, prefix + right))
        firsts.append((left + right).removeprefix(prefix).removesuffix(suffix) or "a")
    written = tiny(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=list(map(list, dict.fromkeys(merges))),
        continuing_subword_prefix=prefix,
        end_of_word_suffix=suffix or None,
        ignore_merges=draw(st.booleans()),
        unk_token=draw(st.sampled_from([None, "a"])),
    )
    settings = {"add_prefix_space": draw(st.booleans()), "use_regex": draw(st.booleans())}
    return {
        **written,
        "normalizer": draw(st.sampled_from([None, {"type": "NFC"}, LOWER[1]])),
        "pre_tokenizer": sequence(
            "pretokenizers", [*draw(st.lists(cuts(), max_size=1)), {**BYTES, **settings}]
        ),
        "added_tokens": [
            added(EOD, written["model"]["vocab"][EOD]),
            *with_ids(written["model"]["vocab"], draw(some_added(TOKENS[:-1], 2))),
        ],
    }


test_any_prefix = any_vocabulary(
    with_prefix(), [*PIECES, *TOKENS, "##", "#", "a" * 40], examples=100
)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"ignore_merges": True}, "in a way that is not understood"),
        ({"end_of_word_suffix": "\u4e2d"}, "prefix or suffix is outside"),
        ({"end_of_word_suffix": "</x>"}, "byte 0x00 at the end of a word"),
        ({"continuing_subword_prefix": "##"}, "byte 0x00 within a word"),
        ({"continuing_subword_prefix": "\u4e2d"}, "prefix or suffix is outside"),
    ],
)
def test_other_suffixes_go_to_the_library(
    tmp_path: Path, model: dict[str, Any], reason: str
) -> None:
    written = suffixed()
    written["model"].update(model, merges=[])
    assert reason in load_tokenizer(save(tmp_path, written)).why_not_native
