"""The native pretokenizers against the Hugging Face library, piece by piece."""

from __future__ import annotations

import functools
import io
import itertools
import json
import sys
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from tokpack import _core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + LINES

# The regular expressions as tokenizer.json files have them; several where they mean the same.
SPLITS = {
    "gpt2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "llama3": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    ],
    "qwen2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL],
    "qwen35": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + LINES
    ],
    "o200k": [
        f"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + LINES
    ],
    "tekken": [
        f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + LINES
    ],
}
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-\u309f\u30a0-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]

BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = ByteLevel(add_prefix_space=False)


def splits(*patterns: str) -> PreTokenizer:
    """Splits one after the other, then bytes."""
    return Sequence([*(Split(Regex(one), "isolated") for one in patterns), BYTES])


ORACLES: dict[str, list[PreTokenizer]] = {
    "digits_gpt2": [Sequence([Digits(individual_digits=True), GPT2])],
    "none": [BYTES],
    "deepseek_v3": [splits(*DEEPSEEK_V3)],
    **{name: [splits(one) for one in regexes] for name, regexes in SPLITS.items()},
}
ORACLES["gpt2"].append(GPT2)
NAMES = sorted(ORACLES)
PAIRS = [(name, oracle) for name in NAMES for oracle in ORACLES[name]]


def expected(oracle: PreTokenizer, text: str) -> npt.NDArray[np.int64]:
    """End of each piece in bytes; the pieces of ByteLevel have one character a byte."""
    pieces = oracle.pre_tokenize_str(text)
    return np.cumsum([len(piece) for piece, _ in pieces], dtype=np.int64)


@functools.cache
def core(name: str) -> _core.Pretokenizer:
    """A pattern of the core."""
    return _core.Pretokenizer(name)


def native(name: str, text: str) -> npt.NDArray[np.int64]:
    """The same from the core's plain code, and from its scanners, which must agree with it."""
    plain = core(name).ends(text.encode(), "plain")
    for level in _core.simd_levels():
        scanned = core(name).ends(text.encode(), level)  # type: ignore[arg-type]
        assert np.array_equal(scanned, plain), (name, level, text)
    return plain


def check(name: str, oracle: PreTokenizer, text: str) -> None:
    """Equal, or a message with the first piece that differs."""
    mine, theirs = native(name, text), expected(oracle, text)
    if np.array_equal(mine, theirs):
        return
    data = text.encode()
    at = next(
        i for i, (a, b) in enumerate(itertools.zip_longest(mine, theirs, fillvalue=-1)) if a != b
    )
    begin = int(mine[at - 1]) if at else 0
    pytest.fail(
        f"{name}: piece {at} at byte {begin} of {data[begin : begin + 40]!r}: "
        f"ends {mine[at : at + 3] - begin}, the library has {theirs[at : at + 3] - begin}"
    )


TRAPS = [
    "",
    "a",
    " ",
    "\n",
    "\x00",
    # white space: \s+(?!\S), the last space before a word, the end of the text, what is no space
    "a  b",
    "a \n b",
    "abc   ",
    "x \u3000\u3000y",
    "a\u00a0b \u00a0 c",
    "a\u0085b\u2028c\u2029 d\u202f\u205fe\u1680 f\u2000\u200a\u180e\u200b\ufeff g\x1c\x1d\x1e\x1f",
    " \n's",
    "\x0c's",
    "\t\tif x:\n\t\t\treturn\n\n\n  \n y",
    "a\r\n\r\n  b\r c\n \r\n",
    "!\n\n \n",
    " \n \u3000",
    "...\r\n\r\nx",
    "/\n/\n//\r/ a",
    # contractions: case, place, lengths, U+017F
    "DON'T don't Don'T I'LL we'Ve they'rE 'S's",
    " 's",
    "!'s",
    "''s",
    "rock'n'roll",
    "x'",
    "x'l",
    "x'r",
    "it'\u017f it'\u017fs \u017f'\u017f",
    "he\u2019s",
    "x's's're've'll'd'm't",
    "X'SX'REX'VEX'LLX'DX'MX'T",
    "'sa 'lla a'LLa",
    "o\u0301's \u0301's '\u0301s",
    # letters and numbers that are nearly none, and what is new in Unicode 16 and 17
    "\u24b6's \u2160's \u00bd's \u0e33's",
    "\u1c89's \u088f's \U000323b0's \U00010d40's \U00016ff4's \U00011de0's",
    "1234567 12 1 \u0661\u0662\u0663\u0664 \u00b2\u00b3\u00b9\u2074 1a2b 3.14",
    "  1  22\n333 4444'5",
    # case runs of o200k, with marks and letters without case
    "HTMLParser HelloWorld helloWORLD \u01c5ABC A\u4e2dB \u4e2dABC! ABC\u4e2d! a\u4e2dA",
    "\u0301ABC \u0301abc \u0301!\u0301\u0301A \u0301's !\u0301A?\u0301",
    "A\u02b0B\u02b0! \u02b0's \u02b0A's",
    "e\u0301e\u0301 E\u0301A\u0301b \u0915\u094d\u0937\u093f",
    # DeepSeek: CJK runs, punctuation before letters, what matches nothing
    "中文ひらカタ・ー\u30a0・\u3099か\u3099\u3040\u3097中!中abc 中 中\n",
    "\u4dff一龥\u9fa6龥\u9fff\u303f\u3040\u30ffㄅ",
    "・\n ・ \n中 \n中\u3000中  中  1  a",
    "!abc!\u00e9 .abc\u00e9 _x -y --z a.b.c @abc1",
    "\x00\x00abc\x01\x02\x03 \x04\x05\n\u200b\u200bx\u200b\u200b1\u200b\u200b中\ue000\U000fffff!",
    "\u0378\u0378\u0301 \u0378 \u0378a\u0378",
    # emoji, flags, joiners
    "😀😀👩\u200d👩\u200d👧 🇨🇭 ☝🏽 x😀y 😀's",
    "a" * 70 + " " + "-" * 70 + " " * 70 + "1" * 70 + "\n" * 70 + "é" * 70,
    "<|endoftext|> hello<|endoftext|>",
]


