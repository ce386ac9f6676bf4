"""Writes the tables of ``indexed.table``: rows as they come, in row groups of a fixed size.

The bytes of a table follow from its rows alone, however they were cut on their way here (and from
pyarrow's version, which its footer names).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tokpack.indexed.table import DROPPED_COLUMNS, ROW_GROUP, import_parquet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_HASHES = ("text_xxh3", "tokens_xxh3")
_COUNTS = ("line", "bytes", "tokens")  # numbers near their neighbours'
# Of a column with more bytes of different values than this in a row group no dictionary is made.
_DICTIONARY_BYTES = 1 << 16


def table_schema(kept: Mapping[str, str]) -> Any:
    """The Arrow schema of a table of documents; ``kept`` are its other columns, with their types.

    A type is bool, int64, double or string.
    """
    arrow = import_parquet()
    name = arrow.dictionary(arrow.int32(), arrow.string())
    digest = arrow.binary(16)
    number = arrow.int64()
    fields = {
        "source": name,
        "line": number,
        "bytes": number,
        "tokens": number,
        "text_xxh3": digest,
        "tokens_xxh3": digest,
    }
    return arrow.schema([*fields.items(), *((n, arrow_type(kind)) for n, kind in kept.items())])


def arrow_type(kind: str) -> Any:
    """The Arrow type of a kept column: bool, int64, double or string."""
    return import_parquet().type_for_alias(kind)


def dropped_schema() -> Any:
    """The Arrow schema of a table of records that were left out."""
    arrow = import_parquet()
    name = arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.schema(list(zip(DROPPED_COLUMNS, (name, arrow.int64(), name), strict=True)))


def table_chunks(
    schema: Any, tables: Iterable[Any], metadata: Mapping[bytes, bytes]
) -> Iterator[bytes]:
    """The bytes of a table, for ``replace_file``; of rows in Arrow tables of any size, in order.

    Columns that are dictionaries in the schema may come as strings.
    """
    arrow = import_parquet()
    schema = schema.with_metadata(dict(metadata))
    sink = _Sink()
    texts = [field.name for field in schema if str(field.type) not in _PLAIN_TYPES]
    texts = [name for name in texts if name not in _HASHES]
    writer = arrow.parquet.ParquetWriter(
        sink,
        schema,
        compression={name: "none" if name in _HASHES else "zstd" for name in schema.names},
        use_dictionary=texts,
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in _COUNTS if name in schema.names},
    )
    for group in _groups(tables):
        columns = [_encoded(group[field.name], field.type) for field in schema]
        writer.write_table(arrow.table(columns, schema=schema), row_group_size=ROW_GROUP)
        yield from sink.take()
    writer.close()
    yield from sink.take()


_PLAIN_TYPES = ("bool", "int64", "double")


def _groups(tables: Iterable[Any]) -> Iterator[Any]:
    """The rows in tables of ROW_GROUP rows; the last has fewer."""
    arrow = import_parquet()
    waiting: list[Any] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= ROW_GROUP:
            joined = arrow.concat_tables(waiting)
            yield joined.slice(0, ROW_GROUP)
            rows -= ROW_GROUP
            waiting = [joined.slice(ROW_GROUP)] if rows else []
    if rows:
        yield arrow.concat_tables(waiting)


def _encoded(column: Any, kind: Any) -> Any:
    """A column in one chunk; one of a dictionary with its values in the order of the rows."""
    arrow = import_parquet()
    if not arrow.types.is_dictionary(kind):
        return column.combine_chunks()
    if arrow.types.is_dictionary(column.type):  # a chunk has one value: so the order is right
        return column.unify_dictionaries().combine_chunks()
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, arrow.ChunkedArray) else encoded


class _Sink(io.RawIOBase):
    """A file that gives away what is written to it."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._bytes

    def take(self) -> list[bytes]:
        """What was written since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks
