"""The tables of documents of datasets that are made of others: rows by their numbers."""

from __future__ import annotations

import json
import logging
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import InputError
from tokpack.indexed.digests import FileDigest, HashingReader
from tokpack.indexed.document_table import DocumentTable
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.table import (
    COLUMNS,
    ROW_GROUP,
    TableReader,
    dropped_path,
    has_table,
    import_parquet,
    table_metadata,
    table_path,
)
from tokpack.indexed.table_writer import dropped_schema, table_chunks, table_schema
from tokpack.sources.json_types import widest_type
from tokpack.stores import exists, near

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.indexed.new_files import NewFiles

_log = logging.getLogger(__name__)


class Tables:
    """The tables of several datasets, one after the other, as one; of a view, of what it lists.

    ``kept`` are the kept columns with their types, by the rule of ``encode``: one that a dataset
    lacks is null there.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        """InputError where a table is missing, FormatError where one is of another dataset."""
        self._parts = [DocumentTable(prefix) for prefix in prefixes]
        self._ends = [0, *accumulate(map(len, self._parts))]
        self.kept = _kept(reader for part in self._parts for reader in part)
        self._dropped = [path for part in self._parts for path in _dropped_paths(part)]

    def __len__(self) -> int:
        return self._ends[-1]

    def write(
        self, prefix: str, new: NewFiles, binary: FileDigest, rows: tuple[int, int]
    ) -> FileDigest:
        """Write the table of the dataset ``prefix`` of rows [begin, end)."""
        schema = table_schema(self.kept)
        chunks = table_chunks(schema, self._tables(*rows, schema), table_metadata(binary))
        return _write(table_path(prefix), chunks, new)

    def write_dropped(
        self, prefix: str, new: NewFiles, binary: FileDigest, rows: int
    ) -> FileDigest | None:
        """Write the table of all records that were left out; None where these are not ``rows``."""
        readers = [TableReader(near(path), path) for path in self._dropped if exists(path)]
        if not rows or sum(map(len, readers)) != rows:
            return None
        schema = dropped_schema()
        tables = (_fitted(table, schema) for one in readers for table in _in_order(one))
        return _write(
            dropped_path(prefix), table_chunks(schema, tables, table_metadata(binary)), new
        )

    def _tables(self, begin: int, end: int, schema: Any) -> Iterator[Any]:
        for part, first, last in zip(self._parts, self._ends, self._ends[1:], strict=False):
            stop = min(end, last)
            for at in range(max(begin, first), stop, ROW_GROUP):
                documents = np.arange(at - first, min(at + ROW_GROUP, stop) - first)
                yield part.take(documents, schema.names, partial(_fitted, schema=schema))


def tables_of(prefixes: Sequence[str]) -> Tables | None:
    """The tables of all of some datasets, None where one has none; said where others have."""
    without = [prefix for prefix in prefixes if not has_table(prefix)]
    if not without:
        try:
            return Tables(prefixes)
        except InputError as error:  # a dataset is whole without its table
            _log.warning("%s; what is made has no table of its documents", error)
    elif len(without) < len(prefixes):
        _log.warning(
            "%s has no table of its documents, so what is made has none", ", ".join(without[:3])
        )
    return None


def all_tables(
    tables: Tables | None, prefix: str, new: NewFiles, binary: FileDigest, facts: Mapping[str, Any]
) -> dict[str, FileDigest]:
    """Write both tables of a dataset with all rows; what its manifest has of them besides facts."""
    if tables is None:
        return {}
    empty = facts["empty"] if facts["options"].get("empty") == "document" else 0
    if len(tables) != facts["documents"] + empty:  # some kept documents without a token, others not
        _log.warning("%s: has no table, as its inputs count empty documents otherwise", prefix)
        return {}
    digests = {"table": tables.write(prefix, new, binary, (0, len(tables)))}
    left_out = facts["empty"] + facts["rejected"] - empty
    if dropped := tables.write_dropped(prefix, new, binary, left_out):
        digests["dropped"] = dropped
    return digests


def _dropped_paths(table: DocumentTable) -> list[str]:
    """The tables of left out records of a dataset's shards; those of a view's are not its own."""
    prefixes = table.prefixes if table.numbers is None else []
    manifests = ((prefix, Manifest.load(prefix)) for prefix in prefixes)
    return [dropped_path(prefix) for prefix, manifest in manifests if manifest.dropped]


def _in_order(reader: TableReader) -> Iterator[Any]:
    """All rows of a table, some at a time."""
    for begin in range(0, len(reader), ROW_GROUP):
        numbers = np.arange(begin, min(begin + ROW_GROUP, len(reader)))
        yield reader.take(numbers, tuple(reader.schema.names))


def _kept(readers: Iterable[TableReader]) -> dict[str, str]:
    """The kept columns of several tables, in the order in which they come, with their types."""
    types: dict[str, set[str]] = {}
    for reader in readers:
        for field in reader.schema:
            if field.name not in COLUMNS:
                kinds = types.setdefault(field.name, set())
                kinds |= set() if reader.is_null(field.name) else {str(field.type)}
    return {name: widest_type(kinds) for name, kinds in types.items()}


def _fitted(table: Any, schema: Any) -> Any:
    """A table with the columns of a schema; names of inputs as strings."""
    arrow = import_parquet()
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(_turned(table[field.name], field.type))
        else:
            columns.append(arrow.nulls(table.num_rows, field.type))
    return arrow.table(columns, names=schema.names)


def _turned(column: Any, goal: Any) -> Any:
    arrow = import_parquet()
    if arrow.types.is_dictionary(goal):
        return column.cast(arrow.string())
    if column.type == goal:
        return column
    if column.null_count == len(column):
        return arrow.nulls(len(column), goal)
    if str(goal) == "double":
        return column.cast(goal, safe=False)
    # Numbers beside strings: their JSON text.
    texts = [None if value is None else json.dumps(value) for value in column.to_pylist()]
    return arrow.array(texts, goal)


def _write(path: str, chunks: Iterable[bytes], new: NewFiles) -> FileDigest:
    digested = HashingReader(chunks)
    new.write(path, digested)
    return digested.digest