def test_every_pattern_is_known_here() -> None:
    assert sorted(_core.patterns()) == NAMES


@pytest.mark.parametrize("text", TRAPS, ids=range(len(TRAPS)))
def test_traps(text: str) -> None:
    for name, oracle in PAIRS:
        check(name, oracle, text)


ATOMS = st.sampled_from(
    [
        *" \n\t\r'!./-aAzZsStTlLrRvVeEdDmM19_\x00\x0b\x1c\u0085\u00a0\u00bd\u00e9\u00c9\u0301",
        *"\u017f\u01c5\u02b0\u0378\u0661\u0915\u094d\u180e\u1c89\u200b\u200d\u2019\u2028\u2160\u24b6",
        *"\u3000\u3040\u3099\u30fb\u30fc\u4e2d\u9fa6\uac00\ue000\ufeff\U00016ff4\U0001d400😀🇨",
        *["  ", "\r\n", "'s", "'LL", "'Ve", "123", "12345", "word", " Word", "ABC", "...", "中文"],
    ]
)
TEXTS = st.lists(st.one_of(ATOMS, ATOMS, ATOMS, st.characters(codec="utf-8")), max_size=40).map(
    "".join
)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_random_texts(text: str) -> None:
    for name, oracle in PAIRS:
        check(name, oracle, text)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_a_pretoken_depends_on_nothing_before_it(text: str) -> None:
    data = text.encode()
    for name in NAMES:
        ends = core(name).ends(data, "plain")
        for i, end in enumerate(ends):
            rest = core(name).ends(data[end:], "plain")
            assert np.array_equal(rest + end, ends[i + 1 :]), (name, end)


def code_points() -> Iterator[str]:
    """Every code point that UTF-8 can hold."""
    return (chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)


def in_a_run(c: str) -> bool:
    """Whether it is a symbol or unassigned, as are others up to eight places away."""
    kind = category(c)
    around = (chr(ord(c) + step) for step in (-8, -1, 1, 8) if 0 <= ord(c) + step <= sys.maxunicode)
    return kind in ("Cn", "Co", "So") and all(category(other) == kind for other in around)


@pytest.mark.slow
def test_every_code_point_before_a_contraction() -> None:
    singles = [f"\n{c}'s" for c in code_points()]
    # Planes 4 to 13 are unassigned, 15 and 16 private.
    check("gpt2", GPT2, "".join(one for one in singles if ord(one[1]) >> 16 in (0, 1, 2, 3, 14)))
    text = "".join(singles)
    sizes = np.fromiter((len(one.encode()) for one in singles), dtype=np.int64)
    apostrophes = np.cumsum(sizes) - 2
    is_end = np.zeros(int(sizes.sum()) + 1, dtype=bool)
    is_end[native("gpt2", text)] = True
    contracted = is_end[apostrophes] & is_end[apostrophes + 2]
    # Letters, numbers and spaces (but U+0020, which the apostrophe joins) of Unicode 16.
    assert int(contracted.sum()) == 142_963


@functools.cache
def kinds() -> list[str]:
    """Code points of every kind: few of the vast ranges of ideographs, syllables, unassigned and
    private characters, and few from the middle of shorter runs of symbols and unassigned ones."""
    vast = (
        *((0x3400, 0xA000), (0xAC00, 0xD700), (0xE000, 0xF800), (0x12600, 0x16800)),
        *((0x17000, 0x1B000), (0x20000, sys.maxunicode + 1)),
    )
    some = []
    for c in code_points():
        block = 0x100 if ord(c) < 0x40000 else 0x10000  # from here on whole planes are of one kind
        edge = ord(c) % block in (0, 1, 165, 166, block - 2, block - 1)
        if edge or not (any(a <= ord(c) < b for a, b in vast) or in_a_run(c)):
            some.append(c)
    return some


@pytest.mark.slow
@pytest.mark.parametrize(("name", "oracle"), PAIRS, ids=[name for name, _ in PAIRS])
def test_every_kind_of_code_point_in_context(name: str, oracle: PreTokenizer) -> None:
    contexts = ("", "a "), ("A", "'s"), (" ", "!"), ("\n", "1\u0301")
    for i, (lead, trail) in enumerate(contexts):
        check(name, oracle, "".join(lead + c + trail for c in kinds()[i % 2 :: 2]))


@pytest.mark.parametrize("corpus", ["owt", "english", "code", "multi", "nasty"])
def test_real_documents(data: Path, corpus: str) -> None:
    packed = (data / "corpora" / f"{corpus}.jsonl.zst").read_bytes()
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
    with decompressor.stream_reader(packed) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
        texts = [json.loads(line)["text"][:20_000] for line in itertools.islice(lines, 40)]
    text = "\n".join(texts)[:120_000]
    for name, oracle in PAIRS:
        check(name, oracle, text)
