"""Blocks of lines -> documents and bad records, for JSON lines and plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokpack._core import JsonLines, invalid_utf8
from tokpack.sources.base import BOM, RAW_BYTES_KEPT, BadRecord, DocumentBatch, Documents
from tokpack.sources.json_values import separate_values
from tokpack.sources.streams import BoundedStream, fill
from tokpack.sources.values import as_text, int_or_digits, of_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack._core import Extracted
    from tokpack.sources.streams import Stream
    from tokpack.sources.values import Values


_SEVERAL = "malformed JSON: Extra data"  # the error for a line with more than one value


class Parser(Protocol):
    """Finds the documents in lines."""

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        """The documents of whole lines; the first line is number ``first_line``. No bytes are
        counted.
        """


class JsonLinesParser:
    """Takes the strings under some keys from JSON lines.

    The native extractor handles most records; those that it reports as slow are read by Python's
    ``json``. ``columns`` are keys whose values documents get too.
    """

    def __init__(self, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self._columns = columns
        # For a.b the extractor looks for the keys a.b and a, which may have b inside.
        self._kept = list(dict.fromkeys(name for one in columns for name in _names_of(one)))
        noted = [self._kept, *([] for _ in keys[1:])]
        self._extractors = [
            (key, JsonLines(key, kept=kept)) for key, kept in zip(keys, noted, strict=True)
        ]

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        return separated(self._parse, block, first_line)

    def _parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        bad: dict[int, BadRecord] = {}  # by the index of the record in the block
        documents = {}
        columns: dict[str, Values] = {}
        lines = records = 0
        for key, extractor in self._extractors:
            extracted = extractor.extract(block)
            lines, records = extracted.line_count, len(extracted.lines)
            numbers = extracted.lines + first_line
            data, spans = extracted.data, extracted.spans
            if len(extracted.slow):
                data, spans = _decide_slow(extracted, block, key, numbers, bad)
            if self._columns and not columns:
                columns = self._values(extracted, block)
            documents[key] = Documents(data, spans, numbers, columns)
        return DocumentBatch(without(documents, bad), [bad[i] for i in sorted(bad)], records, lines)

    def _values(self, extracted: Extracted, block: memoryview) -> dict[str, Values]:
        """The columns of all records in a block, slow ones included."""
        places = dict(zip(self._kept, extracted.values.transpose(1, 0, 2), strict=True))
        slow = [(index, _parsed(block[begin:end])) for index, begin, end in extracted.slow.tolist()]
        spans: dict[str, npt.NDArray[np.int64]] = {}
        more = bytearray()  # texts that are not in the block, to be appended to it
        for column in self._columns:
            at, (_, *above) = places[column].copy(), _names_of(column)
            records = dict(slow)
            if above:
                inside = places[above[0]]
                for index in np.flatnonzero((inside[:, 1] > 0) & (at[:, 1] == 0)).tolist():
                    begin, end = inside[index].tolist()
                    records[index] = {above[0]: _parsed(block[begin:end])}
            for index, record in records.items():
                value = value_at(record, column)
                begin = len(block) + len(more)
                more += b"" if value is None else as_text(value)
                at[index] = begin, len(block) + len(more)
            spans[column] = at
        data = b"".join((block, more)) if more else block
        return {column: of_json(data, at) for column, at in spans.items()}


def separated(
    parse: Callable[[memoryview, int], DocumentBatch], block: memoryview, first_line: int
) -> DocumentBatch:
    """The result of ``parse`` if each of several values on a line is a record."""
    batch = parse(block, first_line)
    several = {one.line - first_line for one in batch.bad if one.reason.startswith(_SEVERAL)}
    if not several:
        return batch
    lines, numbers = [], []
    for number, line in enumerate(bytes(block).split(b"\n")):
        values = separate_values(line) if number in several else None
        lines += values or [line]
        numbers += [first_line + number] * len(values or [line])
    again = parse(memoryview(b"\n".join(lines)), 0)
    at = np.array(numbers, np.int64)
    for documents in again.documents.values():
        documents.lines = at[documents.lines]
    for record in again.bad:
        record.line = int(at[record.line])
    again.lines = batch.lines
    return again


def _names_of(column: str) -> list[str]:
    """The top-level keys that may hold a column: its name, and the part before the dot."""
    return [column, column.partition(".")[0]] if "." in column else [column]


def _parsed(text: memoryview) -> Any:
    """The value of a JSON text as Python's json reads it, or None if it is not valid."""
    try:
        return json.loads(bytes(text).decode(), parse_int=int_or_digits)
    except (ValueError, RecursionError):
        return None


def value_at(record: Any, column: str) -> Any:
    """The value under a key, or a.b, of a parsed record, or None if it has none."""
    try:
        return _value_at(record, column) if isinstance(record, Mapping) else None
    except NoKeyError:
        return None


class NoKeyError(ValueError):
    """A record has no text under the requested key; ``keys`` are those that it has instead."""

    def __init__(self, reason: str, keys: Iterable[str]) -> None:
        super().__init__(reason)
        self.keys = tuple(keys)


