"""Records as rows with columns, for code that looks at more than their texts.

Each JSON column has one type, determined by the first records of the inputs before any work. So it
does not depend on where a record is read or how the input is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ujson

from tokpack._core import JsonLines, split_lines
from tokpack.errors import InputError, UsageError
from tokpack.sources.base import RAW_BYTES_KEPT, WHOLE, BadRecord, DocumentBatch, Documents
from tokpack.sources.records import (
    JsonLinesParser,
    Parser,
    batch_of_texts,
    record_of,
    separated,
    value_at,
)
from tokpack.sources.values import (
    json_text,
    objects_of,
    of_objects,
    of_table,
    python_values,
    root_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from tokpack.sources.values import Values


Records = Sequence[Mapping[str, Any]]

_INT64 = range(-(1 << 63), 1 << 63)
_SHOWN = 60  # characters of a value in a message
_NO_TEXT = np.zeros(0, np.uint8)


def types_of(records: Iterable[Mapping[str, Any]], names: Sequence[str] | None) -> dict[str, str]:
    """The type of each column of JSON records; ``names`` None: of all keys, in order."""
    seen: dict[str, set[str]] = {name: set() for name in names or ()}
    for record in records:
        for name in record if names is None else names:
            value = value_at(record, name) if names is not None else record[name]
            seen.setdefault(name, set()).add(_type_of(value))
    return {name: widest_type(kinds - {"null"}) for name, kinds in seen.items()}


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if value in _INT64 else "string"  # a double would be another number
    if isinstance(value, float):
        return "double"
    return "string" if isinstance(value, str) else "nested"


def widest_type(kinds: set[str]) -> str:
    """The type of a column with values of these ``kinds``, which may include "nested"."""
    if kinds == {"int64", "double"}:
        return "double"
    return next(iter(kinds)) if len(kinds) == 1 and "nested" not in kinds else "string"


def json_columns(
    records: Records, types: Mapping[str, str]
) -> tuple[dict[str, Any], dict[int, str]]:
    """The columns of JSON records, and errors by index for records with a value of another type."""
    columns: dict[str, Any] = {}
    bad: dict[int, str] = {}
    for name, kind in types.items():
        values = of_objects([value_at(record, name) for record in records])
        columns[name], wrong = cast(values, kind, name)
        bad = {**wrong, **bad}
    return columns, bad


def cast(column: Values, kind: str, name: str) -> tuple[Values, dict[int, str]]:
    """A column of JSON values in a type, with null for values of another type; and their errors by
    index.
    """
    import pyarrow

    goal, kind_now = pyarrow.type_for_alias(kind), str(column.type)
    if kind_now == kind:
        return column, {}
    if kind_now == "null" or (kind_now, kind) in (("large_string", "string"), ("int64", "double")):
        return column.cast(goal, safe=False), {}
    values, bad = objects_of(column), {}
    for index, value in enumerate(values):
        try:
            values[index] = None if value is None else _converted(value, kind, name)
        except ValueError as error:
            values[index], bad[index] = None, str(error)
    return pyarrow.array(values, goal), bad


def _converted(value: Any, kind: str, name: str) -> Any:
    """A value in the type of its column. ValueError with the reason if it does not have this
    type.
    """
    if kind == "string":
        text = value if isinstance(value, str) else json_text(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            escape = f"\\u{ord(text[error.start]):04x}"
            raise ValueError(f"lone surrogate {escape} in '{name}'") from None
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "double" and is_number:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if (kind == "bool" and isinstance(value, bool)) or (
        kind == "int64" and isinstance(value, int) and is_number and value in _INT64
    ):
        return value
    shown = json_text(value)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    raise ValueError(f"'{name}' is {shown}, but in the first records it has the type {kind}")


TEXT = "text"  # the only column of an input without columns


@dataclass(frozen=True)
class WholeRecords:
    """A request for all columns, as rows, instead of some columns and documents.

    Each batch also has the columns ``chosen``, for choosing records, with their types for JSON;
    ``a.b`` is ``b`` inside ``a``. With ``types``, those of JSON keys, rows are Arrow's; without
    they are Python mappings, as ``json`` reads them. These keep null fields of structs in tables
    only in the columns ``with_nulls``; None for all columns.
    """

    chosen: Mapping[str, str]
    types: Mapping[str, str] | None = None
    with_nulls: frozenset[str] | None = None

    def of_table(self, table: Any, row: int) -> DocumentBatch:
        """A batch of rows of a table; the first one has the line ``row``."""
        count, schema = table.num_rows, table.schema
        lines = np.arange(row, row + count, dtype=np.int64)
        chosen = {one: of_table(table, one) for one in self.chosen if root_of(one, schema)}
        whole = table if self.types is not None else self.of_rows(table)
        rows = Documents(_NO_TEXT, np.zeros((count, 2), np.int64), lines, chosen, whole)
        return DocumentBatch(
            {WHOLE: rows}, [], count, count, text_bytes=table.nbytes, table_columns=schema.names
        )

    def of_rows(self, table: Any) -> list[dict[str, Any]]:
        """The rows of a table as mappings."""
        fields = [
            (one, self.with_nulls is None or one.name in self.with_nulls) for one in table.schema
        ]
        columns = [
            python_values(array, field, nulls=nulls)
            for array, (field, nulls) in zip(table.columns, fields, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else ((),) * table.num_rows
        return [dict(zip(table.schema.names, row, strict=True)) for row in rows]


Columns = Sequence[str] | WholeRecords  # names of columns that are wanted, or all as rows


def no_column(name: str, column: str, there: Iterable[str]) -> InputError:
    """The error for a table ``name`` that lacks a column."""
    there = list(there)
    lacks = "no column" if column not in there else f"{there.count(column)} columns"
    return InputError(f"{name}: {lacks} {column!r}; the columns are {', '.join(there)}")


def json_parser(keys: Sequence[str], columns: Columns) -> Parser:
    """The parser of JSON lines for texts, or for whole records."""
    if isinstance(columns, WholeRecords):
        return _RecordParser(columns)
    return JsonLinesParser(keys, columns)


class _RecordParser:
    """Parses JSON lines into whole records; texts are made later."""

    def __init__(self, whole: WholeRecords) -> None:
        self._whole = whole
        self._checks = JsonLines(None)  # finds out which records are well-formed

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        """The rows of whole lines, as other parsers return documents."""
        return separated(self._parse, block, first_line)

    def _parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        extracted = self._checks.extract(block)
        lines, spans = extracted.lines, split_lines(block).tolist()
        records, bad, good = [], [], []
        slow = set(extracted.slow[:, 0].tolist())
        for index, line in enumerate(lines.tolist()):
            begin, end = spans[line]
            raw = bytes(block[begin:end])
            try:
                # What the core accepts is well-formed; ujson reads such text exactly as json does.
                records.append(record_of(raw) if index in slow else ujson.loads(raw))
                good.append(line)
            except ValueError as error:
                text = raw[:RAW_BYTES_KEPT].rstrip(b"\n")
                bad.append(BadRecord(line + first_line, str(error), text))
        batch = DocumentBatch({}, bad, len(lines), extracted.line_count)
        return batch_with_rows(batch, records, np.array(good, np.int64) + first_line, self._whole)


class TextParser:
    """Each line of plain text is a document, even a blank one, or a row with a column ``text``."""

    def __init__(self, keys: Sequence[str], columns: Columns) -> None:
        keys = [TEXT] if isinstance(columns, WholeRecords) else keys
        if len(keys) != 1:
            raise UsageError(
                f"plain text has one document per line, not the keys {', '.join(keys)}"
            )
        self._key, self._columns = keys[0], columns

    def parse(self, block: memoryview, first_line: int) -> DocumentBatch:
        spans = split_lines(block)
        numbers = np.arange(first_line, first_line + len(spans), dtype=np.int64)
        lines = Documents(np.frombuffer(block, np.uint8), spans, numbers)
        return with_text_rows(batch_of_texts(self._key, lines), self._columns)


def with_text_rows(batch: DocumentBatch, columns: Columns) -> DocumentBatch:
    """The batch with its documents, which have only their text, as rows, if whole records are
    wanted.
    """
    if not isinstance(columns, WholeRecords):
        return batch
    documents = batch.first
    arrays = {**documents.columns, TEXT: text_array(documents)}  # a file also has its path
    records: Records = _flat(arrays, len(documents)).to_pylist()
    return batch_with_rows(batch, records, documents.lines, columns)


def batch_with_rows(
    batch: DocumentBatch, records: Records, lines: npt.NDArray[np.int64], whole: WholeRecords
) -> DocumentBatch:
    """The batch with rows instead of documents; records that cannot be rows become bad ones."""
    columns, wrong = json_columns(records, whole.chosen)
    rows: Any = list(records)
    if whole.types is not None:
        values, errors = json_columns(records, whole.types)
        rows, wrong = _flat(values, len(rows)), {**wrong, **errors}
    spans = np.zeros((len(lines), 2), np.int64)
    batch.documents = {WHOLE: Documents(_NO_TEXT, spans, lines, columns, rows)}
    if wrong:
        good = np.ones(len(lines), np.bool_)
        good[list(wrong)] = False
        batch.keep(good, wrong)
    return batch


def with_value_rows(batch: DocumentBatch, whole: WholeRecords) -> DocumentBatch:
    """The batch with its documents' values as rows, instead of documents."""
    documents = batch.first
    batch.documents = whole.of_table(_flat(documents.columns, len(documents)), 0).documents
    batch.first.lines = documents.lines
    return batch


