"""Places of pieces and sums of files against a plain twin, in any order of arrival."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokpack.encoding.layout import FileSums, PieceLayout
from tokpack.errors import OutputError
from tokpack.files import blocks

if TYPE_CHECKING:
    import random

    from tokpack.encoding.messages import SharedBlock

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
    layout = PieceLayout(len(parts), 2)
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
            layout.add((part, n), parts[part][n])
        else:
            layout.ends_with(part, n)
        for key, begins in layout.placed():
            assert key not in found
            found[key] = begins
    list(layout.placed())
    assert found == dict(zip(ids, zip(*(track[:-1] for track in ends), strict=True), strict=True))
    assert list(found) == ids
    assert layout.complete
    assert layout.ends == [track[-1] for track in ends]


def test_a_stream_that_changes_its_mind() -> None:
    layout = PieceLayout(1, 1)
    layout.ends_with(0, 3)
    layout.ends_with(0, 3)
    with pytest.raises(OutputError, match="had 3 segments and now has 4"):
        layout.ends_with(0, 4)


@given(
    pieces=st.lists(sizes, max_size=30),
    block_bytes=st.integers(1, 20),
    seed=st.binary(max_size=1),
    order=st.randoms(use_true_random=False),
)
def test_sums(pieces: list[int], block_bytes: int, seed: bytes, order: random.Random) -> None:
    data = xxhash.xxh3_128_digest(seed) * (sum(pieces) // 16 + 1)
    data = data[: sum(pieces)]
    begins = list(accumulate(pieces, initial=0))[:-1]
    arrival = list(range(len(pieces)))
    order.shuffle(arrival)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        file = FileSums(0)
        edges: list[SharedBlock] = []
        for n in arrival:
            assert file.sums(len(data)) is None or not data or not pieces[n]
            begin, size = begins[n], pieces[n]
            own = blocks.block_sums(begin, memoryview(data)[begin : begin + size])
            edges.extend(file.add(begin, size, own))
        edges.extend(file.last(len(data)))
        assert not list(file.last(len(data)))
        order.shuffle(edges)
        for edge in edges:
            begin = edge.block * block_bytes
            end = min(begin + block_bytes, len(data))
            # What the pieces have of it is all of it, in order, and each with its sum.
            assert [first for first, _, _ in edge.parts] + [end] == [begin] + [
                last for _, last, _ in edge.parts
            ]
            for first, last, digest in edge.parts:
                assert digest == xxhash.xxh3_64_digest(data[first:last])
            assert file.sums(len(data)) is None
            file.put(edge.block, xxhash.xxh3_64_digest(data[begin:end]))
        assert len({edge.block for edge in edges}) == len(edges)
        assert file.sums(len(data)) == sums(data, block_bytes)
