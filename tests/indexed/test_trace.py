"""The trace file against lists, and against bytes that are none."""

from __future__ import annotations

import random
import struct
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.indexed import Trace, runs_of, trace_chunks
from tokpack.indexed.trace import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


EXTREMES = (-1, -(2**63), 2**63 - 1, 2**62, 2**56, 2**31, 2**16, 1, 0)
Places = list[tuple[int, int]]  # input and line of each record


def trace_bytes(lines: Sequence[int], places: Sequence[Places], cut: int = 1 << 20) -> bytes:
    """A trace of records that lie at ``places``, handed over ``cut`` at a time."""

    def pairs(own: Places) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.int64]]]]:
        for source in range(len(lines)):
            of_source = [line for s, line in own if s == source]
            for at in range(0, len(of_source), cut):
                yield source, runs_of(np.array(of_source[at : at + cut], np.int64))

    return b"".join(trace_chunks(lines, [pairs(own) for own in places]))


def random_places(rng: random.Random, lines: Sequence[int]) -> list[Places]:
    """Each line is a document, empty, rejected or blank, with shares of their own an input."""
    places: list[Places] = [[], [], []]
    for source, count in enumerate(lines):
        weights = [rng.random() ** 3 for _ in range(4)]
        weights[rng.randrange(4)] += rng.choice((0, 1, 50))
        line = 0
        while (line := line + 1) <= count:
            kind = rng.choices(range(4), weights)[0]
            if kind < 3:
                places[kind].append((source, line))
            elif rng.random() < 0.1:
                line += rng.choice((200, 20_000))
    return places


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lines=st.lists(st.sampled_from((0, 1, 5, 64, 300, 1500, 40_000)), max_size=4),
    cut=st.sampled_from((1, 7, 63, 64, 65, 1000)),
)
def test_the_file_against_lists(seed: int, lines: list[int], cut: int) -> None:
    rng = random.Random(seed)
    lines = [count if rng.random() < 0.9 else min(count, 1500) for count in lines]
    if cut == 1:
        lines = [min(count, 300) for count in lines]
    places = random_places(rng, lines)
    data = trace_bytes(lines, places)
    assert data == trace_bytes(lines, places, cut)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        trace = Trace(file.name)
        trace.validate()
        assert [trace.lines(source) for source in range(trace.sources)] == lines
        for kind, own in zip(KINDS, places, strict=True):
            assert trace.count(kind) == len(own)
            runs = trace.runs(kind)
            assert [(r.source, r.line + i) for r in runs for i in range(r.length)] == own
            known = set(own)
            for number in rng.sample(range(len(own)), min(20, len(own))):
                assert trace.locate(number, kind) == own[number]
                assert trace.find(*own[number], kind) == number
            for source, count in enumerate(lines):
                line = rng.randrange(-1, count + 3)
                assert (trace.find(source, line, kind) is not None) == ((source, line) in known)
            for number in (-1, len(own)):
                with pytest.raises(IndexError):
                    trace.locate(number, kind)


def test_a_few_bytes_a_document() -> None:
    count = 200_000
    rng = np.random.default_rng(0)
    sizes = {}
    for share in (0.0, 0.01, 0.5):
        lines = np.flatnonzero(rng.random(count) >= share) + 1
        data = b"".join(trace_chunks([count], [[(0, runs_of(lines))], [], []]))
        sizes[share] = len(data) / len(lines)
    assert sizes[0.0] * count < 200  # one run
    assert sizes[0.01] < 0.05
    assert sizes[0.5] < 1.5


def test_lines_that_do_not_ascend_are_refused() -> None:
    for lines in ([3, 2], [0, 1], [5, 5], [2**60]):
        with pytest.raises(UsageError, match="do not ascend"):
            list(trace_chunks([9], [[(0, runs_of(np.array(lines)))], [], []]))
    four = runs_of(np.array([4]))
    with pytest.raises(UsageError, match="do not ascend"):  # in two calls
        list(trace_chunks([9], [[(0, four), (0, four)], [], []]))
    with pytest.raises(UsageError, match="inputs in order"):
        list(trace_chunks([9, 9], [[(1, four), (0, four)], [], []]))


def use(path: Path) -> None:
    """Ask everything of a trace that may be broken."""
    trace = Trace(path)
    for kind in KINDS:
        for number in range(min(trace.count(kind), 300)):
            trace.locate(number, kind)
        for source in range(min(trace.sources, 5)):
            for line in (0, 1, 2, 100, 2**62):
                trace.find(source, line, kind)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, bytes]:
    lines = [300, 0, 70]
    data = trace_bytes(lines, random_places(random.Random(3), lines))
    return tmp_path / "small.trace", data


def test_every_truncation_is_a_format_error(small: tuple[Path, bytes]) -> None:
    path, data = small
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"small\.trace: "):
            Trace(path)
    path.write_bytes(data + bytes(8))
    with pytest.raises(FormatError, match="file size"):
        Trace(path)


@pytest.mark.slow
def test_hostile_bytes(small: tuple[Path, bytes]) -> None:
    """Whatever a byte or a field becomes: an answer or a FormatError, and mostly the latter."""
    path, data = small
    index = len(data) - 80
    changed = [data[:at] + bytes([value]) + data[at + 1 :]
               for at in range(len(data)) for value in (data[at] ^ 0x80, data[at] ^ 1)]  # fmt: skip
    changed += [
        data[:at] + struct.pack("<q", value) + data[at + 8 :]
        for at in range(index % 8, len(data) - 7, 8)
        for value in EXTREMES
        if at >= 8
    ]
    refused = 0
    began = time.process_time()
    for hostile in changed:
        path.write_bytes(hostile)
        try:
            use(path)
            Trace(path).validate()
        except FormatError:
            refused += 1
    assert refused > 0.8 * len(changed)
    assert time.process_time() - began < 60


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    with pytest.raises(InputError, match="encoded with --trace"):
        Trace(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="not a trace"):
        Trace(path)
    path.write_bytes(b"TOKTRACE" + struct.pack("<Q", 2) + bytes(80))
    with pytest.raises(FormatError, match="version is 2"):
        Trace(path)
