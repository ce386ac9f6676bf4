"""Made up expressions: the core cuts texts where the Hugging Face library cuts them, or refuses.

    python -m torture.patterns --seed 1 --minutes 5

A seed is a pre_tokenizer of one to three steps and some texts. Expressions use what split patterns
use, and what nobody would write; some are patterns of published tokenizers with a change, which the
core must not take for these.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING

from support.split_patterns import PRE_TOKENIZERS
from support.tiny_tokenizers import tiny
from support.tokenizers_twin import LEVELS
from tokenizers import Tokenizer

from tokpack import _core
from tokpack.tokenizers.patterns import steps_of, with_steps
from torture.made_up import rounds

if TYPE_CHECKING:
    from collections.abc import Iterable

Step = tuple[str, str, bool]

# Letters that case folding, old tables or several categories make special are among them.
_CHARACTERS = [
    *"  ab'sStTkKfilzZ019.,-_/\n\r\t\x00\x0b\x0c",
    *"éÉ中\u017fKß\uff12٣\u0301\u3000\xa0😀ǅıİ\x85\u2028Ⅷªµ\u200d\U0001d7d8\u1c80ﬀŉ²¼",
]
_ESCAPES = [r"\n", r"\r", r"\t", r"\v", r"\a", r"\x20", r"\u4e2d", r"\x{e9}", r"\'", r"\/", r"\-"]
_CLASSES = [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"\h", r"\H"]
_COMMON = ["L", "N", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Nd", "Nl", "P", "S", "Zs"]
_RARE = [
    "C",
    "Cf",
    "Me",
    "No",
    "Han",
    "Latin",
    "Greek",
    "Arabic",
    "Alpha",
    "Alnum",
    "Digit",
    "Word",
]
_RANGES = ["a-z", "A-Z", "0-9", "a-k", "一-龥", "\u0300-\u036f", "!-/", "à-ÿ", " -~", r"\x00-\x1f"]
_RANGES += ["z-a", r"\t-\r"]
_WORDS = ["the quick", "'s", "'LL ", "\r\n", "  \n", "12345", "don't", "HTTPServer", "naïve"]
_OPENINGS = ["(", *["(?:"] * 5, "(?i:", "(?>", "(?=", "(?!", "(?!", "(?<=", "(?<!", "(?<n>"]
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_COUNTS = ["?", "*", "+", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "{0,1}", "{1,2}"]
_BEHAVIORS = ["Contiguous", "MergedWithPrevious", "MergedWithNext"]
_PUBLISHED = [one for name, one in PRE_TOKENIZERS.items() if name != "none"]
_DEEPEST = 3
_TEXTS = 25


class Writer:
    """Writes expressions."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._depth = 0

    def expression(self) -> str:
        chosen = "|".join(self._choice() for _ in range(self._rng.choice([1, 1, 2, 3, 4])))
        if self._rng.random() < 0.2:
            chosen += r"|\s+(?!\S)|\s+"
        return f"(?i){chosen}" if self._rng.random() < 0.03 else chosen

    def _choice(self) -> str:
        return "|".join(
            self._sequence() if self._rng.random() > 0.02 else ""
            for _ in range(self._rng.choice([1, 1, 1, 2, 2, 3]))
        )

    def _sequence(self) -> str:
        parts = []
        for _ in range(self._rng.randint(1, 3)):
            atom = self._atom()
            is_place = atom in ("^", "$") or atom.startswith(_LOOKS)
            parts.append(atom if is_place and self._rng.random() < 0.97 else atom + self._count())
        return "".join(parts)

    def _count(self) -> str:
        if self._rng.random() < 0.45:
            return ""
        count = self._rng.choice(_COUNTS)
        return count + self._rng.choice(["", "", "", "", "?", "+" if len(count) == 1 else ""])

    def _atom(self) -> str:
        kinds = (self._literal, self._class, self._set, self._place, self._group)
        (kind,) = self._rng.choices(kinds, (32, 13, 17, 6, 32))
        return kind()

    def _literal(self) -> str:
        if self._rng.random() < 0.06:
            return self._rng.choice(_ESCAPES)
        character = self._rng.choice(_CHARACTERS)
        return f"\\{character}" if character in r"\.^$|?*+()[]{}-&~#/" else character

    def _class(self) -> str:
        if self._rng.random() < 0.5:
            return self._rng.choice(_CLASSES)
        name = self._rng.choice(_COMMON if self._rng.random() < 0.7 else _RARE)
        return f"\\{self._rng.choice('ppppP')}{{{self._rng.choice(['', '', '', '^'])}{name}}}"

    def _place(self) -> str:
        return self._rng.choice([".", ".", "^", "$"])

    def _set(self, depth: int = 0) -> str:
        members = "".join(self._member(depth) for _ in range(self._rng.randint(1, 4)))
        return f"[{'^' if self._rng.random() < 0.35 else ''}{members}]"

    def _member(self, depth: int) -> str:
        kinds = ["literal", "mark", "range", "class", "set", "and"]
        (kind,) = self._rng.choices(kinds, (36, 4, 15, 35, 7 * (depth < 2), 3))
        if kind == "mark":
            return self._rng.choice("^-&~.$|()?*+{")
        if kind == "range":
            return self._rng.choice(_RANGES)
        if kind == "class":
            return self._class()
        if kind == "set":
            return self._set(depth + 1)
        return "&&" if kind == "and" else self._literal()

    def _group(self) -> str:
        if self._depth == _DEEPEST:
            return self._literal()
        opening = self._rng.choice(_OPENINGS)
        if opening in _LOOKS and self._rng.random() < (0.8 if "<" in opening else 0.5):
            return f"{opening}{self._rng.choice((self._set, self._class, self._literal))()})"
        self._depth += 1
        inside = self._choice()
        self._depth -= 1
        return f"{opening}{inside})"


