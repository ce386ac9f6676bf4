"""The native normal forms against the Hugging Face library's."""

from __future__ import annotations

import io
import itertools
import json
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import NFC, NFD, NFKC, NFKD

from tokpack import _core

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers.definition import NormalForm


FORMS: dict[NormalForm, Any] = {"NFC": NFC(), "NFD": NFD(), "NFKC": NFKC(), "NFKD": NFKD()}


def native(text: str, form: NormalForm = "NFC") -> str:
    """Through the core."""
    return _core.normalize(form, text.encode()).decode()


def check(text: str) -> None:
    """Each form equal to the library's, or the text on failure."""
    for form, library in FORMS.items():
        mine, theirs = native(text, form), library.normalize_str(text)
        if mine != theirs:
            pytest.fail(f"{form} of {text[:200]!a} is {theirs[:200]!a}, not {mine[:200]!a}")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("plain", "plain"),
        ("e\u0301", "\u00e9"),
        ("\u212b", "\u00c5"),
        ("\u1100\u1161\u11a8", "\uac01"),
        ("\u1100\u1161", "\uac00"),
        ("\uac00\u11a8", "\uac01"),
        ("\uac01\u11a8", "\uac01\u11a8"),
        ("\uac00\u11a7", "\uac00\u11a7"),  # one before the first trailing jamo
        ("\u0958", "\u0915\u093c"),  # excluded from composition
        ("\ufb01", "\ufb01"),  # only compatible
        ("\u0344", "\u0308\u0301"),
        ("a\u0323\u0307", "\u1ea1\u0307"),
        ("a\u0307\u0323", "\u1ea1\u0307"),
        ("a\u0345\u0301", "\u00e1\u0345"),
        ("\u0301a\u0301", "\u0301\u00e1"),
        ("a\u0301\u0301", "\u00e1\u0301"),
        ("o\u031b\u0323\u0308", "\u1ee3\u0308"),
        ("\U0001d15e", "\U0001d157\U0001d165"),
        ("\U0002f800", "\u4e3d"),
        # newer than Unicode 9: not composed, not reordered
        ("\U00011935\U00011930", "\U00011935\U00011930"),
        ("\u0345\u0d3b", "\u0345\u0d3b"),
    ],
)
def test_traps(text: str, normal: str) -> None:
    assert native(text) == normal
    check(text)
    for size in range(56, 72):  # around the stride of the quick check
        check("x" * size + text + "y" * 70 + text)


def code_points() -> list[str]:
    """Every code point that UTF-8 can hold."""
    return [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]


@pytest.mark.slow
def test_every_code_point() -> None:
    # Alone, decomposed, and between marks of low and high combining class, which shows its class.
    singles = code_points()
    check("\n".join(singles))
    check(NFKD().normalize_str("\n".join(singles)))  # a line has nothing to do with the others
    check("".join(f"a\u0345{c}\u0334\u0301" for c in singles))


MARKS = "\u0300\u0301\u0308\u031b\u0323\u0327\u0334\u0338\u0345\u05b0\u093c\u09be\u0d3b\u3099\u302a"
STARTERS = "aAeoOuU\u00e5\u1ea1\u0915\u0928\u09c7\u0dd9\u304b\u212b\u2126\u0958\U0001d157\U00011099"
JAMO = "\u1100\u1112\u1113\u1160\u1161\u1175\u1176\u11a7\u11a8\u11c2\u11c3\uac00\uac01\ud7a3"


@settings(max_examples=400, deadline=None)
@given(
    st.text(
        st.one_of(
            st.sampled_from(MARKS),
            st.sampled_from(MARKS + STARTERS + JAMO + " \n"),
            st.characters(codec="utf-8", categories=["M", "L"]),
        ),
        max_size=30,
    )
)
def test_random_texts(text: str) -> None:
    check(text)


def test_random_runs_of_what_composes() -> None:
    # All characters that decompose, and those that they decompose into, in random order.
    points = [c for c in code_points() if c != "\n"]
    lines = NFKD().normalize_str("\n".join(points)).split("\n")
    pairs = zip(points, lines, strict=True)
    parts = sorted({p for c, d in pairs if d != c for p in c + d} | {*JAMO})
    rng = random.Random(1)
    for _ in range(40):
        check("".join(rng.choices(parts, k=5_000)))


def test_long_runs_of_marks_take_no_square_time() -> None:
    for text in ("a" + "\u0301\u0323" * 100_000, "\u0323\u0301" * 100_000, "\u1161" * 200_000):
        check(text)


@pytest.mark.parametrize("corpus", ["multi", "nasty", "owt"])
def test_real_documents(data: Path, corpus: str) -> None:
    packed = (data / "corpora" / f"{corpus}.jsonl.zst").read_bytes()
    with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(packed) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        texts = [json.loads(line)["text"][:20_000] for line in itertools.islice(lines, 100)]
    text = "\n".join(texts)[:500_000]
    check(text)
    check(NFD().normalize_str(text))
