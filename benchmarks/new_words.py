"""Documents that come again with words that were not there before.

Text that is repeated has no new words, and a tokenizer that remembers words then never meets one.
In real text the next word is one that was never seen with a chance of about (words seen once) /
(words seen): under 1 % after 48 MB, and slowly less. So when a document comes again, its words that
occur once in all documents are written in other letters, vowels for vowels and consonants for
consonants, differently each time. That is a little more news than 1 GB of real text has.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter

# Letters only, and none that may belong to an escape like \\n or \\u00e9 of the JSON text.
_WORD = re.compile(rb"(?<![\\A-Za-z0-9])[A-Za-z]{3,}")
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfghjklmnpqrstvwxyz"


class NewWords:
    """Lines of JSON, and variants of them that have the same length and new words."""

    def __init__(self, lines: list[bytes]) -> None:
        counts = Counter(word for line in lines for word in _WORD.findall(line))
        once = {word for word, count in counts.items() if count == 1}
        self._pieces = [_cut(line, once) for line in lines]

    def line(self, number: int, times: int) -> bytes:
        """Line ``number`` as it is when it comes for the ``times``-th time, from 0."""
        pieces = self._pieces[number]
        if not times:
            return b"".join(pieces)
        letters = letters_of(times)
        return b"".join(
            piece.translate(letters) if position % 2 else piece
            for position, piece in enumerate(pieces)
        )


def _cut(line: bytes, once: set[bytes]) -> list[bytes]:
    """Alternately what stays and a word that changes."""
    pieces = []
    at = 0
    for match in _WORD.finditer(line):
        if match.group() in once:
            pieces += [line[at : match.start()], match.group()]
            at = match.end()
    return [*pieces, line[at:]]


@functools.cache
def letters_of(times: int) -> bytes:
    """A table for bytes.translate that exchanges letters."""
    chance = random.Random(times)
    table = bytearray(range(256))
    for letters in (_VOWELS, _CONSONANTS, _VOWELS.upper(), _CONSONANTS.upper()):
        for old, new in zip(letters, chance.sample(letters, len(letters)), strict=True):
            table[old] = new
    return bytes(table)
