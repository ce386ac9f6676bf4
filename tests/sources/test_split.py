"""How sources are cut for some number of workers."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sources_twin import COMPRESS, WHOLE, one_source, read_parts, write

from tokpack.errors import InputError, UsageError
from tokpack.sources import Part, Source, discover, line_base, make_parts, read

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
TEXTS = [random.Random(i).randbytes(300).hex().encode() for i in range(2000)]
RAW = b"".join(b'{"text": "%b"}\n' % text for text in TEXTS)


def stored(size: int, compression: str = "", format_: str = "jsonl") -> Source:
    """A source that is only looked at from outside."""
    return Source("a", "a", format_, compression, size, 0)


def kinds(parts: list[Part]) -> list[str]:
    return [part.kind for part in parts]


def finish(parts: list[Part], ways: int) -> int:
    loads = [0] * ways
    for part in sorted(parts, key=lambda part: part.weight, reverse=True):
        loads[loads.index(min(loads))] += part.weight
    return max(loads)


def test_plain_lines_are_cut_into_byte_ranges() -> None:
    parts = make_parts([stored(1000 * MB)], ways=2)
    assert set(kinds(parts)) == {"bytes"}
    assert [(parts[0].begin, parts[-1].end)] == [(0, 1000 * MB)]
    assert all(a.end == b.begin for a, b in pairwise(parts))
    assert all(60 * MB < part.end - part.begin < 70 * MB for part in parts)


def test_small_total_still_keeps_all_workers_busy() -> None:
    parts = make_parts([stored(64 * MB)], ways=4)
    assert len(parts) == 16
    assert make_parts([stored(7 * MB)], ways=4) == [Part(0, "whole", 0, 0, int(7 * MB * 1.1))]


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_one_long_stream_is_cut_in_stripes(compression: str) -> None:
    parts = make_parts([stored(1000 * MB, compression)], ways=2)
    assert [(part.kind, part.begin, part.end) for part in parts] == [
        ("stripes", 0, 2),
        ("stripes", 1, 2),
    ]
    assert kinds(make_parts([stored(1000 * MB, compression)], ways=1)) == ["whole"]


def test_stripes_are_for_streams_that_decompress_faster_than_they_encode() -> None:
    assert kinds(make_parts([stored(1000 * MB, "bz2")], ways=2)) == ["whole"]


def test_many_streams_stay_whole() -> None:
    assert set(kinds(make_parts([stored(100 * MB, "gz")] * 40, ways=4))) == {"whole"}


def test_the_one_stream_that_is_much_longer_is_cut() -> None:
    sources = [stored(10 * MB, "gz")] * 20 + [stored(400 * MB, "gz")] + [stored(10 * MB, "gz")] * 20
    parts = make_parts(sources, ways=4)
    assert kinds(parts) == ["whole"] * 20 + ["stripes"] * 2 + ["whole"] * 20
    assert (parts[20].begin, parts[20].end) == (0, 2)
    assert [part.source for part in parts] == [*range(20), 20, 20, *range(21, 41)]


@settings(max_examples=150, deadline=None)
@given(
    files=st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from(["", "gz", "xz", "bz2"])), max_size=60
    ),
    ways=st.integers(1, 9),
)
def test_any_sources(files: list[tuple[int, str]], ways: int) -> None:
    sources = [stored(1 + size * MB, compression) for size, compression in files]
    parts = make_parts(sources, ways=ways)
    assert [part.source for part in parts] == sorted(part.source for part in parts)
    for index, source in enumerate(sources):
        own = [part for part in parts if part.source == index]
        kind = own[0].kind
        assert all(part.kind == kind and part.weight >= 0 for part in own)
        if kind == "bytes":
            assert own[0].begin == 0
            assert own[-1].end == source.size
            assert all(a.end == b.begin for a, b in pairwise(own))
        elif kind == "stripes":
            count = len(own)
            assert [(part.begin, part.end) for part in own] == [(i, count) for i in range(count)]
        else:
            assert len(own) == 1
    whole = [int(p.weight) for s in sources for p in make_parts([s], ways=1)]
    unsplit = [Part(0, "whole", 0, 0, weight) for weight in whole]
    # Cutting never costs more than 5%, but for the length of one byte range that comes last.
    ranges = [part.weight for part in parts if part.kind == "bytes"]
    share = sum(part.weight for part in parts) / ways
    assert (
        finish(parts, ways) <= max(1.05 * finish(unsplit, ways), share + max(ranges, default=0)) + 1
    )


def test_frames_are_grouped(tmp_path: Path) -> None:
    packed = b"".join(COMPRESS["zst"](RAW[i : i + 10_007]) for i in range(0, len(RAW), 10_007))
    source = one_source(write(tmp_path, "a.jsonl.zst", packed))
    whole = read_parts(source, [WHOLE])
    assert len(whole.texts) == 2000
    for target in (1, 30_000, 300_000):
        parts = make_parts([source], ways=2, target_bytes=target, smallest_bytes=1)
        assert len(parts) > 2
        assert set(kinds(parts)) == {"frames"}
        assert (parts[0].begin, parts[-1].end) == (0, source.size)
        assert all(a.end == b.begin for a, b in pairwise(parts))
        assert read_parts(source, parts).records == whole.records
        assert read_parts(source, parts).bytes_read <= source.size


def test_one_frame_that_is_most_of_the_file(tmp_path: Path) -> None:
    packed = COMPRESS["zst"](RAW * 12) + COMPRESS["zst"](RAW[:100_000]) * 4
    source = one_source(write(tmp_path, "a.jsonl.zst", packed))
    parts = make_parts([source], ways=4, target_bytes=100_000, smallest_bytes=1)
    assert kinds(parts) == ["stripes"] * 4
    got = read_parts(source, parts, stripe_bytes=100_000)
    assert got.records == read_parts(source, [WHOLE]).records
    assert 0.9 * source.size < got.bytes_read <= source.size


def test_frames_of_a_broken_file_are_not_trusted(tmp_path: Path) -> None:
    packed = COMPRESS["zst"](RAW) * 3
    source = one_source(write(tmp_path, "a.jsonl.zst", packed[:-10]))
    parts = make_parts([source], ways=1, target_bytes=100_000, smallest_bytes=1)
    assert kinds(parts) == ["whole"]
    with pytest.raises(InputError, match="cut off"):
        read_parts(source, parts)


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("ways", [1, 3])
def test_the_documents_do_not_depend_on_the_split(
    compression: str, ways: int, tmp_path: Path
) -> None:
    for number, size in enumerate((0, 10, 700_000, 50_000, len(RAW))):
        write(tmp_path, f"{number}.jsonl", COMPRESS[compression](RAW[:size]))
    sources = discover([str(tmp_path)])
    parts = make_parts(sources, ways=ways, target_bytes=100_000, smallest_bytes=20_000)
    for index, source in enumerate(sources):
        own = [part for part in parts if part.source == index]
        got = read_parts(source, own, stripe_bytes=40_000)
        assert got.records == read_parts(source, [WHOLE]).records


def test_line_base_finds_the_line_in_the_file(tmp_path: Path) -> None:
    raw = RAW + b'{"text": 1}\n' + RAW
    source = one_source(write(tmp_path, "a.jsonl", raw))
    parts = make_parts([source], ways=4, target_bytes=100_000, smallest_bytes=1)
    found = [
        line_base(source, part) + bad.line
        for part in parts
        for batch in read(source, part, ["text"])
        for bad in batch.bad
    ]
    assert found == [2000]


def test_parts_and_sources_survive_json(tmp_path: Path) -> None:
    import json

    source = one_source(write(tmp_path, "a b\n\udcff.jsonl", RAW))
    part = Part(0, "bytes", 1, 2, 3)
    assert Source.from_json(json.loads(json.dumps(source.to_json()))) == source
    assert Part.from_json(json.loads(json.dumps(part.to_json()))) == part


def test_ways_is_checked() -> None:
    with pytest.raises(UsageError, match="ways"):
        make_parts([], ways=0)
    assert make_parts([], ways=1) == []
