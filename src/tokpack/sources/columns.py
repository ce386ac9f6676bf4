"""Documents from the columns of parquet and Arrow files and of tables, without copying the text."""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokpack.errors import InputError
from tokpack.sources.base import BadRecord, DocumentBatch, Documents
from tokpack.sources.records import not_utf8, without
from tokpack.sources.rows import WholeRecords
from tokpack.sources.values import plain_values, root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.sources.base import Limits, Part, Source
    from tokpack.sources.rows import Columns
    from tokpack.sources.values import Values

_ARROW_FILE_MAGIC = b"ARROW1"
_MOST_ROWS = 1 << 16
DOCUMENT_BYTES = 16  # that a document weighs besides its text
_READ_BYTES = 1 << 20


class _Table(Protocol):
    """A file of rows in groups that can be read alone."""

    schema: Any

    def groups(self) -> list[tuple[int, int]]:
        """Rows and bytes of each group."""

    def batches(self, begin: int, end: int, keys: list[str], block_bytes: int) -> Iterator[Any]:
        """The record batches of groups [begin, end), with the columns ``keys``."""


class _Parquet:
    def __init__(self, file: Any) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
        self.schema = self._file.schema_arrow

    def groups(self) -> list[tuple[int, int]]:
        metadata = self._file.metadata
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def batches(self, begin: int, end: int, keys: list[str], block_bytes: int) -> Iterator[Any]:
        own = self.groups()[begin:end]
        rows, size = sum(rows for rows, _ in own), sum(size for _, size in own)
        return self._file.iter_batches(  # type: ignore[no-any-return]
            batch_size=max(1, min(_MOST_ROWS, block_bytes * rows // max(size, 1))),
            row_groups=range(begin, end),
            columns=keys,
            use_threads=False,
        )


class _Arrow:
    """Arrow's two kinds of files: the one with an index at its end, and the stream."""

    def __init__(self, file: Any) -> None:
        import pyarrow

        buffer = pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._indexed = buffer[: len(_ARROW_FILE_MAGIC)].to_pybytes() == _ARROW_FILE_MAGIC
        ipc: Any = pyarrow.ipc
        open_any = ipc.open_file if self._indexed else ipc.open_stream
        self._open: Callable[[], Any] = lambda: open_any(buffer)
        self.schema: Any = self._open().schema

    def groups(self) -> list[tuple[int, int]]:
        # Not nbytes, which follows offsets that nobody has checked.
        return [(batch.num_rows, batch.get_total_buffer_size()) for batch in self._all()]

    def batches(self, begin: int, end: int, keys: list[str], _block_bytes: int) -> Iterator[Any]:
        for index, batch in enumerate(self._all()):
            if index >= end:
                return
            if index >= begin:
                yield batch.select(keys)

    def _all(self) -> Iterator[Any]:
        reader = self._open()
        if self._indexed:
            return (reader.get_batch(i) for i in range(reader.num_record_batches))
        return iter(reader)


def row_weights(source: Source) -> list[int]:
    """Bytes of each row group of a parquet file, of each record batch of an Arrow file."""
    with _opened(source) as table:
        return [size for _, size in table.groups()]


def rows_before(source: Source, group: int) -> int:
    """Rows in the groups before a row group or record batch."""
    with _opened(source) as table:
        return sum(rows for rows, _ in table.groups()[:group])


def read_columns(
    source: Source, part: Part, keys: Sequence[str], limits: Limits, columns: Columns = ()
) -> Generator[DocumentBatch]:
    """Yield the documents of a parquet or Arrow file, ``keys`` being its columns.

    They have the values of those of ``columns`` that are there.
    """
    with _opened(source) as table:
        if isinstance(columns, WholeRecords):
            yield from _read_rows(source, table, part, limits, columns)
            return
        check_columns(source.name, table.schema, keys)
        values = [name for name in columns if root_of(name, table.schema)]
        names = dict.fromkeys([*keys, *(root_of(name, table.schema) for name in values)])
        counts = [rows for rows, _ in table.groups()]
        begin, end = (part.begin, part.end) if part.kind == "rows" else (0, len(counts))
        before, total = sum(counts[:begin]), max(sum(counts), 1)
        row = 0
        for record_batch in table.batches(begin, end, list(names), limits.block_bytes):
            texts = {key: text_column(record_batch.column(key)) for key in keys}
            beside = {name: plain_values(record_batch, name) for name in values}
            weights, first = row_weights_before(texts), 0
            while (count := rows_until(weights, first, limits.block_bytes)) > 0:
                pieces = {key: array.slice(first, count) for key, array in texts.items()}
                stored = source.size * (before + row + count) // total
                stored -= source.size * (before + row) // total
                rows = {name: rows_of(one, first, count) for name, one in beside.items()}
                made = batch_of_columns(pieces, row, stored, limits.max_document_bytes, rows)
                made.table_columns = table.schema.names
                yield made
                row += count
                first += count


def _read_rows(
    source: Source, table: _Table, part: Part, limits: Limits, records: WholeRecords
) -> Iterator[DocumentBatch]:
    """The rows of a table, with all its columns."""
    counts = [rows for rows, _ in table.groups()]
    begin, end = (part.begin, part.end) if part.kind == "rows" else (0, len(counts))
    before, total = sum(counts[:begin]), max(sum(counts), 1)
    row = 0
    names = list(table.schema.names)
    for record_batch in table.batches(begin, end, names, limits.block_bytes):
        record_batch.validate(full=True)
        weights, first = even_weights(record_batch), 0
        while (count := rows_until(weights, first, limits.block_bytes)) > 0:
            columns = record_batch.slice(first, count)
            batch = records.of_table(columns, row, source.name)
            stored = source.size * (before + row + count) // total
            batch.bytes_read = stored - source.size * (before + row) // total
            yield batch
            row += count
            first += count


def even_weights(record_batch: Any) -> npt.NDArray[np.int64]:
    """What all rows before each row weigh, where nobody knows which of them have the texts."""
    rows = record_batch.num_rows
    each = max(record_batch.get_total_buffer_size() // max(rows, 1), 1) + DOCUMENT_BYTES
    weights: npt.NDArray[np.int64] = each * np.arange(rows + 1, dtype=np.int64)
    return weights


@contextmanager
def _opened(source: Source) -> Iterator[_Table]:
    """Open a file, and turn what pyarrow raises while it is read into InputError."""
    if source.memory is not None:
        yield source.memory
        return
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(
            f"{source.name}: {source.format} files need a package: pip install 'tokpack[parquet]'"
        ) from error
    try:
        with source.open() as file:
            yield _Parquet(file) if source.format == "parquet" else _Arrow(file)
    except MemoryError:  # also one of Arrow's exceptions; the file is innocent
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.name}: unreadable {source.format} file: {error}") from error


def check_columns(name: str, schema: Any, keys: Sequence[str]) -> None:
    """Raise InputError where a table ``name`` lacks a column, or has one of another type."""
    from pyarrow import types

    for key in keys:
        if schema.get_field_index(key) < 0:
            raise InputError(
                f"{name}: no column {key!r}; the columns are {', '.join(schema.names)}"
            )
        kind = schema.field(key).type
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if str(plain) not in _TEXT_TYPES:
            raise InputError(f"{name}: column {key!r} is {kind}, not text")


_TYPES_WITH_OFFSETS = ("string", "large_string", "binary", "large_binary")
_TEXT_TYPES = (*_TYPES_WITH_OFFSETS, "string_view", "binary_view", "null")


def text_column(array: Any) -> Any:
    """The column with offsets: (large_)string or (large_)binary; ArrowInvalid if it is broken."""
    from pyarrow import types

    plain = str(array.type) in _TYPES_WITH_OFFSETS
    array.validate(full=not plain)  # of a plain column we check the offsets, and the UTF-8, anyway
    if plain:
        return array
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if str(array.type) in _TYPES_WITH_OFFSETS else array.cast("large_binary")


def rows_of(values: Values, first: int, count: int) -> Values:
    """``count`` of some values, from ``first`` on."""
    if isinstance(values, list):
        return values[first : first + count]
    rows: Any = values
    return rows.slice(first, count)


def offsets_of(array: Any) -> Any:
    """The offsets of a column of text, [n + 1]. ValueError where they are wrong."""
    from pyarrow import types

    if len(array) == 0:
        return np.zeros(1, np.int64)
    long = types.is_large_string(array.type) or types.is_large_binary(array.type)
    offsets: Any = np.frombuffer(array.buffers()[1], np.int64 if long else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    size = array.buffers()[2].size if array.buffers()[2] is not None else 0
    if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("a column has offsets beyond its text")
    return offsets


def row_weights_before(columns: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """What all rows before each row of some columns weigh: their text, and something for each."""
    offsets = [offsets_of(array).astype(np.int64) for array in columns.values()]
    weights: npt.NDArray[np.int64] = np.sum(offsets, axis=0)
    weights += DOCUMENT_BYTES * np.arange(len(weights)) - weights[0]
    return weights


def rows_until(weights: npt.NDArray[np.int64], first: int, size: int) -> int:
    """How many rows from ``first`` on weigh at least ``size``, or all that are left."""
    return min(int(np.searchsorted(weights, weights[first] + size)), len(weights) - 1) - first


def batch_of_columns(
    columns: dict[str, Any],
    row: int,
    stored: int,
    max_document_bytes: int,
    values: Mapping[str, Values] | None = None,
) -> DocumentBatch:
    """The documents of columns of equal length, of which the first has the line ``row``.

    ``values`` are those that they have besides.
    """
    bad: dict[int, BadRecord] = {}
    documents = {}
    text_bytes = count = 0
    for key, array in columns.items():
        count = len(array)
        offsets = offsets_of(array)
        spans = np.stack([offsets[:-1], offsets[1:]], axis=1).astype(np.int64, copy=False)
        text = array.buffers()[2]
        data = np.frombuffer(text, np.uint8) if text is not None else np.zeros(0, np.uint8)
        lines = np.arange(row, row + count, dtype=np.int64)
        docs = Documents(data, spans, lines, dict(values or {}))
        for index, record in _bad_rows(array, docs, key, max_document_bytes).items():
            bad.setdefault(index, record)
        documents[key] = docs
        text_bytes += int(offsets[-1] - offsets[0])
    records = [bad[index] for index in sorted(bad)]
    return DocumentBatch(without(documents, bad), records, count, count, stored, text_bytes)


def _bad_rows(
    array: Any, documents: Documents, key: str, max_document_bytes: int
) -> dict[int, BadRecord]:
    bad = not_utf8(documents)
    lengths = documents.spans[:, 1] - documents.spans[:, 0]
    for index in np.flatnonzero(lengths > max_document_bytes).tolist():
        reason = f"a document of more than {max_document_bytes} bytes"
        bad[index] = BadRecord(int(documents.lines[index]), reason, b"")
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            bad[index] = BadRecord(int(documents.lines[index]), f"'{key}' is null", b"")
    return bad
