"""Near copies by their definition: sets of n-grams, signatures one round at a time, components."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MASK = (1 << 64) - 1
_BASE = 0xD1342543DE82EF95
_ROUND = 0x9E3779B97F4A7C15


def hash_ngram(tokens: Sequence[int]) -> int:
    """The polynomial of csrc/core/documents/ngrams.hpp."""
    value = 0
    for token in tokens:
        value = (value * _BASE + token + 1) & _MASK
    return value


def mix(x: int) -> int:
    """The bijection of csrc/core/documents/ngrams.hpp."""
    x = ((x ^ (x >> 32)) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ (x >> 29)) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ (x >> 32)


def ngrams(tokens: Sequence[int], n: int) -> set[tuple[int, ...]]:
    """The set of n-grams; fewer tokens than n are one."""
    if len(tokens) <= n:
        return {tuple(tokens)} if tokens else set()
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def jaccard(a: Sequence[int], b: Sequence[int], n: int) -> float:
    """What two sets of n-grams share of all that they have."""
    one, other = ngrams(a, n), ngrams(b, n)
    return len(one & other) / len(one | other) if one or other else 0.0


def band_hashes(tokens: Sequence[int], n: int, bands: int, rows: int) -> list[int]:
    """The hash of each band of the signature in csrc/core/documents/sketch.hpp."""
    hashes = [hash_ngram(ngram) for ngram in ngrams(tokens, n)]
    if not hashes:
        return [0] * bands
    places = bands * rows
    filled: dict[int, int] = {}
    number = 0
    while len(filled) < places:
        values: dict[int, int] = {}
        for one in hashes:
            mixed = mix((one + number * _ROUND) & _MASK)
            value = min(mixed & 0xFFFFFFFF, 0xFFFFFFFE)
            place = (mixed >> 32) * places >> 32 if number < places else number - places
            values[place] = min(value, values.get(place, value))
        filled = values | filled
        number += 1
    signature = [filled[place] for place in range(places)]
    return [mix(hash_ngram(signature[b * rows : (b + 1) * rows])) for b in range(bands)]


def components(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """The smallest number that each is connected with."""
    roots = list(range(count))
    pairs = list(pairs)
    changed = True
    while changed:
        changed = False
        for a, b in pairs:
            low = min(roots[a], roots[b])
            changed |= roots[a] != low or roots[b] != low
            roots[a] = roots[b] = low
    return roots


def alike(documents: Sequence[Sequence[int]], n: int, least: float) -> set[tuple[int, int]]:
    """All pairs of documents that are alike, by comparing each with each."""
    sets = [ngrams(document, n) for document in documents]
    result = set()
    for a, b in combinations(range(len(sets)), 2):
        union = len(sets[a] | sets[b])
        if union and len(sets[a] & sets[b]) / union >= least:
            result.add((a, b))
    return result
