"""Texts for tokenizers: real ones, real ones that were changed, and made up ones."""

from __future__ import annotations

import argparse
import inspect
import random
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from support.optional import SHARED
from support.tokenizers_twin import corpus
from support.traps import TRAPS

if TYPE_CHECKING:
    from collections.abc import Callable

_CORPORA = ("english", "code", "multi", "nasty", "owt")
_LONGEST = 30_000  # characters of a document
BYTES_OF_CORPUS = 8 << 20  # of JSON lines
_BLANKS = " \t\n\r\v\f\x85\u00a0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff\u2581"
_MARKS = "<|endoftext|>", "<s>", "</s>", "<unk>", "<mask>", "<|im_start|>", "<extra_id_0>", "<0x0A>"
_ENDS = ["'s", "'LL", "'\u017f", "'", "\u2019t", "\r\n", "...", "://", "12", "3456789", "\0"]


@cache
def real() -> list[str]:
    """Documents of the shared corpora; without these the sources of Python's own library."""
    if SHARED.is_dir():
        return [
            text[:_LONGEST] for name in _CORPORA for text in corpus(SHARED, name, BYTES_OF_CORPUS)
        ]
    return [inspect.getsource(module)[:_LONGEST] for module in (argparse, inspect, random)]


@cache
def _traps() -> list[str]:
    return [text[:3000] for trap in TRAPS.values() for text in trap]


@cache
def _characters() -> list[str]:
    """All characters but surrogates, and those of small numbers many times, as texts have them."""
    points = [*range(0x110000), *[*range(0x3000)] * 40, *[*range(0x250)] * 2000]
    return [chr(point) for point in points if not 0xD800 <= point < 0xE000]


def batch(rng: random.Random, size: int) -> list[str]:
    """Documents of ``size`` bytes or some more, a third of them of each kind."""
    kinds: tuple[Callable[[random.Random], str], ...] = (_taken, _mutated, _generated)
    texts: list[str] = []
    for kind in kinds:
        have = 0
        while have < size / len(kinds):
            texts.append(kind(rng))
            have += len(texts[-1].encode()) + 1
    rng.shuffle(texts)
    return texts


def _taken(rng: random.Random) -> str:
    text = rng.choice(real())
    begin = rng.randrange(len(text) // 2 + 1)  # so that what is read next time begins elsewhere
    return text[begin:]


def _mutated(rng: random.Random) -> str:
    text = _taken(rng)[: rng.choice((200, 2000, 8000))]
    for _ in range(rng.randrange(1, 1 + max(1, len(text) // 40))):
        at = rng.randrange(len(text) + 1)
        until = min(len(text), at + rng.choice((0, 1, 1, 2, 5, 70)))
        text = text[:at] + _instead(rng, text[at:until]) + text[until:]
    return text


def _instead(rng: random.Random, old: str) -> str:
    """What comes in the place of a slice."""
    changes: tuple[Callable[[], str], ...] = (
        lambda: "",
        lambda: old * rng.choice((2, 2, 3, 40)),
        old.swapcase,
        lambda: old[::-1],
        lambda: unicodedata.normalize(rng.choice(("NFD", "NFKD", "NFC")), old),
        lambda: rng.choice(_BLANKS) * rng.choice((1, 1, 2, 3, 30)),
        lambda: rng.choice(_characters()),
        lambda: rng.choice(_MARKS),
        lambda: rng.choice(_ENDS),
        lambda: rng.choice(_traps())[:80],
    )
    return rng.choice(changes)()


def _generated(rng: random.Random) -> str:
    kind = rng.randrange(4)
    length = rng.choice((3, 40, 400, 4000))
    if kind == 0:
        return "".join(rng.choices(_characters(), k=length))
    if kind == 1:  # of few kinds of characters, so that what stands together varies
        few = [*rng.choices(_characters(), k=rng.randrange(1, 9)), *rng.choices(_BLANKS, k=2)]
        return "".join(rng.choices([*few, *"aZ1'.", *rng.choices(_MARKS)], k=length))
    if kind == 2:
        return "".join(rng.choices(_traps(), k=rng.randrange(1, 6)))
    begin = rng.randrange(0x20, 0x2FA00)  # a script
    block = [chr(c) for c in range(begin, begin + 96) if not 0xD800 <= c < 0xE000]
    return "".join(rng.choices([*block, " ", " ", "\n"], k=length))
