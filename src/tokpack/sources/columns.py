"""Documents from columns of parquet and Arrow files and of tables; the text is not copied."""

from __future__ import annotations

import functools
import mmap
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import numpy as np
import xxhash

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import BadRecord, DocumentBatch, Documents, Source, printable
from tokpack.sources.records import not_utf8, without
from tokpack.sources.rows import WholeRecords, no_column
from tokpack.sources.values import (
    ContentHash,
    column_of,
    of_table,
    offsets_of,
    root_of,
    type_at,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.sources.base import Limits, Part
    from tokpack.sources.rows import Columns
    from tokpack.sources.values import Values


_ARROW_FILE_MAGIC = b"ARROW1"
_MOST_ROWS = 1 << 16
DOCUMENT_BYTES = 16  # the weight of a document besides its text
_READ_BYTES = 1 << 20
_DICTIONARY_BYTES = 2 << 20  # writers fill dictionaries up to this size
_DECODED_BYTES = 64 << 20  # the most decoded bytes of a batch
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")


class _Table(Protocol):
    """A file of rows in groups that can be read independently."""

    schema: Any

    def groups(self) -> list[tuple[int, int]]:
        """The rows and bytes of each group."""

    def batches(self, begin: int, end: int, keys: list[str], block_bytes: int) -> Iterator[Any]:
        """The record batches of groups [begin, end), with the columns ``keys``."""


class _Parquet:
    def __init__(self, file: Any) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(
            file, pre_buffer=False, buffer_size=_READ_BYTES, page_checksum_verification=True
        )
        self.schema = self._file.schema_arrow

    def groups(self) -> list[tuple[int, int]]:
        metadata = self._file.metadata
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def batches(self, begin: int, end: int, keys: list[str], block_bytes: int) -> Iterator[Any]:
        groups = self.groups()[begin:end]
        rows, size = sum(rows for rows, _ in groups), sum(size for _, size in groups)
        most = min(_MOST_ROWS, _DECODED_BYTES // self._largest_coded(begin, end, keys))
        return self._file.iter_batches(  # type: ignore[no-any-return]
            batch_size=max(1, min(most, block_bytes * rows // max(size, 1))),
            row_groups=range(begin, end),
            columns=keys,
            use_threads=False,
        )

    def _largest_coded(self, begin: int, end: int, keys: list[str]) -> int:
        """The size of the largest dictionary value, for rows that only refer to such values.

        The decoded size of such rows is unknown before they are read.
        """
        metadata = self._file.metadata
        paths = [metadata.schema.column(j).path for j in range(metadata.num_columns)]
        wanted = [j for j, path in enumerate(paths) if path.partition(".")[0] in keys]
        chunks = (metadata.row_group(i).column(j) for i in range(begin, end) for j in wanted)
        coded = [
            int(chunk.total_uncompressed_size)
            for chunk in chunks
            if chunk.has_dictionary_page
            and chunk.total_uncompressed_size < _DICTIONARY_BYTES + 4 * chunk.num_values
        ]
        return max([1, *coded])


class _InFolders:
    """A table with additional columns from the names of its folders, such as ``lang=de``."""

    def __init__(self, table: _Table, values: Mapping[str, Any]) -> None:
        import pyarrow

        self._table = table
        there = table.schema.names
        self._values = {
            name: pyarrow.scalar(value) for name, value in values.items() if name not in there
        }
        self.schema = table.schema
        for name, value in self._values.items():
            self.schema = self.schema.append(pyarrow.field(name, value.type))
        self.groups = table.groups

    def batches(self, begin: int, end: int, keys: list[str], block_bytes: int) -> Iterator[Any]:
        import pyarrow

        own = [key for key in keys if key not in self._values] or self._table.schema.names[:1]
        for batch in self._table.batches(begin, end, own, block_bytes):
            columns = [
                pyarrow.repeat(self._values[key], batch.num_rows)
                if key in self._values
                else batch.column(key)
                for key in keys
            ]
            yield pyarrow.RecordBatch.from_arrays(columns, names=keys)


def folder_values(name: str) -> dict[str, Any]:
    """The values that the folders in a source's name give to its rows, as Hive does: int, str,
    None.
    """
    values: dict[str, Any] = {}
    for folder in name.split("/")[:-1]:
        key, equals, text = map(unquote, folder.partition("="))
        if key and equals:
            is_null = text == _HIVE_NULL
            values[key] = None if is_null else int(text) if _NUMBER.fullmatch(text) else text
    return values


class ArrowBatches:
    """The record batches of an Arrow file of either kind: with an index at its end, or a stream."""

    def __init__(self, file: Any) -> None:
        import pyarrow

        buffer = pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._indexed = buffer[: len(_ARROW_FILE_MAGIC)].to_pybytes() == _ARROW_FILE_MAGIC
        ipc: Any = pyarrow.ipc
        open_any = ipc.open_file if self._indexed else ipc.open_stream
        self._open: Callable[[], Any] = lambda: open_any(buffer)
        self.schema: Any = self._open().schema

    def __iter__(self) -> Iterator[Any]:
        reader = self._open()
        if self._indexed:
            return (reader.get_batch(i) for i in range(reader.num_record_batches))
        return iter(reader)

    def groups(self) -> list[tuple[int, int]]:
        """The rows and bytes of each batch."""
        # Not nbytes, which would trust unchecked offsets.
        return [(batch.num_rows, batch.get_total_buffer_size()) for batch in self]

    def batches(self, begin: int, end: int, keys: list[str], _block_bytes: int) -> Iterator[Any]:
        """Batches [begin, end), with the columns ``keys``."""
        return (batch.select(keys) for batch in islice(self, begin, end))


def groups_of(source: Source) -> list[tuple[int, int]]:
    """The rows and bytes of each row group of a parquet file, or record batch of an Arrow file."""
    with _opened(source) as table:
        return table.groups()


def read_columns(
    source: Source, part: Part, keys: Sequence[str], limits: Limits, columns: Columns = ()
) -> Generator[DocumentBatch]:
    """Yield the documents of a parquet or Arrow file, with texts in the columns ``keys``.

    They have the values of existing ``columns``.
    """
    with _opened(source) as table:
        names = getattr(source.memory, "names", None)
        cutter = RowCutter(source.name, table.schema, keys, limits, columns, all_names=names)
        counts = [rows for rows, _ in table.groups()]
        begin, end = (part.begin, part.end) if part.kind == "rows" else (0, len(counts))
        before, total = sum(counts[:begin]), max(sum(counts), 1)
        row = stored = 0

        def place() -> tuple[int, int]:
            return row, limits.block_bytes

        for record_batch in table.batches(begin, end, cutter.names, limits.block_bytes):
            for batch in cutter.cut(record_batch, place):
                row += batch.lines
                now = source.size * (before + row) // total - source.size * before // total
                batch.bytes_read, stored = now - stored, now
                yield batch


class RowCutter:
    """Cuts record batches of a table ``name`` into batches of documents, or of whole rows.

    Documents have the values of existing ``columns``. ``names`` are the columns that record batches
    must have. ``all_names`` are listed in messages, even if only some are read. InputError if one
    of ``keys`` is missing, or is not text.
    """

    def __init__(
        self,
        name: str,
        schema: Any,
        keys: Sequence[str],
        limits: Limits,
        columns: Columns,
        *,
        all_names: Sequence[str] | None = None,
    ) -> None:
        self._name, self._keys, self._limits = name, keys, limits
        self._all_names = all_names or schema.names
        self._whole = columns if isinstance(columns, WholeRecords) else None
        self.names = list(schema.names)
        self._values: list[str] = []
        if not isinstance(columns, WholeRecords):
            self._values, self.names = _read_columns(name, schema, keys, columns)

    def cut(
        self, record_batch: Any, place: Callable[[], tuple[int, int]]
    ) -> Iterator[DocumentBatch]:
        """The batches of a record batch.

        ``place`` returns the line of the first row of the next batch, and the batch's maximum
        weight in bytes.
        """
        if self._whole is None:
            texts = {key: text_column(column_of(record_batch, key)) for key in self._keys}
            values = {name: column_of(record_batch, name) for name in self._values}
            for array in values.values():
                array.validate(full=True)
            for batch in cut_texts(texts, values, self._limits.max_document_bytes, place):
                batch.table_columns = self._all_names
                yield batch
            return
        record_batch.validate(full=True)
        # It is unknown which columns have the texts.
        rows = record_batch.num_rows
        each = max(record_batch.get_total_buffer_size() // max(rows, 1), 1)
        coded = row_weights_before([*filter(_is_coded, record_batch.columns)], rows)
        for first, count, line in _cuts(each * np.arange(rows + 1) + coded, place):
            yield self._whole.of_table(record_batch.slice(first, count), line)


def cut_texts(
    texts: Mapping[str, Any],
    values: Mapping[str, Values],
    max_document_bytes: int,
    place: Callable[[], tuple[int, int]],
) -> Iterator[DocumentBatch]:
    """The batches of text columns with values beside them, cut as by ``RowCutter.cut``."""
    weights = row_weights_before([*texts.values(), *filter(_is_coded, values.values())])
    for first, count, line in _cuts(weights, place):
        pieces = {key: decoded(array.slice(first, count)) for key, array in texts.items()}
        beside = {name: widened(one.slice(first, count)) for name, one in values.items()}
        yield batch_of_columns(pieces, line, max_document_bytes, beside)


def _cuts(
    weights: npt.NDArray[np.int64], place: Callable[[], tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """The first row, the number of rows and the line of each batch."""
    first = 0
    while first < len(weights) - 1:
        line, size = place()
        end = int(np.searchsorted(weights, weights[first] + size))
        count = min(end, len(weights) - 1) - first
        yield first, count, line
        first += count


@contextmanager
def _opened(source: Source) -> Iterator[_Table]:
    """Open a file, and turn pyarrow's errors into InputError while it is read."""
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
            table: _Table = _Parquet(file) if source.format == "parquet" else ArrowBatches(file)
            folders = folder_values(source.name)
            yield _InFolders(table, folders) if folders else table
    except MemoryError:  # Arrow's own is one too; the file is not at fault
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{source.name}: unreadable {source.format} file: {error}") from error


def check_columns(name: str, schema: Any, keys: Sequence[str]) -> None:
    """Raise InputError if a table ``name`` lacks a column, or has it with another type."""
    from pyarrow import types

    for key in keys:
        kind = type_at(key, schema)
        if kind is None:
            raise no_column(name, key, schema.names)
        plain = kind.value_type if types.is_dictionary(kind) else kind
        if str(plain) not in _TEXT_TYPES:
            raise InputError(f"{name}: column {key!r} is {kind}, not text")


def _read_columns(
    name: str, schema: Any, keys: Sequence[str], columns: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Those of ``columns`` that exist, None for all but the texts; and the names of the columns of
    the table that contain these values and the texts. Raises as ``check_columns``.
    """
    check_columns(name, schema, keys)
    if columns is None:
        columns = [one for one in schema.names if one not in keys]
    values = [one for one in columns if root_of(one, schema)]
    return values, list(dict.fromkeys(root_of(one, schema) for one in (*keys, *values)))


_TYPES_WITH_OFFSETS = ("string", "large_string", "binary", "large_binary")
_TEXT_TYPES = (*_TYPES_WITH_OFFSETS, "string_view", "binary_view", "null")


def text_column(array: Any) -> Any:
    """The column with a type that has offsets: (large_)string, (large_)binary, or a dictionary of
    one.

    ArrowInvalid if it is damaged.
    """
    from pyarrow import types

    plain = str(array.type) in _TYPES_WITH_OFFSETS
    array.validate(full=not plain)  # plain columns are checked later
    if plain or types.is_dictionary(array.type):
        return array
    return array.cast("large_binary")


def decoded(array: Any) -> Any:
    """The texts of a ``text_column``, without a dictionary."""
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if str(array.type) in _TYPES_WITH_OFFSETS else array.cast("large_binary")


def _is_coded(array: Any) -> bool:
    """Whether a column is a dictionary of texts, which may be much larger when it is decoded."""
    from pyarrow import types

    return types.is_dictionary(array.type) and str(array.type.value_type) in _TEXT_TYPES


def offsets_decoded(array: Any) -> npt.NDArray[np.int64]:
    """The offsets, [n + 1], of a ``text_column``'s texts after decoding."""
    if not _is_coded(array):
        offsets: npt.NDArray[np.int64] = offsets_of(array).astype(np.int64)
        return offsets
    lengths = np.append(np.diff(offsets_of(decoded(array.dictionary))), 0)  # the last is for null
    indices = array.indices.fill_null(len(lengths) - 1).to_numpy()
    return np.concatenate(([0], np.cumsum(lengths[indices], dtype=np.int64)))


def row_weights_before(columns: Sequence[Any], rows: int = 0) -> npt.NDArray[np.int64]:
    """The weight of all rows before each row of some columns: their text, and a constant for each
    row.
    """
    rows = len(columns[0]) if columns else rows
    weights: npt.NDArray[np.int64] = DOCUMENT_BYTES * np.arange(rows + 1, dtype=np.int64)
    for array in columns:
        offsets = offsets_decoded(array)
        weights += offsets - offsets[0]
    return weights


def batch_of_columns(
    columns: dict[str, Any], row: int, max_document_bytes: int, values: Mapping[str, Values]
) -> DocumentBatch:
    """The documents of columns of equal length; the first one has the line ``row``.

    ``values`` are other values of the same rows.
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
        docs = Documents(data, spans, lines, dict(values))
        for index, record in _bad_rows(array, docs, key, max_document_bytes).items():
            bad.setdefault(index, record)
        documents[key] = docs
        text_bytes += int(offsets[-1] - offsets[0])
    records = [bad[index] for index in sorted(bad)]
    return DocumentBatch(without(documents, bad), records, count, count, text_bytes=text_bytes)


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


# Tables and datasets in this process are read like the rows of a parquet file. Workers inherit them
# by fork, so nothing is copied: a table is in memory once, and the Arrow files of a
# ``datasets.Dataset`` stay mapped.

_GROUP_BYTES = 1 << 20  # of text in a group
_MOST_GROUPS = 1 << 16
_HASHED_BYTES = 1 << 30  # of text; fingerprints of larger tables cover only some rows
_HASHED_ROWS = 4096


@dataclass(eq=False)
class MemoryRows:
    """Rows in this process, in groups of about a megabyte that can be read independently.

    ``slice(first, last)`` returns some of them as a pyarrow Table. ``names`` are the names of all
    columns, even if some are not read.
    """

    schema: Any
    rows: int
    bytes: int
    slice: Callable[[int, int], Any]
    names: Sequence[str]

    @functools.cached_property
    def _bounds(self) -> list[int]:
        """The first row of each group, and then the number of all rows."""
        count = min(max(self.bytes // _GROUP_BYTES, 1), _MOST_GROUPS, max(self.rows, 1))
        return [self.rows * number // count for number in range(count + 1)]

    def groups(self) -> list[tuple[int, int]]:
        """The rows and bytes of each group."""
        rows = np.diff(self._bounds)
        sizes = rows * self.bytes // max(self.rows, 1)
        return list(zip(rows.tolist(), sizes.tolist(), strict=True))

    def batches(self, begin: int, end: int, keys: list[str], _block_bytes: int) -> Iterator[Any]:
        """The record batches of groups [begin, end), with the columns ``keys``."""
        bounds = self._bounds[begin : end + 1]
        for first, last in pairwise(bounds):
            yield from self.slice(first, last).select(keys).to_batches()

    def fingerprint(self, keys: Sequence[str], columns: Sequence[str] = ()) -> str:
        """XXH3-128, in hex, of the types and texts of some columns, and of the values of others.

        For a table with more than 1 GiB of text it covers 4,096 rows, spread evenly.
        """
        digest = xxhash.xxh3_128(f"{self.rows} {self.bytes}".encode())
        bounds: Iterable[tuple[int, int]] = pairwise(self._bounds)
        if self.bytes > _HASHED_BYTES:
            chosen = np.linspace(0, self.rows - 1, _HASHED_ROWS, dtype=np.int64).tolist()
            bounds = ((row, row + 1) for row in chosen)
        content = ContentHash()  # independent of chunks
        for first, last in bounds:
            for batch in self.slice(first, last).to_batches():
                for key in keys:
                    texts = decoded(text_column(column_of(batch, key)))
                    content.add(f"{key} {type_at(key, self.schema)}", texts)
                for name in columns:
                    content.add(f"column {name}", of_table(batch, name))
        digest.update(content.digest())
        return digest.hexdigest()


def _text_bytes(column: Any) -> int:
    """The bytes of a column's texts, decoded; they do not depend on its chunks."""
    ends = (offsets_decoded(text_column(array))[[0, -1]] for array in column.chunks)
    return sum(int(last - first) for first, last in ends)


def table_source(
    table: Any,
    keys: Sequence[str],
    *,
    columns: Columns | None = (),
    names: Sequence[str] | None = None,
) -> Source:
    """A pyarrow Table as a source, with the values of those ``columns`` that it has; None for all.

    ``names`` are the names of all columns, if the table has only some. InputError if a column of
    ``keys`` is missing, or is not text.
    """
    name, all_names = "table", names or table.schema.names
    texts: Sequence[str]
    if isinstance(columns, WholeRecords):
        part, size = table, table.nbytes
        texts, values = (), table.schema.names
    else:
        texts = keys
        values, roots = _read_columns(name, table.schema, keys, columns)
        part = table.select(roots)
        size = 4 * len(keys) * part.num_rows
        size += sum(_text_bytes(column_of(table, key)) for key in keys)
    rows = MemoryRows(
        part.schema, part.num_rows, size, lambda a, b: part.slice(a, b - a), all_names
    )
    return _source(name, rows, rows.fingerprint(texts, values))


def dataset_source(dataset: Any, keys: Sequence[str], columns: Columns | None = ()) -> Source:
    """A ``datasets.Dataset`` as a source, recognized by its own fingerprint and its files.

    InputError if a column is missing, or is not text; UsageError if it has a transform
    (``with_transform``).
    """
    info = dataset.info
    if dataset.format["type"] == "custom":
        raise UsageError(
            "the dataset has a transform, which is applied when a row is read: give iter(dataset), "
            "or apply it with map"
        )
    about = [info.dataset_name or info.builder_name, dataset.split]
    name = ":".join(["datasets", "/".join(str(part) for part in about if part)]).rstrip(":")
    schema = dataset.features.arrow_schema
    if isinstance(columns, WholeRecords):
        part = dataset.with_format("arrow")
    else:
        _, roots = _read_columns(name, schema, keys, columns)
        part = dataset.select_columns(roots).with_format("arrow")
    stored = part.data
    size = stored.nbytes * len(part) // max(stored.num_rows, 1)  # it may have only some rows
    rows = MemoryRows(stored.schema, len(part), size, lambda a, b: part[a:b], schema.names)
    return _source(name, rows, _fingerprint(dataset))


def _fingerprint(dataset: Any) -> str:
    """The identity of a dataset: its own fingerprint, which covers operations, and its files.

    The fingerprint of ``datasets`` does not notice later changes of files.
    """
    digest = xxhash.xxh3_128(dataset._fingerprint.encode())
    for cached in dataset.cache_files:
        path = cached["filename"]
        try:
            status = os.stat(path)
        except OSError as error:
            raise InputError(f"{printable(path)}: {error.strerror}") from error
        file = Source(printable(path), path, "arrow", "", status.st_size, status.st_mtime_ns)
        digest.update(f"{file.fingerprint()} {file.mtime_ns}".encode())
    return digest.hexdigest()


def _source(name: str, rows: MemoryRows, fingerprint: str) -> Source:
    if not rows.rows:
        raise InputError(f"{name}: empty, so there is no document to encode")
    return Source(printable(name), "", "table", "", rows.bytes, 0, seen=fingerprint, memory=rows)
