"""From a block of lines to documents and bad records: JSON lines and plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokpack._core import JsonLines, invalid_utf8, split_lines
from tokpack.errors import UsageError
from tokpack.sources.base import RAW_BYTES_KEPT, BadRecord, DocumentBatch, Documents
from tokpack.sources.json_values import separate_values
from tokpack.sources.values import as_text, int_or_digits, of_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from tokpack._core import Extracted
    from tokpack.sources.values import Values


_SEVERAL = "malformed JSON: Extra data"  # the reason of a line with more than one value


class Parser(Protocol):
    """Finds the documents in lines."""

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        """Parse whole lines, of which the first is number ``first_line``; no bytes are counted."""


class JsonLinesParser:
    """Takes the strings under some keys from JSON lines.

    The native extractor does it for all records but those that it calls slow; Python's ``json``
    decides what these are. ``columns`` are keys of which the documents have the values, too.
    """

    def __init__(self, keys: Sequence[str], columns: Sequence[str] = ()) -> None:
        self._columns = columns
        # Of a.b the extractor sees the key a.b, and the a that may have it inside.
        self._kept = list(dict.fromkeys(name for one in columns for name in _names_of(one)))
        noted = [self._kept, *([] for _ in keys[1:])]
        self._extractors = [
            (key, JsonLines(key, kept=kept)) for key, kept in zip(keys, noted, strict=True)
        ]

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        return separated(self._parse, block, first_line)

    def _parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        bad: dict[int, BadRecord] = {}  # by index of the record in the block
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
        """The columns of all records in a block, also of the slow ones."""
        places = dict(zip(self._kept, extracted.values.transpose(1, 0, 2), strict=True))
        slow = [(index, _parsed(block[begin:end])) for index, begin, end in extracted.slow.tolist()]
        spans: dict[str, npt.NDArray[np.int64]] = {}
        more = bytearray()  # behind the block: texts that are not in it
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
    """``parse`` of a block of JSON lines; of a line with several values each is a record."""
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
    if again.rows is not None:
        again.rows.lines = at[again.rows.lines]
    for record in again.bad:
        record.line = int(at[record.line])
    again.lines = batch.lines
    return again


def _names_of(column: str) -> list[str]:
    """The top-level keys that a column may be under: its own name, and what is before its dot."""
    return [column, column.partition(".")[0]] if "." in column else [column]


def _parsed(text: memoryview) -> Any:
    """A JSON text as Python's json reads it; None where it is none."""
    try:
        return json.loads(bytes(text).decode(), parse_int=int_or_digits)
    except (ValueError, RecursionError):
        return None


def value_at(record: Any, column: str) -> Any:
    """The value under a key, or a.b, of a parsed record; None where it has none."""
    try:
        return _value_at(record, column) if isinstance(record, Mapping) else None
    except NoKeyError:
        return None


class NoKeyError(ValueError):
    """A record has no text under the key asked for; ``keys`` are those that it has there."""

    def __init__(self, reason: str, keys: Iterable[str]) -> None:
        super().__init__(reason)
        self.keys = tuple(keys)


class TextParser:
    """Every line is a document, blank ones included."""

    def __init__(self, keys: Sequence[str]) -> None:
        if len(keys) != 1:
            raise UsageError(f"plain text has one document a line, not the keys {', '.join(keys)}")
        self._key = keys[0]

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        spans = split_lines(block)
        data = np.frombuffer(block, np.uint8)
        numbers = np.arange(first_line, first_line + len(spans), dtype=np.int64)
        documents = {self._key: Documents(data, spans, numbers)}
        bad = not_utf8(documents[self._key])
        return DocumentBatch(without(documents, bad), list(bad.values()), len(spans), len(spans))


def only_bad(keys: Sequence[str], record: BadRecord) -> DocumentBatch:
    """One bad record, and no document."""
    empty = np.zeros(0, np.uint8), np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    return DocumentBatch({key: Documents(*empty) for key in keys}, [record], 1, 1)


def joined(texts: Sequence[bytes], lines: npt.NDArray[np.int64]) -> Documents:
    """Documents of texts, with their lines."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    spans = np.stack([np.concatenate([[0], ends[:-1]])[: len(ends)], ends], axis=1)
    return Documents(np.frombuffer(b"".join(texts), np.uint8), spans.astype(np.int64), lines)


def not_utf8(documents: Documents) -> dict[int, BadRecord]:
    """The documents that are not UTF-8, by index."""
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

    ``a.b`` is the key ``b`` of the object under ``a`` where the record has no key ``a.b``.
    ValueError with the reason where there is none.
    """
    # Numbers are not looked at, so one of a million digits is as good as any.
    return utf8_at(record_of(record, parse_int=_as_number, parse_float=_as_number), key)


def record_of(
    record: bytes,
    *,
    parse_int: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """One JSON record, as Python's json reads it. ValueError with the reason where it is none."""
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
    """The UTF-8 text under a key of a record, as ``string_at`` finds it."""
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
    return f"a {type(value).__name__}"  # an object of Python


def _decide_slow(
    extracted: Extracted,
    block: memoryview,
    key: str,
    numbers: npt.NDArray[np.int64],
    bad: dict[int, BadRecord],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Data and spans with the text of the slow records added, or these entered as bad."""
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
    """The documents of all keys but those whose indices are in ``bad``."""
    if not bad:
        return documents
    chosen = np.ones(len(next(iter(documents.values()))), np.bool_)
    chosen[list(bad)] = False
    return {key: docs.select(chosen) for key, docs in documents.items()}