def chosen_columns(
    name: str, batch: DocumentBatch, types: Mapping[str, str], names: Sequence[str]
) -> tuple[Any, dict[int, str]]:
    """The columns ``names`` of a batch's documents as a RecordBatch, and errors by index.

    ``types`` are those of JSON records. InputError, with the ``name`` of the source, if it has no
    such column.
    """
    import pyarrow

    documents = batch.documents
    first = batch.first
    columns: dict[str, Any] = {}
    bad: dict[int, str] = {}
    for column in names:
        values = first.columns.get(column)
        kind, is_table = types.get(column), batch.table_columns is not None
        if column in documents or (column == TEXT and values is None and not is_table):
            columns[column] = text_array(documents.get(column, first))
        elif values is None and (is_table or kind is None):
            raise no_column(name, column, batch.table_columns or [*documents, *first.columns])
        elif is_table:
            columns[column] = values
        else:
            values = pyarrow.nulls(len(first)) if values is None else values
            columns[column], wrong = cast(values, kind or "string", column)
            bad = {**wrong, **bad}
    return _flat(columns, len(first)), bad


def text_array(documents: Documents) -> Any:
    """The texts of documents as an Arrow array, without a copy if they follow each other in
    memory.
    """
    import pyarrow

    spans = documents.spans
    if len(spans) and (spans[1:, 0] == spans[:-1, 1]).all() and spans[-1, 1] < 1 << 31:
        offsets = np.append(spans[:, 0], spans[-1, 1]).astype(np.int32)
        return pyarrow.StringArray.from_buffers(
            len(spans), pyarrow.py_buffer(offsets), pyarrow.py_buffer(documents.data)
        )
    texts = [documents.text(index) for index in range(len(spans))]
    return pyarrow.array(texts, pyarrow.large_binary()).cast(pyarrow.large_string())


def nested(columns: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """A RecordBatch of ``paths``, where ``("a", "b")`` is the field ``b`` of the column ``a``.

    ``columns`` has the values of this one under the name ``a.b``.
    """
    import pyarrow

    outer: dict[str, Any] = {}
    for path in paths:
        inside = outer
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = columns.column(".".join(path))

    def array_of(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return pyarrow.StructArray.from_arrays(map(array_of, value.values()), names=list(value))

    return _flat({name: array_of(value) for name, value in outer.items()}, columns.num_rows)


def _flat(columns: Mapping[str, Any], count: int) -> Any:
    import pyarrow

    if not columns:  # a RecordBatch without any column would have no rows
        columns = {"": pyarrow.nulls(count)}
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
