"""Split strings such as ``969,30,1``: which sequences go to training, validation and test."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokpack.indexed.lengths import LengthSums

Range = tuple[int, int]

PARTS = ("train", "valid", "test")  # what a split string has weights of
RULES = ("core", "classic")

_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_WEIGHTS = re.compile(rf"{_NUMBER}(?:[,/]{_NUMBER})*")
_RANGES = re.compile(rf"{_NUMBER}:{_NUMBER}(?:[,/]{_NUMBER}:{_NUMBER})*")
_MANY = 2**40  # sequences: enough that every share above 0 leaves some


def parse_split(text: str, documents: int, rule: str = "core") -> list[Range | None]:
    """The ranges [begin, end) of ``documents`` sequences that a split string means.

    ``text`` is either up to three weights of training, validation and test ("969,30,1",
    "0.9,0.05,0.05"), or any number of ranges of shares "begin:end" ("0:0.9,0.9:1"). A range that
    comes out empty is None.

    Weights are rounded as Megatron-core from 0.5 on does (``rule="core"``) or as older ones,
    NeoX, bigscience and Megatron-DeepSpeed do (``"classic"``): often one sequence differs.
    UsageError for anything else.
    """
    if rule not in RULES:
        raise UsageError(f"split rule {rule!r} is unknown: use one of {', '.join(RULES)}")
    shares = _shares(text)
    if isinstance(shares[0], tuple):
        ranges = [(round(a * documents), round(b * documents)) for a, b in shares]
    elif rule == "core":
        edges = [0.0, *accumulate(shares)]
        ends = [round(edge * float(documents)) for edge in edges]
        ranges = list(pairwise(ends))
    else:
        ranges = _classic(shares, documents)
    return [pair if pair[0] < pair[1] else None for pair in ranges]


def wanted_parts(split: str) -> list[bool]:
    """Whether a split string means to leave something for training, validation and test."""
    parts = parse_split(split, _MANY)
    if len(parts) > len(PARTS):
        raise UsageError(
            f"split {split!r} has {len(parts)} ranges, expected up to {len(PARTS)}: training, "
            "validation and test"
        )
    return [number < len(parts) and parts[number] is not None for number in range(len(PARTS))]


def split_bounds(text: str) -> list[tuple[float, float] | None]:
    """The shares [begin, end) that a split string of weights gives training, validation and test.

    None for a part without any. UsageError for ranges, and for anything else.
    """
    shares = _shares(text)
    if isinstance(shares[0], tuple):
        raise UsageError(f"split {text!r}: Megatron knows weights, such as 969,30,1, not ranges")
    edges = pairwise(accumulate([0, *shares]))
    return [(begin, end) if begin < end else None for begin, end in edges]


def split_tokens(text: str, lengths: npt.NDArray[np.int32] | LengthSums) -> list[Range | None]:
    """The ranges [begin, end) of sequences whose tokens have the shares of a split string.

    ``lengths`` int32 [n] are the tokens of each sequence, or their sums. A sequence belongs to the
    range in which its last token lies, so a range misses its share by less than one sequence.
    """
    from tokpack.indexed.lengths import LengthSums

    shares = _shares(text)
    pairs = shares
    if not isinstance(shares[0], tuple):
        pairs = list(pairwise([0.0, *accumulate(shares)]))
    sums = lengths if isinstance(lengths, LengthSums) else LengthSums.of(lengths)
    total = sums.total(0, len(sums.lengths))
    ends = {e: sums.ending_within(round(e * total)) for e in {e for pair in pairs for e in pair}}
    ranges = [(ends[a], ends[b]) for a, b in pairs]
    return [pair if pair[0] < pair[1] else None for pair in ranges]


def _shares(text: str) -> list[Any]:
    """Three weights whose sum is 1, or (begin, end) of each range, as shares."""
    compact = re.sub(r"\s", "", text)
    if _RANGES.fullmatch(compact):
        pairs = [tuple(map(float, pair.split(":"))) for pair in re.split(r"[,/]", compact)]
        for begin, end in pairs:
            if end > 1:
                raise UsageError(f"split {text!r}: the range {begin}:{end} leaves 0:1")
        return pairs
    if not _WEIGHTS.fullmatch(compact):
        raise UsageError(
            f"split {text!r} is neither weights, such as 969,30,1, nor ranges, such as 0:0.9,0.9:1"
        )
    weights = [float(weight) for weight in re.split(r"[,/]", compact)]
    if len(weights) > len(PARTS):
        raise UsageError(
            f"split {text!r} has {len(weights)} weights, expected up to {len(PARTS)}: training, "
            "validation and test; ranges such as 0:0.9,0.9:0.95 name any number"
        )
    weights += [0.0] * (len(PARTS) - len(weights))
    total = sum(weights)
    if not 0 < total < float("inf"):
        raise UsageError(f"split {text!r}: the weights add up to {total}")
    return [weight / total for weight in weights]


def _classic(shares: list[float], documents: int) -> list[Range]:
    """Round each share by itself; then move every end by what the sum is too much or too little."""
    ends = [0, *accumulate(round(share * float(documents)) for share in shares)]
    missed = ends[-1] - documents
    ends[1:] = [min(max(end - missed, 0), documents) for end in ends[1:]]
    return list(pairwise(ends))
