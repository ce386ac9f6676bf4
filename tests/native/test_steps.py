"""Pre-tokenizers of one step or several in the core, against the Hugging Face library's own."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from support.split_patterns import PRE_TOKENIZERS, pre_tokenizer
from support.tiny_tokenizers import characters
from support.tokenizers_twin import corpus
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from tokpack import _core
from tokpack.tokenizers.patterns import core_pattern, recognize

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = ["plain", *_core.simd_levels()]


def expected(library: PreTokenizer, text: str) -> list[int]:
    """End of each piece in bytes; the pieces of ByteLevel have one character a byte."""
    return list(itertools.accumulate(len(piece) for piece, _ in library.pre_tokenize_str(text)))


def compare(name: str, texts: list[str]) -> None:
    library = pre_tokenizer(PRE_TOKENIZERS[name])
    core = _core.Pretokenizer(core_pattern(recognize(PRE_TOKENIZERS[name])))
    for text in texts:
        wanted = expected(library, text)
        for level in LEVELS:
            actual = core.ends(text.encode(), level)  # type: ignore[arg-type]
            assert actual.tolist() == wanted, level


POOL = (
    "aZ\u00e9\u0130\u01c5\u02b0\u4e2d\u30ab\u0301\u0903 '\u017f\n\r\t\u3000\u00a0\u2028"
    "1\u0662\u00b2.,/-!\u00bf\u20ac<|\U0001f600\u3007\u2e80s123456789  \n"
)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_random_texts(name: str) -> None:
    rng = random.Random(11)
    texts = ["".join(rng.choices(POOL, k=rng.randint(0, 90))) for _ in range(300)]
    digits = ["".join(rng.choices("0123456789a .", k=rng.randint(1, 200))) for _ in range(40)]
    compare(name, [*texts, *digits, "1" * 9_001 + "x", " " * 5_000, "a" * 5_000 + "\n"])


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_code_points_between_all_kinds_of_neighbours(name: str) -> None:
    rng = random.Random(8)
    rest = [*range(0x3000, 0xD800), *range(0xE000, 0x110000)]
    points = [*range(0x300), *rng.sample(range(0x300, 0x3000), 3000), *rng.sample(rest, 1000)]
    texts = []
    for begin in range(0, len(points), 256):
        characters = [chr(c) for c in points[begin : begin + 256]]
        texts.append("".join(f"{c}'s{c} {c}a1{c}A\n{c}/{c}b'" for c in characters))
    compare(name, texts)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_real_documents(data: Path, name: str) -> None:
    for kind in ("english", "code", "multi", "nasty"):
        compare(name, ["\n".join(corpus(data, kind, 1 << 18))[:60_000]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["word", "digit", "space", "han", "category", "punctuation"])
def test_sets_have_the_characters_that_the_library_has(name: str) -> None:
    expressions = {
        "word": [r"\w", r"\b."],
        "digit": [r"\d", r"\h"],
        "space": [r"\s", r"\S"],
        "han": [r"\p{Han}", r"\p{^Greek}", r"\p{Thai}|\p{Hangul}", r"\p{Inherited}"],
        "category": [rf"\p{{{c}}}" for c in ("L", "Lm", "Mn", "Nd", "Nl", "Pc", "S", "Cn", "Zs")],
        "punctuation": [],
    }[name]
    text = "".join(characters(1))
    nodes: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": e}, "behavior": "Isolated", "invert": False}
        for e in expressions
    ]
    if name == "punctuation":
        nodes = [{"type": "Punctuation", "behavior": "Isolated"}]
        nodes.append({"type": "Digits", "individual_digits": True})
    for node in nodes:
        steps = {"type": "Sequence", "pretokenizers": [node, BYTES]}
        core = _core.Pretokenizer(core_pattern(recognize(steps)))
        assert core.ends(text.encode()).tolist() == expected(pre_tokenizer(steps), text)


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ATOMS = [
    *("a", "b", " ", "1", "\n", "\u00e9", "\u4e2d", "'", "S", "."),
    *("(?i:'s)", "(?i:s)", "(?i:[st])"),
    *(r"\s", r"\S", r"\p{L}", r"\p{N}", r"\d", r"\w", r"\W", r"\p{Lu}", r"\p{Han}", r"\x{e9}"),
    *("[ab]", "[^a]", r"[^\s\p{L}]", "[a-b1]", r"[\s\p{N}]", r"[\p{L}&&[^a]]", r"[^(\s|[.,])]"),
]
EDGES = [r"\b", r"\B", "^", "$", r"\A", r"\z"]
TIMES = ["?", "*", "+", "{1,2}", "{2}", "{1,3}", "{2,}", "{,2}", "??", "*?", "+?", "{1,2}?"]
TIMES += ["++", "?+", "*+", "{1,2}+"]
BEHAVIORS = {
    "isolated": "Isolated",
    "contiguous": "Contiguous",
    "merged_with_previous": "MergedWithPrevious",
    "merged_with_next": "MergedWithNext",
    "removed": "Removed",
}


def random_choice(rng: random.Random, depth: int) -> str:
    """Alternatives of an expression."""
    return "|".join(
        "".join(random_part(rng, depth) for _ in range(rng.randint(1, 4)))
        for _ in range(rng.choice([1, 1, 2, 3]))
    )


def random_part(rng: random.Random, depth: int) -> str:
    """A group, a look around or a set, repeated or not."""
    draw = rng.random()
    atom = rng.choice(ATOMS)
    if depth > 0 and draw < 0.3:
        atom = rng.choice(["(?:", "(", "(?>"]) + random_choice(rng, depth - 1) + ")"
    elif draw < 0.36:
        inside = random_choice(rng, depth - 1) if depth > 0 else atom
        return f"{rng.choice(['(?=', '(?!'])}{inside})"
    elif draw < 0.39:
        return f"{rng.choice(['(?<=', '(?<!'])}{atom})"
    elif draw < 0.43:
        return rng.choice(EDGES)
    return atom if rng.random() < 0.5 else atom + rng.choice(TIMES)


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions(seed: int) -> None:
    """What the core understands it cuts by as the library does; the rest it refuses."""
    rng = random.Random(seed)
    understood = 0
    while understood < 60:
        expression = random_choice(rng, 2)
        behavior, inverted = rng.choice([*BEHAVIORS]), rng.random() < 0.3
        steps = [(BEHAVIORS[behavior], expression, inverted), ("ByteLevel", "", False)]
        try:
            core = _core.Pretokenizer(steps)
        except ValueError:
            continue
        understood += 1
        split = Split(Regex(expression), behavior, inverted)
        library = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
        for _ in range(5):
            text = "".join(rng.choices("ab 1\n\u00e9\u4e2d'sS\u017f\r-A2_", k=rng.randint(0, 14)))
            actual = core.ends(text.encode(), "plain").tolist()
            assert actual == expected(library, text), (json.dumps(steps), text)


@pytest.mark.parametrize(
    "expression",
    [
        *(r"(a)\1", "(?<n>a)\\k<n>", r"\R", r"\X", r"\Ga", r"a\Z", r"\p{Nonsense}", r"\p{Emoji}"),
        *("(?i)a", "(?m:a)", "(?x: a)", "(?i:ss)", "(?i:mast)", "(?i:(?:s)t)", "(?i:\u00e9)"),
        *("(?i:[^a])", r"(?i:\p{Lu})", "(?:a|b?)*", "(?:a?){2,}", "a**", "a{2}?", "(?:ab)++"),
        *("(?>ab|a)", "(?<=ab)c", "(?=a(?=bc))", "[[:alpha:]]", "[a", "(a", "a)", "*", "[z-a]"),
        *("a{2000}", "(" * 200 + "a" + ")" * 200, r"[\w-a&&b", r"[a-\d]", "\\", r"\u12", r"\xff"),
        *(r"(?:(?:a{50}){50}){50}", "[]a]"),
    ],
)
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"^(?!.*pattern)"):
        _core.Pretokenizer([("Isolated", expression, False), ("ByteLevel", "", False)])


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([("Isolated", "a", False)], "no ByteLevel"),
        ([("ByteLevel", "", True), ("ByteLevel", "", False)], "ByteLevel twice"),
        ([("Sideways", "a", False), ("ByteLevel", "", False)], "the behavior Sideways"),
        ([("Digits", "", True), ("Isolated", "(a", False), ("ByteLevel", "", False)], "step 2"),
    ],
)
def test_steps_that_are_not_understood(steps: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _core.Pretokenizer(steps)


@pytest.mark.parametrize("inverted", [True, False])
def test_what_is_removed_is_in_no_piece(*, inverted: bool) -> None:
    core = _core.Pretokenizer([("Removed", "a+", inverted), ("ByteLevel", "", False)])
    assert not core.keeps_text
    assert core.name is None
    for level in LEVELS:
        ends = core.ends(b"aabxaaay", level)  # type: ignore[arg-type]
        assert ends.tolist() == ([2, 5] if inverted else [2, 3])


def test_pieces_get_a_space_in_front() -> None:
    core = _core.Pretokenizer([("Digits", "", True), ("ByteLevel", "add_prefix_space", False)])
    assert core.ends(b"a1 b").tolist() == [2, 4, 6]


def test_other_spellings_of_a_pattern_have_its_name() -> None:
    cl100k = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    )
    bytes_only = ("ByteLevel", "", False)
    assert _core.Pretokenizer([("Isolated", cl100k, False), bytes_only]).name == "llama3"
    assert _core.Pretokenizer([("Removed", cl100k, True), bytes_only]).name == "llama3"
    bailing = cl100k.replace("{1,3}", "")
    assert _core.Pretokenizer([("Isolated", bailing, False), bytes_only]).name == "qwen2"
    another = cl100k.replace(r"\s+(?!\S)", r"\s+(?=\s)")
    assert _core.Pretokenizer([("Isolated", another, False), bytes_only]).name is None
    gpt2 = _core.pattern_steps("gpt2")
    split = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    assert _core.Pretokenizer([("Isolated", split, False), bytes_only]).name == "gpt2"
    assert gpt2 == [("ByteLevel", "", True)]
