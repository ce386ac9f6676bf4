"""Tables and datasets of this process, whose rows are read as those of a parquet file are.

Workers inherit them by fork, so nothing is copied: a table lies in memory once, and the Arrow files
of a ``datasets.Dataset`` stay mapped.
"""

from __future__ import annotations

import functools
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import Source, printable
from tokpack.sources.columns import check_columns, decoded, offsets_decoded, text_column
from tokpack.sources.rows import WholeRecords
from tokpack.sources.values import ContentHash, column_of, of_table, root_of, type_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokpack.sources.rows import Columns

_GROUP_BYTES = 1 << 20  # of text that is read at a time
_MOST_GROUPS = 1 << 16
_HASHED_BYTES = 1 << 30  # of text: of a larger table only some rows are looked at
_HASHED_ROWS = 4096


class MemoryRows:
    """Rows of this process, in groups of about a megabyte that can be read alone.

    ``slice(first, last)`` gives some of them as a pyarrow Table; ``names`` are those of all columns
    that are there, also of those that are not read.
    """

    def __init__(
        self,
        schema: Any,
        rows: int,
        size: int,
        slice_: Callable[[int, int], Any],
        names: Sequence[str],
    ) -> None:
        self.schema, self.names = schema, names
        self.rows = rows
        self.bytes = size
        self._slice = slice_

    @functools.cached_property
    def _bounds(self) -> list[int]:
        """The first row of each group, and the number of rows."""
        count = min(max(self.bytes // _GROUP_BYTES, 1), _MOST_GROUPS, max(self.rows, 1))
        return [self.rows * number // count for number in range(count + 1)]

    def groups(self) -> list[tuple[int, int]]:
        """Rows and bytes of each group."""
        rows = np.diff(self._bounds)
        sizes = rows * self.bytes // max(self.rows, 1)
        return list(zip(rows.tolist(), sizes.tolist(), strict=True))

    def batches(self, begin: int, end: int, keys: list[str], _block_bytes: int) -> Iterator[Any]:
        """The record batches of groups [begin, end), with the columns ``keys``."""
        bounds = self._bounds[begin : end + 1]
        for first, last in pairwise(bounds):
            yield from self._slice(first, last).select(keys).to_batches()

    def fingerprint(self, keys: Sequence[str], columns: Sequence[str] = ()) -> str:
        """XXH3-128, in hex, of the types and the texts of some columns, and of values of others.

        Of a table with more than 1 GiB of text, 4,096 rows that are spread evenly stand for all.
        """
        digest = xxhash.xxh3_128(f"{self.rows} {self.bytes}".encode())
        bounds: Iterable[tuple[int, int]] = pairwise(self._bounds)
        if self.bytes > _HASHED_BYTES:
            chosen = np.linspace(0, self.rows - 1, _HASHED_ROWS, dtype=np.int64).tolist()
            bounds = ((row, row + 1) for row in chosen)
        content = ContentHash()  # however it is chunked
        for first, last in bounds:
            for batch in self._slice(first, last).to_batches():
                for key in keys:
                    texts = decoded(text_column(column_of(batch, key)))
                    content.add(f"{key} {type_at(key, self.schema)}", texts)
                for name in columns:
                    content.add(f"column {name}", of_table(batch, name))
        digest.update(content.digest())
        return digest.hexdigest()


def _text_bytes(column: Any) -> int:
    """Bytes of the texts of a column, decoded: however it is chunked."""
    ends = (offsets_decoded(text_column(array))[[0, -1]] for array in column.chunks)
    return sum(int(last - first) for first, last in ends)


def table_source(
    table: Any,
    keys: Sequence[str],
    *,
    columns: Columns | None = (),
    names: Sequence[str] | None = None,
) -> Source:
    """A pyarrow Table as a source, also of the values of those ``columns`` that it has.

    None: of all. ``names`` are those of all columns, where the table has only some of them.
    InputError where it lacks a column of ``keys``, or has one of no text.
    """
    name, all_names = "table", names or table.schema.names
    if isinstance(columns, WholeRecords):
        rows = MemoryRows(
            *(table.schema, table.num_rows, table.nbytes),
            *(lambda a, b: table.slice(a, b - a), all_names),
        )
        return _source(name, rows, rows.fingerprint((), table.schema.names))
    check_columns(name, table.schema, keys)
    values = _values(keys, columns, table.schema)
    texts = [column_of(table, key) for key in keys]
    part = table.select(_with_roots(keys, values, table.schema))
    size = 4 * len(keys) * part.num_rows + sum(map(_text_bytes, texts))
    rows = MemoryRows(
        part.schema, part.num_rows, size, lambda a, b: part.slice(a, b - a), all_names
    )
    return _source(name, rows, rows.fingerprint(keys, values))


def _values(keys: Sequence[str], columns: Sequence[str] | None, schema: Any) -> list[str]:
    """Those of some columns that are there; None: all but the texts."""
    if columns is None:
        columns = [name for name in schema.names if name not in keys]
    return [one for one in columns if root_of(one, schema)]


def _with_roots(keys: Sequence[str], values: Sequence[str], schema: Any) -> list[str]:
    """The names of the columns that have texts and values."""
    return list(dict.fromkeys(root_of(one, schema) for one in (*keys, *values)))


def dataset_source(dataset: Any, keys: Sequence[str], columns: Columns | None = ()) -> Source:
    """A ``datasets.Dataset`` as a source, known again by its own fingerprint and its files.

    InputError where it lacks a column, or has one of no text; UsageError for one that has a
    transform (``with_transform``).
    """
    info = dataset.info
    if dataset.format["type"] == "custom":
        raise UsageError(
            "the dataset has a transform, which is done when a row is read: give iter(dataset), or "
            "apply it with map"
        )
    about = [info.dataset_name or info.builder_name, dataset.split]
    name = ":".join(["datasets", "/".join(str(part) for part in about if part)]).rstrip(":")
    schema = dataset.features.arrow_schema
    if isinstance(columns, WholeRecords):
        part = dataset.with_format("arrow")
    else:
        check_columns(name, schema, keys)
        values = _values(keys, columns, schema)
        part = dataset.select_columns(_with_roots(keys, values, schema)).with_format("arrow")
    stored = part.data
    size = stored.nbytes * len(part) // max(stored.num_rows, 1)  # it may be some of its rows
    rows = MemoryRows(stored.schema, len(part), size, lambda a, b: part[a:b], schema.names)
    return _source(name, rows, _fingerprint(dataset))


def _fingerprint(dataset: Any) -> str:
    """What a dataset is known by: what was done to its files, as itself says, and these.

    It says of files only what they were when they were written.
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
