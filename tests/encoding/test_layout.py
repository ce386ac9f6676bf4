"""Places of pieces and sums of files against a plain twin, in any order of arrival."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokpack.encoding.coordinator import PieceLayout, joined_sums
from tokpack.encoding.piece import JOINED, Stored
from tokpack.errors import OutputError
from tokpack.storage.disk import blocks

if TYPE_CHECKING:
    import random

sizes = st.one_of(st.just(0), st.integers(1, 9), st.integers(0, 70))


def sums(data: bytes, block_bytes: int) -> bytes:
    """The sums of a whole file."""
    cut = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    return b"".join(xxhash.xxh3_64_digest(block) for block in cut)


@given(
    parts=st.lists(st.lists(st.tuples(sizes, sizes), max_size=5), max_size=8),
    known=st.sampled_from(("at first", "in between", "at last")),
    order=st.randoms(use_true_random=False),
)
def test_places(parts: list[list[tuple[int, int]]], known: str, order: random.Random) -> None:
    ids = [(part, n) for part, own in enumerate(parts) for n in range(len(own))]
    each = [size for own in parts for size in own]
    ends = [list(accumulate((size[track] for size in each), initial=0)) for track in (0, 1)]
    first = order.randrange(3)
    layout = PieceLayout(range(first, first + len(parts)), 2)
    steps = [("piece", key) for key in ids]
    streams = [("segments", (part, len(own))) for part, own in enumerate(parts)]
    mixed = [*steps, *streams] if known == "in between" else steps
    order.shuffle(mixed)
    if known != "in between":
        mixed = streams + mixed if known == "at first" else mixed + streams
    found = {}
    for step, (part, n) in mixed:
        assert not layout.complete or not parts
        if step == "piece":
            layout.add((first + part, n), parts[part][n])
        else:
            layout.ends_with(first + part, n)
        for (at, segment), begins in layout.placed():
            assert (at - first, segment) not in found
            found[at - first, segment] = begins
    list(layout.placed())
    assert found == dict(zip(ids, zip(*(track[:-1] for track in ends), strict=True), strict=True))
    assert list(found) == ids
    assert layout.complete
    assert layout.ends == [track[-1] for track in ends]


def test_a_stream_that_changes_its_mind() -> None:
    layout = PieceLayout(range(1), 1)
    layout.ends_with(0, 3)
    layout.ends_with(0, 3)
    with pytest.raises(OutputError, match=r"part 0 .*\b3 .*\b4:"):
        layout.ends_with(0, 4)


@given(pieces=st.lists(sizes, max_size=30), block_bytes=st.integers(1, 20), seed=st.binary())
def test_sums(pieces: list[int], block_bytes: int, seed: bytes) -> None:
    data = xxhash.xxh3_128_digest(seed) * (sum(pieces) // 16 + 1)
    data = data[: sum(pieces)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        stored = []
        for begin, size in zip(accumulate(pieces, initial=0), pieces, strict=False):
            own = blocks.block_sums(begin, memoryview(data)[begin : begin + size])
            stored.append(SimpleNamespace(sizes=(size,), stored=Stored(JOINED, (begin,), (own,))))
        found, shared = joined_sums(stored, 0, 0)  # type: ignore[arg-type]
    for block in shared:
        begin = block.number * block_bytes
        end = min(begin + block_bytes, len(data))
        # What the pieces have of it is all of it, in order, and each with its sum.
        assert [first for first, _, _ in block.shares] + [end] == [begin] + [
            last for _, last, _ in block.shares
        ]
        assert len(block.shares) > 1
        for first, last, digest in block.shares:
            assert digest == xxhash.xxh3_64_digest(data[first:last])
        at = 8 * block.number
        assert found[at : at + 8] == bytes(8)
        found[at : at + 8] = xxhash.xxh3_64_digest(data[begin:end])
    assert len({block.number for block in shared}) == len(shared)
    assert found == sums(data, block_bytes)
