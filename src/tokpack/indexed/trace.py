"""``PREFIX.trace``, described in docs/format.md: the input and the line of each document.

Documents lie in the order of their inputs and lines, so they are runs of consecutive lines. A run
costs two or three bytes; an input without a hole is a single run. Blocks of at most 64 runs, with
an index over them, make access random in both directions. Inputs are known by their number in
the manifest; numbers of lines begin with 1. Nothing in a file is believed.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, UsageError
from tokpack.indexed.shard import map_file
from tokpack.stores import head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAGIC = b"TOKTRACE"
VERSION = 1
RUNS = 64  # in a block, at most
Kind = Literal["documents", "empty", "rejected"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # sections of the file, in this order

_HEAD = struct.Struct("<8sQ")  # magic, version
_TAIL = struct.Struct("<10q")  # inputs; records, blocks and bytes of runs of each section
_NUMBER = np.dtype("<i8")
_COLUMNS = 4  # of the index: first record, input, line, byte where the runs begin
_ADVICE = (
    "a dataset has a trace when it was encoded with --trace (trace=True): encode it again with that"
)
_LIMIT = 1 << 56  # all numbers are below it: 8 bytes of 7 bits; a sum of 128 fits into int64

Numbers = npt.NDArray[np.int64]


def trace_path(prefix: str | os.PathLike[str]) -> str:
    """Where the trace of the dataset ``prefix`` lies."""
    return os.fsdecode(prefix) + ".trace"


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a trace: no other is ever replaced by one."""
    return head(os.fsdecode(path), len(MAGIC)) == MAGIC


class RecordRun(NamedTuple):
    """``length`` records from number ``first`` on, in consecutive lines of one input."""

    first: int
    source: int
    line: int
    length: int


# -- writing ---------------------------------------------------------------------------------


def runs_of(lines: Numbers) -> Numbers:
    """Ascending lines, int64 [n], as runs: int64 [r, 2], first line and number of lines of each."""
    if len(lines) and lines[-1] - lines[0] == len(lines) - 1:  # nearly always
        return np.array([[lines[0], len(lines)]], np.int64)
    begins = np.flatnonzero(np.diff(lines, prepend=lines[:1] - 2) != 1)
    return np.stack((lines[begins], np.diff(begins, append=len(lines))), axis=1)


def trace_chunks(
    lines: Sequence[int], sections: Sequence[Iterable[tuple[int, Numbers]]]
) -> Iterator[bytes]:
    """The bytes of a trace, for ``replace_file``.

    ``lines`` are those that each input has. ``sections`` say, for each of KINDS, what lies where:
    pairs of an input's number and runs of its lines as ``runs_of`` gives them, from 1 on, in order;
    an input may come several times in a row. The bytes do not depend on how lines were cut into
    runs and pairs. Memory: half a byte a run. UsageError where lines do not ascend.
    """
    yield _HEAD.pack(MAGIC, VERSION)
    written = [_Section() for _ in KINDS]
    for section, pairs in zip(written, sections, strict=True):
        for source, own in pairs:
            yield from section.add(source, own)
        yield from section.flush()
    yield bytes(-sum(section.bytes for section in written) % 8)
    yield np.array(lines, _NUMBER).tobytes()
    for section in written:
        for column in section.columns:
            yield np.concatenate([np.empty(0, _NUMBER), *column]).tobytes()
    sizes = (n for s in written for n in (s.records, s.blocks, s.bytes))
    yield _TAIL.pack(len(lines), *sizes)


class _Section:
    """Turns lines into blocks of runs, as they come."""

    def __init__(self) -> None:
        self.records = self.blocks = self.bytes = 0
        self.columns: tuple[list[Numbers], ...] = tuple([] for _ in range(_COLUMNS))
        self._source = -1
        self._lines: Numbers = np.empty(0, np.int64)  # of the runs that are not in a block yet
        self._counts: Numbers = np.empty(0, np.int64)

    def add(self, source: int, runs: Numbers) -> Iterator[bytes]:
        if not len(runs):
            return
        if source != self._source:
            yield from self.flush()
            if source < self._source:
                raise UsageError(f"a trace takes inputs in order, not {source} after this one")
            self._source = source
        lines = np.concatenate((self._lines, runs[:, 0]))
        counts = np.concatenate((self._counts, runs[:, 1]))
        begins = np.flatnonzero(lines[1:] != lines[:-1] + counts[:-1]) + 1
        begins = np.concatenate(([0], begins))
        self._lines, self._counts = lines[begins], np.add.reduceat(counts, begins)
        yield from self._emit((len(self._lines) - 1) // RUNS * RUNS)  # the last run may go on

    def flush(self) -> Iterator[bytes]:
        """End the runs of an input."""
        yield from self._emit(len(self._lines))

    def _emit(self, runs: int) -> Iterator[bytes]:
        if not runs:
            return
        lines, counts = self._lines[:runs], self._counts[:runs]
        ends = lines + counts
        skips = np.concatenate(([0], lines[1:] - ends[:-1]))
        after = self._lines[runs : runs + 1] - ends[-1:]
        if lines[0] < 1 or (skips[1:] < 1).any() or (after < 1).any() or ends[-1] > _LIMIT:
            raise UsageError(f"lines of input {self._source} do not ascend from 1: no trace of it")
        skips[::RUNS] = 0
        data, sizes = _packed(np.stack((skips, counts), axis=1).reshape(-1))
        at = np.concatenate(([0], np.cumsum(sizes)))[: -1 : 2 * RUNS]
        before = np.cumsum(counts) - counts
        blocks = len(at)
        for column, values in zip(
            self.columns,
            (
                self.records + before[::RUNS],
                np.full(blocks, self._source),
                lines[::RUNS],
                self.bytes + at,
            ),
            strict=True,
        ):
            column.append(values.astype(_NUMBER))
        self.records += int(counts.sum())
        self.blocks += blocks
        self.bytes += len(data)
        self._lines, self._counts = self._lines[runs:], self._counts[runs:]
        yield data


def _packed(values: Numbers) -> tuple[bytes, Numbers]:
    """Numbers as bytes of seven bits, the lowest first, and the size of each."""
    if values.max() < 0x80:
        return values.astype(np.uint8).tobytes(), np.ones(len(values), np.int64)
    sizes = np.ones(len(values), np.int64)
    for shift in range(7, 56, 7):
        sizes += values >> shift > 0
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), np.uint8)
    begins = ends - sizes
    for byte in range(int(sizes.max())):
        own = sizes > byte
        more = (sizes[own] > byte + 1) * 0x80
        data[begins[own] + byte] = (values[own] >> 7 * byte & 0x7F) | more
    return data.tobytes(), sizes


def _unpacked(data: npt.NDArray[np.uint8], most: int) -> Numbers | None:
    """The numbers in some bytes; None where these are not the bytes of at most ``most`` numbers."""
    ends = np.flatnonzero(data < 0x80)
    if not 0 < len(ends) <= most or ends[-1] != len(data) - 1:
        return None
    if len(ends) == len(data):
        return data.astype(np.int64)
    begins = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends + 1 - begins
    if sizes.max() > 8 or ((data[ends] == 0) & (sizes > 1)).any():
        return None
    shifts = 7 * (np.arange(len(data)) - np.repeat(begins, sizes))
    parts = (data & 0x7F).astype(np.int64) << shifts
    return np.add.reduceat(parts, begins)


# -- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """The index of one section, as views of the map."""

    kind: str
    records: int
    first: Numbers
    source: Numbers
    line: Numbers
    offset: Numbers
    runs: npt.NDArray[np.uint8]


