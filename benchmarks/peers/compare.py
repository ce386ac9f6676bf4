"""Whether what a peer wrote is what tokpack wrote."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from inputs import sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


def compare(results: Sequence[Path], prefix: Path) -> str:
    """In words: how the token files ``results``, in order, differ from the dataset ``prefix``."""
    if not results:
        return "NO OUTPUT"
    lengths = lengths_of(prefix.with_suffix(".idx"))
    right = np.fromfile(prefix.with_suffix(".bin"), "<u2")
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in results])
    indices = [path.with_suffix(".idx") for path in results]
    if not all(index.exists() for index in indices):
        return _without_index(tokens, right)
    theirs = np.concatenate([lengths_of(index) for index in indices])
    if not np.array_equal(tokens, right):
        same = _documents(tokens, theirs) == _documents(right, lengths)
        return "same documents, other order" if same else "DIFFERENT"
    if not np.array_equal(theirs, lengths):
        return "same .bin, other .idx"
    if len(results) > 1:
        return f"same documents in {len(results)} files"
    same = sha256(indices[0]) == sha256(prefix.with_suffix(".idx"))
    return "same bytes" if same else "same .bin, other .idx"


def lengths_of(index: Path) -> npt.NDArray[np.int32]:
    """Tokens of each sequence of a .idx file."""
    content = index.read_bytes()
    count = struct.unpack_from("<Q", content, 18)[0]
    return np.frombuffer(content, "<i4", count, 34)


def _without_index(tokens: npt.NDArray[np.uint16], right: npt.NDArray[np.uint16]) -> str:
    """Compare raw tokens, in which every document ends with the EOD as in the right ones."""
    if np.array_equal(tokens, right):
        return "same tokens, no index"
    eod = right[-1]
    theirs = np.diff(np.flatnonzero(tokens == eod), prepend=-1)
    ours = np.diff(np.flatnonzero(right == eod), prepend=-1)
    if theirs.sum() == len(tokens) and _documents(tokens, theirs) == _documents(right, ours):
        return "same documents, other order, no index"
    return "DIFFERENT"


def _documents(tokens: npt.NDArray[np.uint16], lengths: npt.NDArray[np.int32]) -> Counter[int]:
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = ends - lengths
    return Counter(
        hash(tokens[begin:end].tobytes()) for begin, end in zip(begins, ends, strict=True)
    )