def only_bad(keys: Sequence[str], record: BadRecord) -> DocumentBatch:
    """One bad record and no document."""
    return DocumentBatch(no_documents_of(keys), [record], 1, 1)


def no_documents_of(keys: Sequence[str]) -> dict[str, Documents]:
    """No documents for each key."""
    return {key: documents_of([], np.zeros(0, np.int64)) for key in keys}


def batch_of_texts(key: str, documents: Documents) -> DocumentBatch:
    """The batch of some documents; those that are not UTF-8 are bad records."""
    bad = not_utf8(documents)
    count = len(documents)
    return DocumentBatch(without({key: documents}, bad), list(bad.values()), count, count)


def documents_of(
    texts: Sequence[bytes],
    lines: npt.NDArray[np.int64],
    columns: dict[str, Values] | None = None,
    whole: Any = None,
) -> Documents:
    """Documents made of texts and their lines, and what Documents have besides."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    spans = np.stack([np.concatenate([[0], ends[:-1]])[: len(ends)], ends], axis=1)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return Documents(data, spans.astype(np.int64), lines, columns or {}, whole)


def not_utf8(documents: Documents) -> dict[int, BadRecord]:
    """The documents that are not UTF-8, as bad records by their index."""
    bad = {}
    for index in invalid_utf8(documents.data.data, documents.spans).tolist():
        raw = documents.text(index)
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            reason = f"invalid UTF-8 at byte {error.start}"
            bad[index] = BadRecord(int(documents.lines[index]), reason, raw[:RAW_BYTES_KEPT])
    return bad


def string_at(record: bytes, key: str) -> bytes:
    """The UTF-8 text under a key of one JSON record, as Python's json reads it.

    ``a.b`` is the key ``b`` of the object under ``a``, if the record has no key ``a.b``. ValueError
    with the reason if there is none.
    """
    # Numbers are irrelevant, so one with a million digits, which Python refuses, is not an error.
    return utf8_at(record_of(record, parse_int=_as_number, parse_float=_as_number), key)


def record_of(
    record: bytes,
    *,
    parse_int: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """One JSON record, as Python's json reads it. ValueError with the reason if it is not valid."""
    parse_int = parse_int or int_or_digits
    try:
        value = json.loads(record.decode(), parse_int=parse_int, parse_float=parse_float)
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"malformed JSON: {error.msg} (character {error.pos})") from None
    except RecursionError:
        raise ValueError("malformed JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"the record is {_described(value)}, not a JSON object")
    return value


def utf8_at(record: Mapping[str, Any], key: str) -> bytes:
    """The UTF-8 text under a key of a record, found as by ``string_at``."""
    text = _value_at(record, key)
    if text is None:
        raise ValueError(f"'{key}' is null")
    if not isinstance(text, str):
        reason = f"'{key}' is {_described(text)}, not a string"
        if isinstance(text, Mapping) and text:
            raise NoKeyError(reason, (f"{key}.{name}" for name in text))
        if isinstance(text, list):
            raise NoKeyError(reason, record)
        raise ValueError(reason)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"lone surrogate {escape} in '{key}'") from None


def _value_at(record: Mapping[str, Any], key: str) -> Any:
    value: Any = record
    above = ""
    for name in [key] if key in record else key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            inside = [f"{above}{other}" for other in value] if isinstance(value, Mapping) else []
            raise NoKeyError(f"no key '{key}'", inside or record)
        value = value[name]
        above += f"{name}."
    return value


def _as_number(_digits: str) -> int:
    return 0


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return "a number"
    for kind, name in ((str, "a string"), (list, "a list"), (Mapping, "an object")):
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"  # from an iterable of Python objects