def made_up_steps(rng: random.Random) -> list[Step]:
    """A pre_tokenizer, as the core takes it."""
    if rng.random() < 0.2:
        return [_changed(rng, step) for step in steps_of(rng.choice(_PUBLISHED))]
    writer = Writer(rng)
    steps: list[Step] = []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 2, 3])):
        (kind,) = rng.choices(("Split", "Digits", "Punctuation", "ByteLevel"), (80, 7, 7, 6))
        if kind == "Split":
            kind = rng.choice(["Isolated"] * 6 + [*_BEHAVIORS, "Removed"])
            inverted = rng.random() < (0.7 if kind == "Removed" else 0.15)
            steps.append((kind, writer.expression(), inverted))
        elif kind == "Punctuation":
            steps.append((kind, rng.choice(["Isolated", *_BEHAVIORS]), False))
        else:
            steps.append((kind, "", rng.random() < 0.5))
    if all(kind != "ByteLevel" for kind, _, _ in steps):
        steps.append(("ByteLevel", "", rng.random() < 0.3))
    return steps


def _changed(rng: random.Random, step: Step) -> Step:
    kind, text, flag = step
    if kind in ("ByteLevel", "Digits", "Punctuation") or rng.random() < 0.3:
        return step
    begin = rng.randrange(len(text))
    end = min(begin + rng.choice([0, 1, 1, 2, 5]), len(text))
    other = rng.randrange(len(text))
    new = rng.choice(["", text[other : other + 3], *_CLASSES[:4], *"?+*1 'a|"])
    return kind, text[:begin] + new + text[end:], flag


def text_of(rng: random.Random, steps: Iterable[Step]) -> str:
    """A text in which expressions find something."""
    pool = _CHARACTERS + [c for _, text, _ in steps for c in text if c.isprintable()][:20]
    parts: list[str] = []
    for _ in range(rng.choice([0, 1, 2, 5, 12, 30])):
        (kind,) = rng.choices(("long run", "run", "word", "one"), (1, 25, 15, 60))
        one = rng.choice(_WORDS) if kind == "word" else rng.choice(pool)
        parts.append(one * {"run": rng.randint(1, 6), "long run": 400}.get(kind, 1))
    return "".join(parts)


def library_of(steps: Iterable[Step]) -> Tokenizer:
    """The library's tokenizer. Any error for an expression that is none."""
    definition = {**tiny(), "pre_tokenizer": with_steps(list(steps))}
    return Tokenizer.from_str(json.dumps(definition))


def check(seed: int) -> str:
    """Compare one seed: what came of it. AssertionError with all that repeats it."""
    rng = random.Random(seed)
    steps = made_up_steps(rng)
    try:
        library = library_of(steps).pre_tokenizer
    except Exception:
        return "no expression"
    try:
        core = _core.Pretokenizer(steps)
    except ValueError:
        return "left to the library"
    for _ in range(_TEXTS):
        text = text_of(rng, steps)
        try:
            pieces = library.pre_tokenize_str(text)
        except BaseException as error:  # the library panics where its engine gives up
            if type(error).__name__ != "PanicException":
                raise
            return "too much for the library"
        expected = list(itertools.accumulate(len(piece) for piece, _ in pieces))
        for level in ("plain", *LEVELS):
            found = core.ends(text.encode(), level).tolist()
            assert found == expected, f"seed {seed}, {level}: {steps!r}, {text!r}: {found}"
    return "equal"


if __name__ == "__main__":
    rounds(check, __doc__)
