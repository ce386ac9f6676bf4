"""Documents from columns of CSV and TSV files, parsed by pyarrow, with quotes as in RFC 4180.

The first row names the columns. A row with another number of values is a bad record. Rows count
from 1 after the header, and a value may contain newlines.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack._core import invalid_utf8
from tokpack.display import brief
from tokpack.errors import InputError
from tokpack.sources.base import BOM, RAW_BYTES_KEPT, BadRecord, DocumentBatch
from tokpack.sources.columns import cut_texts
from tokpack.sources.detect import PeekableStream
from tokpack.sources.records import no_documents_of
from tokpack.sources.rows import with_value_rows
from tokpack.sources.streams import fill, open_stream

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from tokpack.sources.base import Limits, Source
    from tokpack.sources.rows import WholeRecords
    from tokpack.sources.streams import Stream
    from tokpack.sources.values import Values

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_BLOCK_BYTES = 4 << 20  # parsed at a time by pyarrow; a longer row needs larger blocks
_LARGER = 16
_FIRST_OF_SEVERAL = 0xC0  # or more: the first byte of a character of several bytes
_LARGEST_BLOCK = 1 << 30
_END = b"end of the file\0"  # an added last row, which ends up in a value if a quote is open


def read_csv(
    source: Source, keys: Sequence[str], limits: Limits, columns: Sequence[str] = ()
) -> Generator[DocumentBatch]:
    """Yield the documents of a file of rows; ``keys`` are names of its columns.

    They have the values of existing ``columns``, all str. InputError if a column of ``keys`` does
    not exist, or if a quote is not closed.
    """
    rows = stored = 0
    as_latin = False
    block_bytes = _LARGEST_BLOCK // _LARGER if source.is_pipe else _BLOCK_BYTES
    while True:
        try:
            for batch in _batches(
                source, keys, columns, limits, block_bytes=block_bytes, done=rows, as_latin=as_latin
            ):
                rows += batch.lines
                batch.bytes_read = max(batch.bytes_read - stored, 0)
                stored += batch.bytes_read
                yield batch
            return
        except _NotUtf8Error:
            as_latin = True
        except _LongRowError:
            if source.is_pipe or block_bytes >= _LARGEST_BLOCK:
                raise InputError(
                    f"{source.name}: a row after row {rows} is longer than {block_bytes} "
                    "bytes; a quote may not be closed there"
                ) from None
            block_bytes = min(block_bytes * _LARGER, _LARGEST_BLOCK)


def read_csv_rows(source: Source, limits: Limits, whole: WholeRecords) -> Generator[DocumentBatch]:
    """Yield the rows of a file with all its columns, and no documents."""
    with closing(PeekableStream(open_stream(source))) as stream:
        names = _column_names(source, stream.head, ())
    for name in names:  # each may be there only once
        _check_once(source, names, name)
    for batch in read_csv(source, names[:1], limits, names):
        yield with_value_rows(batch, whole)


class _LongRowError(Exception):
    """A row does not fit into a block."""


class _NotUtf8Error(Exception):
    """There are bytes that are not UTF-8: with these pyarrow cannot report a row of the wrong
    length.
    """


def _batches(
    source: Source,
    keys: Sequence[str],
    columns: Sequence[str],
    limits: Limits,
    *,
    block_bytes: int,
    done: int,
    as_latin: bool,
) -> Iterator[DocumentBatch]:
    """The documents after the first ``done`` rows; ``bytes_read`` counts from the beginning.

    If a row needs larger blocks, or bytes are not UTF-8, reading restarts after the finished rows.
    With ``as_latin`` pyarrow reads the bytes as Latin-1, which accepts all bytes.
    """
    try:
        import pyarrow
        from pyarrow import csv as arrow
    except ImportError as error:
        raise InputError(
            f"{source.name}: {source.format} files need a package: pip install 'tokpack[parquet]'"
        ) from error
    with closing(PeekableStream(open_stream(source))) as stream:
        names = _column_names(source, stream.head, keys)
        values = [name for name in columns if names.count(name) == 1]
        read = list(dict.fromkeys([*keys, *values]))
        encoding = "latin-1" if as_latin else "utf-8"
        rows = _Rows(keys, values, limits, done, names, encoding)
        # As Latin-1, the same bytes give other names.
        called = [name.encode().decode("latin-1") if as_latin else name for name in read]
        file = _WithEnd(stream, _Quotes(source), is_checked=not (as_latin or source.is_pipe))
        try:
            with arrow.open_csv(
                pyarrow.PythonFile(file, mode="r"),
                read_options=arrow.ReadOptions(
                    use_threads=False,
                    block_size=block_bytes,
                    encoding=encoding,
                ),
                parse_options=arrow.ParseOptions(
                    delimiter=_DELIMITERS[source.format],
                    newlines_in_values=True,
                    invalid_row_handler=rows.add_ragged,
                ),
                convert_options=arrow.ConvertOptions(
                    check_utf8=False,  # checked later for documents, with their line in the error
                    include_columns=called,
                    column_types=dict.fromkeys(called, pyarrow.large_binary()),
                    strings_can_be_null=False,
                ),
            ) as reader:
                for record_batch in reader:
                    columns_read = record_batch.columns
                    if as_latin:
                        columns_read = map(_bytes_of_latin, columns_read)
                    named = pyarrow.record_batch(list(columns_read), names=read)
                    for batch in rows.batches(named):
                        batch.bytes_read = stream.stored
                        yield batch
        except pyarrow.ArrowInvalid as error:
            if "block size" in str(error):
                raise _LongRowError from error
            raise InputError(f"{source.name}: unreadable {source.format} file: {error}") from error
        yield from rows.rest()
    if not rows.is_at_end:
        raise InputError(
            f"{source.name}: a quote is not closed at the end of the file, in row "
            f'{rows.next}; values with quotes are written as "...""..."'
        )


@dataclass
class _Rows:
    """Turns what pyarrow parses into batches, for the rows after the first ``done``.

    ``next`` is the number of the next row, from 0. ``ragged`` are rows of the wrong length that are
    not in a batch yet.
    """

    keys: Sequence[str]
    values: Sequence[str]
    limits: Limits
    done: int
    names: Sequence[str]
    encoding: str
    next: int = 0
    is_at_end: bool = False
    ragged: dict[int, BadRecord] = field(default_factory=dict)

    def add_ragged(self, row: Any) -> str:
        """Note a row with the wrong number of values; called by pyarrow, perhaps blocks ahead."""
        text = row.text.encode(self.encoding)
        if text == _END:
            self.is_at_end = True
        else:
            reason = f"the row has {row.actual_columns} values, not {row.expected_columns}"
            number = row.number - 2  # pyarrow counts from 1, and counts the header
            self.ragged[number] = BadRecord(number, reason, text[:RAW_BYTES_KEPT])
        return "skip"

    def batches(self, record_batch: Any) -> Iterator[DocumentBatch]:
        """The batches of the rows that come next."""
        rows = record_batch.num_rows
        if rows and record_batch.num_columns and record_batch.column(0)[rows - 1].as_py() == _END:
            self.is_at_end = True
            rows -= 1
        ragged = np.fromiter(self.ragged, np.int64)
        lines = np.arange(self.next, self.next + rows + len(ragged), dtype=np.int64)
        lines = lines[~np.isin(lines, ragged)][:rows]
        last = lines[-1] if rows else 0
        first = int(np.searchsorted(lines, self.done))  # earlier rows were read already
        lines = lines[first:]
        texts = {key: record_batch.column(key).slice(first, len(lines)) for key in self.keys}
        values = {
            name: _strings(record_batch.column(name)).slice(first, len(lines))
            for name in self.values
        }
        done, limits = 0, self.limits

        def place() -> tuple[int, int]:
            return done, limits.block_bytes

        for batch in cut_texts(texts, values, limits.max_document_bytes, place):
            done += batch.records
            batch.table_columns = self.names
            for documents in batch.documents.values():
                documents.lines = lines[documents.lines]
            for record in batch.bad:
                record.line = int(lines[record.line])
            # With the ragged ones before the last of them.
            begin, self.next = max(self.next, self.done), int(lines[done - 1]) + 1
            yield self._with_ragged(batch, begin)
        if rows:
            self.next = int(last) + 1

    def _with_ragged(self, batch: DocumentBatch, begin: int) -> DocumentBatch:
        ragged = [number for number in self.ragged if number < self.next]
        added = [self.ragged.pop(number) for number in ragged]
        added = [record for record in added if record.line >= begin]
        batch.bad = sorted([*batch.bad, *added], key=lambda record: record.line)
        batch.records += len(added)
        batch.lines = self.next - begin
        return batch

    def rest(self) -> Iterator[DocumentBatch]:
        """The batch of the rows of the wrong length after the last good row."""
        if self.ragged:
            begin, self.next = max(self.next, self.done), max(self.ragged) + 1
            yield self._with_ragged(DocumentBatch(no_documents_of(self.keys), [], 0, 0), begin)


class _WithEnd:
    """A stream as a file for pyarrow, with a row added after its last."""

    closed = False

    def __init__(self, stream: Stream, quotes: _Quotes, *, is_checked: bool) -> None:
        self._stream, self._quotes = stream, quotes
        self._cut: bytes | None = b"" if is_checked else None  # the beginning of a character
        self._is_at_begin = True
        self._end = b"\n" + _END + b"\n"

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        count = fill(self._stream, memoryview(buffer))
        del buffer[count:]
        if self._is_at_begin:
            self._is_at_begin = False
            buffer = buffer.removeprefix(BOM)
        self._quotes.check(buffer)
        if self._cut is not None:
            self._cut = _after_utf8(self._cut + buffer, is_last=count < size)
        if count < size:  # with the last bytes: pyarrow takes a header alone for an empty file
            buffer += self._end
            self._end = b""
        return bytes(buffer)

    def close(self) -> None:
        """Do nothing: the caller that opened the stream closes it."""


class _Quotes:
    """Checks the quotes of a file, whose bytes come in pieces.

    After a closing quote comes the end of the value. Where text follows, pyarrow would read on, up
    to other quotes, and join rows.
    """

    def __init__(self, source: Source) -> None:
        end = f"{_DELIMITERS[source.format]}\r\n".encode()
        quoted = rb'"[^"]*(?:""[^"]*)*'  # without its last quote
        self._quoted = re.compile(quoted)
        # Not all at once: possessive groups would need no memory, but Python had faults in them.
        some = rb'(?:(?:%b"|[^"%b][^%b]*)?[%b]){1,999}'
        self._values = re.compile(some % (quoted, end, end, end))
        self._name, self._end = source.name, end
        # Of the value that is cut off: what tells whether it is in quotes.
        self._cut: bytes | bytearray = b""
        self._lines = 1

    def check(self, data: bytes | bytearray) -> None:
        """Check the next bytes. InputError."""
        if b'"' not in data and not self._cut.startswith(b'"'):  # fast
            self._cut = (data or self._cut)[-1:].strip(self._end)
            self._lines += data.count(b"\n")
            return
        data = self._cut + data
        begin = 0
        while values := self._values.match(data, begin):
            begin = values.end()
        rest = data[begin:]
        self._cut = rest[:1]
        if quoted := self._quoted.match(rest):
            end = begin + quoted.end()
            if end + 1 < len(data):
                line = self._lines + data.count(b"\n", 0, end)
                raise InputError(
                    f"{self._name}: text follows a closing quote in line {line}; values with "
                    'quotes are written as "...""...", without backslashes'
                )
            self._cut += data[end:]  # a quote that may be the first of two
        self._lines += data.count(b"\n")


def _after_utf8(data: bytes, *, is_last: bool) -> bytes:
    """The beginning of a character at the end of some bytes, unless they are the last ones.

    Raises _NotUtf8Error if the other bytes are not UTF-8.
    """
    begins = [at for at in range(max(0, len(data) - 3), len(data)) if data[at] >= _FIRST_OF_SEVERAL]
    end = begins[-1] if begins and not is_last else len(data)
    if len(invalid_utf8(data, np.array([[0, end]]))):
        raise _NotUtf8Error
    return data[end:]


def _bytes_of_latin(array: Any) -> Any:
    """The bytes of values that pyarrow has read as Latin-1."""
    import pyarrow

    texts = array.cast(pyarrow.large_string()).to_pylist()
    return pyarrow.array([text.encode("latin-1") for text in texts], pyarrow.large_binary())


def _strings(array: Any) -> Values:
    """The values of a column, with replacement characters for bytes that are not UTF-8."""
    import pyarrow

    try:
        return array.cast(pyarrow.large_string())
    except pyarrow.ArrowInvalid:
        texts = [value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pyarrow.array(texts, pyarrow.large_string())


def _column_names(source: Source, head: bytes, keys: Sequence[str]) -> list[str]:
    """The columns. InputError if the first row does not name each of ``keys`` exactly once."""
    text = head.removeprefix(BOM).decode("utf-8", "replace")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_DELIMITERS[source.format])
    names = next((row for row in rows if row), [])
    if not names:
        raise InputError(f"{source.name}: empty, without the row that names the columns")
    for key in keys:
        _check_once(source, names, key)
    return names


def _check_once(source: Source, names: Sequence[str], key: str) -> None:
    """Raise InputError if a column does not exist, or exists more than once."""
    if names.count(key) != 1:
        there = f"{names.count(key)} columns {key!r}" if key in names else f"no column {key!r}"
        raise InputError(f"{source.name}: {there}; the columns are {', '.join(map(brief, names))}")
