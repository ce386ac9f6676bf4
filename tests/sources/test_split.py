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
from tokpack.sources import Part, Source, block_checksums, discover, make_parts, read
from tokpack.storage.disk import blocks

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


def test_plain_lines_are_cut_into_byte_ranges() -> None:
    parts = make_parts([stored(1000 * MB)], ways=2)
    assert set(kinds(parts)) == {"bytes"}
    assert [(parts[0].begin, parts[-1].end)] == [(0, 1000 * MB)]
    assert all(a.end == b.begin for a, b in pairwise(parts))
    assert all(60 * MB < part.end - part.begin < 70 * MB for part in parts)


def test_small_total_still_keeps_all_workers_busy() -> None:
    parts = make_parts([stored(64 * MB)], ways=4)
    assert len(parts) == 16
    assert make_parts([stored(7 * MB)], ways=4) == [Part(0, "stream", 0, 4 * MB, int(7 * MB * 1.1))]


@pytest.mark.parametrize("ways", [1, 2, 64])
@pytest.mark.parametrize("compression", ["gz", "xz", "bz2"])
def test_a_long_stream_is_read_in_segments(compression: str, ways: int) -> None:
    (part,) = make_parts([stored(1000 * MB, compression)], ways=ways)
    assert (part.kind, part.begin, part.end) == ("stream", 0, 16 * MB)
    (part,) = make_parts([stored(10 * MB, compression)], ways=ways)
    assert (part.kind, part.begin, part.end) == ("stream", 0, 4 * MB)


def test_small_files_share_parts() -> None:
    parts = make_parts([stored(10_000)] * 10_000, ways=2)
    assert set(kinds(parts)) == {"files"}
    assert (parts[0].begin, parts[-1].end) == (0, 10_000)
    assert all(a.end == b.begin == b.source for a, b in pairwise(parts))
    assert 16 <= len(parts) <= 64
    # What is small all together is cut further, so that a slow tokenizer keeps its workers.
    assert 4 <= len(make_parts([stored(200_000)] * 10, ways=2)) <= 10


def test_large_files_stand_alone_among_small_ones() -> None:
    sources = [stored(1000)] * 3 + [stored(400 * MB, "gz")] + [stored(1000)] * 3
    parts = make_parts(sources, ways=4)
    assert kinds(parts) == ["files", "stream", "files"]
    assert [(part.source, part.begin, part.end) for part in parts] == [
        (0, 0, 3),
        (3, 0, 16 * MB),
        (4, 4, 7),
    ]


@settings(max_examples=150, deadline=None)
@given(
    files=st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from(["", "gz", "xz", "bz2"])), max_size=60
    ),
    ways=st.integers(1, 9),
)
def test_any_sources(files: list[tuple[int, str]], ways: int) -> None:
    sources = [stored(1 + size * MB // 4, compression) for size, compression in files]
    parts = make_parts(sources, ways=ways)
    assert [part.source for part in parts] == sorted(part.source for part in parts)
    owners: list[list[Part]] = [[] for _ in sources]
    for part in parts:
        assert part.weight >= 0
        several = range(part.begin, part.end) if part.kind == "files" else [part.source]
        for index in several:
            owners[index].append(part)
    for source, own in zip(sources, owners, strict=True):
        assert len({part.kind for part in own}) == 1
        if own[0].kind == "bytes":
            assert own[0].begin == 0
            assert own[-1].end == source.size
            assert all(a.end == b.begin for a, b in pairwise(own))
        else:
            assert len(own) == 1


def test_a_line_of_many_parts_is_counted_whole(tmp_path: Path) -> None:
    """Else a run of long documents shows a few percent when it is done."""
    raw = RAW[:10_000] + b'{"text": "%b"}\n' % (b"x" * 200_000) + RAW[-10_000:]
    source = one_source(write(tmp_path, "a.jsonl", raw))
    parts = make_parts([source], ways=2, target_bytes=20_000, smallest_bytes=1)
    assert len(parts) > 8
    assert set(kinds(parts)) == {"bytes"}
    assert read_parts(source, parts).bytes_read == source.size


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
    assert kinds(parts) == ["stream"]
    got = read_parts(source, parts, block_bytes=1000)
    assert got.records == read_parts(source, [WHOLE]).records
    assert 0.9 * source.size < got.bytes_read <= source.size


def test_frames_of_a_broken_file_are_not_trusted(tmp_path: Path) -> None:
    packed = COMPRESS["zst"](RAW) * 3
    source = one_source(write(tmp_path, "a.jsonl.zst", packed[:-10]))
    parts = make_parts([source], ways=1, target_bytes=100_000, smallest_bytes=1)
    assert kinds(parts) == ["stream"]
    with pytest.raises(InputError, match=r"a\.jsonl\.zst: .* \d+"):
        read_parts(source, parts)


def test_parts_and_sources_survive_json(tmp_path: Path) -> None:
    import json

    source = one_source(write(tmp_path, "a b\n\udcff.jsonl", RAW))
    part = Part(0, "bytes", 1, 2, 3)
    assert Source(**json.loads(json.dumps(source.to_json()))) == source
    assert Part(**json.loads(json.dumps(part.to_json()))) == part


def test_ways_is_checked() -> None:
    with pytest.raises(UsageError, match="ways"):
        make_parts([], ways=0)
    assert make_parts([], ways=1) == []


def test_reading_gives_the_checksums_that_a_second_pass_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parts that begin where a block does, for lines shorter and longer than blocks."""
    block = 1 << 12
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    rng = random.Random(0)
    path = tmp_path / "a.txt"
    for size in (1, block - 1, block, block + 1, *(rng.randrange(9 * block) for _ in range(40))):
        content = bytearray(b"x" * size)
        for _ in range(size // rng.choice((10, block, 4 * block))):
            content[rng.randrange(size)] = 0x0A
        path.write_bytes(content)
        (source,) = discover([str(path)])
        cuts = {min(size, rng.randrange(9) * block + rng.choice((0, 100))) for _ in range(4)}
        for begin, end in pairwise(sorted({0, size, *cuts})):
            told: list[str] = []
            longest = rng.choice((1 << 30, 3 * block))
            part = Part(0, "bytes", begin, end, 0)
            for _ in read(
                *(source, part, ["text"]), max_document_bytes=longest, tell_sums=told.append
            ):
                pass
            right = block_checksums(source, begin, end, to_newline=True)
            assert told == ([] if begin % block else [right])
        told = []
        for _ in read(source, Part(0, "whole", 0, 0, 0), ["text"], tell_sums=told.append):
            pass
        assert told == [block_checksums(source, 0, size)]


def test_ranges_of_bytes_begin_where_blocks_do() -> None:
    parts = make_parts([stored(1000 * MB + 7)], ways=3)
    assert not any(part.begin % blocks.BLOCK_BYTES for part in parts)
    assert parts[-1].end == 1000 * MB + 7
