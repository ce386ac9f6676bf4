"""What tells documents from others: 64 bits of all their lengths and of some tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from tokpack.indexed.lengths import LengthSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from tokpack.indexed.shard import Shard

FINGERPRINT_VERSION = 2  # of what identifies documents, and samples of them
_PROBE = 1 << 16  # tokens looked at in each of three places


def fingerprint(
    lengths: npt.NDArray[np.int32],
    tokens: int,
    tokens_from: Callable[[int, int], Iterable[npt.NDArray[Any]]],
) -> tuple[int, LengthSums]:
    """The fingerprint of a dataset, and sums of its lengths, from one pass over them.

    ``lengths`` is int32 [S]; ``tokens_from(begin, end)`` gives tokens [begin, end) of all
    ``tokens``, or up to the last one, in pieces.
    """
    state = xxhash.xxh3_64(f"version {FINGERPRINT_VERSION}, {len(lengths)} sequences".encode())
    sums = LengthSums.of(lengths, lambda chunk: state.update(chunk.data))
    last = max(tokens - _PROBE, 0)
    for begin in (0, last // 2, last):
        for piece in tokens_from(begin, begin + _PROBE):
            state.update(piece.astype("<i8").data)
    return state.intdigest(), sums


def shard_fingerprint(shard: Shard) -> int:
    """The fingerprint that a dataset has which is one shard."""

    def tokens_from(begin: int, end: int) -> list[npt.NDArray[Any]]:
        return [shard.tokens[begin:end]] if len(shard.tokens) else []

    return fingerprint(shard.index.lengths, len(shard.tokens), tokens_from)[0]