def _decide_slow(
    extracted: Extracted,
    block: memoryview,
    key: str,
    numbers: npt.NDArray[np.int64],
    bad: dict[int, BadRecord],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Data and spans with the texts of slow records; those without a text go to ``bad``."""
    pieces = [extracted.data]
    spans = extracted.spans.copy()
    size = len(extracted.data)
    for index, begin, end in extracted.slow.tolist():
        raw = bytes(block[begin:end]).rstrip(b"\n")
        try:
            text = string_at(raw, key)
        except ValueError as error:
            keys = error.keys if isinstance(error, NoKeyError) else None
            record = BadRecord(int(numbers[index]), str(error), raw[:RAW_BYTES_KEPT], keys)
            bad.setdefault(index, record)
            continue
        pieces.append(np.frombuffer(text, np.uint8))
        spans[index] = size, size + len(text)
        size += len(text)
    return np.concatenate(pieces), spans


def without(documents: dict[str, Documents], bad: dict[int, BadRecord]) -> dict[str, Documents]:
    """The documents of all keys, without those whose indices are in ``bad``."""
    if not bad:
        return documents
    chosen = np.ones(len(next(iter(documents.values()))), np.bool_)
    chosen[list(bad)] = False
    return {key: docs.select(chosen) for key, docs in documents.items()}


# A stream is cut into blocks of whole lines; a part takes only the lines that it owns.
#
# A part with the bytes (begin, end] owns the lines that begin there; the first part also owns the
# line at 0. These are the lines after the first newline at or after ``begin``, up to and including
# the first newline at or after ``end``. So no part needs a byte before ``begin``, and no line has
# two owners. A line that begins exactly at ``end`` belongs to this part: the next part cannot know,
# without the byte before, that a line begins at its ``begin``, and skips it. Offsets in a part's
# stream count from ``begin``.

_NEWLINE = 0x0A
_LEAST_BLOCK = 16


@dataclass
class LineBlock:
    """Whole lines, each with its \\n; only the last line of a stream may have none.

    A line over the limit is a block of its own, ``too_long``, with only its beginning in ``data``.
    ``length`` is the number of bytes read for the block, ``stored`` the bytes of the file for it:
    they differ only if the stream is decompressed. ``data`` is valid until the next block.
    """

    data: memoryview
    length: int
    stored: int
    too_long: bool = False


def count_newlines(data: memoryview) -> int:
    """The number of line feeds in some bytes."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


class LineReader:
    """Reads the blocks of a region of a stream, in order, through one buffer.

    The buffer has ``block_bytes``. It grows for longer lines, up to ``max_line_bytes``; even longer
    lines are skipped without holding them in memory. Blocks do not depend on how many bytes the
    stream gives at a time.
    """

    def __init__(self, stream: Stream, block_bytes: int, max_line_bytes: int) -> None:
        self._stream = stream
        self._most = max(max_line_bytes, _LEAST_BLOCK) + 1  # for the newline
        self._block_bytes = min(max(block_bytes, _LEAST_BLOCK), self._most)
        self._buffer = bytearray(self._block_bytes)
        self._view = memoryview(self._buffer)
        self._base = 0  # the offset in the stream at which the buffer begins
        self._cursor = 0  # the end of the processed bytes in the buffer
        self._filled = 0
        self._at_end = False

    def blocks(self, region: BoundedStream) -> Iterator[LineBlock]:
        """The blocks of the region; there may be none."""
        if not region.skips_first_line:
            self._skip_bom()
        elif not self._skip_line_at(0) or self.position > region.end:
            return
        begin = self.position  # a BOM may cross the end of a small region
        while self.position <= max(region.end, begin):
            newline = self._last_newline(region)
            if newline >= 0:
                yield self._take(newline + 1)
            elif self._filled - self._cursor == self._most:
                yield self._pass_over_line()
            elif not self._at_end:
                self._refill()
            else:
                if self._cursor < self._filled:
                    yield self._take(self._filled)
                return

    @property
    def position(self) -> int:
        """The offset in the stream at which the last block ended."""
        return self._base + self._cursor

    def _last_newline(self, region: BoundedStream) -> int:
        """The index of the newline that ends the region, else of the last one here, or -1."""
        end = region.end - self._base
        if end < self._filled:
            newline = self._buffer.find(b"\n", max(end, self._cursor), self._filled)
            if newline >= 0:
                return newline
        return self._buffer.rfind(b"\n", self._cursor, self._filled)

    def _take(self, end: int) -> LineBlock:
        data = self._view[self._cursor : end]
        self._cursor = end
        return LineBlock(data, len(data), len(data))

    def _pass_over_line(self) -> LineBlock:
        begin = self.position
        raw = bytes(self._view[self._cursor : self._cursor + RAW_BYTES_KEPT])
        self._skip_line_at(self._base + self._filled)
        length = self.position - begin
        return LineBlock(memoryview(raw), length, length, too_long=True)

    def _skip_line_at(self, position: int) -> bool:
        """Skip past the first newline at or after ``position``. Returns whether there is one."""
        while True:
            begin = max(position - self._base, self._cursor)
            newline = self._buffer.find(b"\n", begin, self._filled)
            self._cursor = newline + 1 if newline >= 0 else self._filled
            if newline >= 0 or self._at_end:
                return newline >= 0
            self._refill()

    def _skip_bom(self) -> None:
        self._refill()
        if self._buffer.startswith(BOM) and self._filled >= len(BOM):
            self._cursor = len(BOM)

    def _refill(self) -> None:
        """Move the unfinished line to the front, enlarge the buffer if needed, and read."""
        tail = self._filled - self._cursor
        size = len(self._buffer)
        # Grow the buffer when it is half full: otherwise long lines would be moved to the front
        # again and again, with little space to read into.
        if 2 * tail > size:
            size = 2 * size if 3 * size < self._most else self._most  # spares a small last step
        elif size > self._block_bytes and tail <= self._block_bytes // 2:
            size = self._block_bytes
        view = self._view
        if size != len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[:tail] = view[self._cursor : self._filled]
        self._base += self._cursor
        self._cursor = 0
        self._filled = tail + fill(self._stream, self._view[tail:])
        self._at_end = self._filled < size