class Trace:
    """The trace in the file ``path``: where documents came from, and the way back.

    Opening takes constant time and checks the sizes; each access checks what it uses, and
    ``validate`` everything. A broken file is a FormatError, a missing one an InputError.
    Records of each of KINDS are counted from 0; documents as in the index's doc_idx.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        data: Any = map_file(self.path, advice=_ADVICE)[0]
        self.bytes = len(data)
        if data[: len(MAGIC)] != MAGIC:
            raise self._broken(f"magic is {data[: len(MAGIC)]!r}, expected {MAGIC!r}: not a trace")
        if len(data) < _HEAD.size + _TAIL.size:
            raise self._broken(f"{len(data)} bytes are too few: cut off")
        version = _HEAD.unpack_from(data)[1]
        if version != VERSION:
            raise self._broken(f"version is {version}, expected {VERSION}: upgrade tokpack")
        inputs, *sizes = _TAIL.unpack_from(data, len(data) - _TAIL.size)
        rows = [sizes[at : at + 3] for at in range(0, len(sizes), 3)]
        payload = sum(size for _, _, size in rows)
        blocks = sum(blocks for _, blocks, _ in rows)
        index = _HEAD.size + payload + -payload % 8
        expected = index + 8 * (inputs + _COLUMNS * blocks) + _TAIL.size
        if min(inputs, *sizes) < 0 or max(sizes) >= _LIMIT or len(data) != expected:
            raise self._broken(
                f"file size is {len(data)} bytes, expected {expected} for {inputs} inputs and "
                f"{blocks} blocks: cut off, or its end is damaged"
            )
        self._lines: Numbers = np.frombuffer(data, _NUMBER, inputs, index)
        ends = list(accumulate((size for _, _, size in rows), initial=_HEAD.size))
        at = index + 8 * inputs
        sections = []
        for kind, (records, count, size), begin in zip(KINDS, rows, ends[:-1], strict=True):
            table = np.frombuffer(data, _NUMBER, _COLUMNS * count, at).reshape(_COLUMNS, count)
            at += table.nbytes
            runs = np.frombuffer(data, np.uint8, size, begin)
            sections.append(_Columns(kind, records, table[0], table[1], table[2], table[3], runs))
            if (count == 0) != (records == 0) or (count == 0) != (size == 0):
                raise self._broken(f"{kind}: {records} records in {count} blocks of {size} bytes")
        self._sections = dict(zip(KINDS, sections, strict=True))

    @property
    def sources(self) -> int:
        """How many inputs there were."""
        return len(self._lines)

    def count(self, kind: Kind = "documents") -> int:
        """How many records of a kind there are."""
        return self._sections[kind].records

    def lines(self, source: int) -> int:
        """How many lines of an input were read."""
        return int(self._lines[source])

    def locate(self, number: int, kind: Kind = "documents") -> tuple[int, int]:
        """(input, line) of a record. IndexError where there is none of that number."""
        section = self._sections[kind]
        if not 0 <= number < section.records:
            raise IndexError(f"{self.path}: number {number} of {section.records} {kind}")
        block = int(np.searchsorted(section.first, number, "right")) - 1
        for run in self._block(section, max(block, 0)):
            if run.first <= number < run.first + run.length:
                return run.source, run.line + number - run.first
        raise self._broken(f"{kind}: no block has number {number}: the index is not in order")

    def find(self, source: int, line: int, kind: Kind = "documents") -> int | None:
        """The number of the record in a line of an input; None where there is none of the kind."""
        section = self._sections[kind]
        begin, end = (int(np.searchsorted(section.source, source, s)) for s in ("left", "right"))
        block = begin + int(np.searchsorted(section.line[begin:end], line, "right")) - 1
        if block < begin:
            return None
        for run in self._block(section, block):
            if run.source == source and run.line <= line < run.line + run.length:
                return run.first + line - run.line
        return None

    def runs(self, kind: Kind = "documents") -> Iterator[RecordRun]:
        """All records of a kind, in order."""
        section = self._sections[kind]
        for block in range(len(section.first)):
            yield from self._block(section, block)

    def validate(self) -> None:
        """Check every byte that has a meaning; FormatError names the first fault."""
        wrong = np.flatnonzero((self._lines < 0) | (self._lines >= _LIMIT))
        if wrong.size:
            raise self._broken(f"input {wrong[0]} has {self._lines[wrong[0]]} lines")
        for kind in KINDS:
            records, source, line = 0, 0, 0
            for run in self.runs(kind):
                if (run.source, run.line) <= (source, line) or run.first != records:
                    raise self._broken(f"{kind}: {run} is out of order")
                records, source, line = run.first + run.length, run.source, run.line + run.length
            if records != self._sections[kind].records:
                raise self._broken(f"{kind}: {records} records, expected {self.count(kind)}")

    def _block(self, section: _Columns, number: int) -> list[RecordRun]:
        """The runs of a block, checked against its neighbour and the input's lines."""
        following = number + 1 < len(section.first)
        first, source = section.first.item(number), section.source.item(number)
        line, begin = section.line.item(number), section.offset.item(number)
        next_first = section.first.item(number + 1) if following else section.records
        end = section.offset.item(number + 1) if following else len(section.runs)
        what = f"{section.kind}: block {number}"
        if number == 0 and (first or begin):
            raise self._broken(f"{what} begins with number {first} at byte {begin}, expected 0")
        if not 0 <= begin < end <= len(section.runs):
            raise self._broken(f"{what} lies in bytes {begin} to {end} of {len(section.runs)}")
        if not 0 <= source < len(self._lines):
            raise self._broken(f"{what} is of input {source}, expected less than {self.sources}")
        if not 0 < line < _LIMIT or not 0 <= first < next_first < _LIMIT:
            raise self._broken(f"{what} has numbers {first} to {next_first} from line {line} on")
        values = _unpacked(section.runs[begin:end], 2 * RUNS)
        if values is None or len(values) % 2:
            raise self._broken(f"{what}: its runs at byte {begin} cannot be decoded")
        pairs = values.tolist()
        skips, counts = pairs[::2], pairs[1::2]
        if skips[0] or 0 in skips[1:] or 0 in counts:
            raise self._broken(f"{what} has a run without records, or without a line between")
        if sum(counts) != next_first - first:
            raise self._broken(f"{what} has {sum(counts)} records, expected {next_first - first}")
        last = line + sum(pairs) - 1
        if last > self._lines[source]:
            raise self._broken(
                f"{what} ends at line {last} of input {source}, which has {self._lines[source]}"
            )
        runs = []
        for skip, count in zip(skips, counts, strict=True):
            line += skip
            runs.append(RecordRun(first, source, line, count))
            first, line = first + count, line + count
        return runs

    def _broken(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what}")
