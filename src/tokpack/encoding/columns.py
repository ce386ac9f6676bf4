"""What the columns of a run's records are, and whether ``where`` and ``map`` can do with them.

It is looked at before any work is begun, on the first records of some of the inputs.
"""

from __future__ import annotations

import multiprocessing
import sys
import traceback
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.encoding import where
from tokpack.encoding.choose import Chooser, check_by_rows
from tokpack.encoding.kept import ALL, parse_keep
from tokpack.encoding.map_function import identity, load
from tokpack.encoding.where import columns_of
from tokpack.errors import InputError, TokpackError, UsageError, WorkerError, option
from tokpack.sources import DocumentBatch, Part, read
from tokpack.sources.base import Limits
from tokpack.sources.iterables import DocumentReader
from tokpack.sources.json_types import types_of
from tokpack.sources.records import value_at
from tokpack.sources.rows import PythonRecords, SeenRecords, WholeRecords, with_rows_of
from tokpack.sources.values import json_text, plain_values, root_of, values_as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Source
    from tokpack.sources.rows import Columns

FIRST_RECORDS = 1000  # of an input that are looked at,
FIRST_INPUTS = 8  # of so many inputs, which are spread evenly
FIRST_BYTES = 1 << 20  # and not much more than these of each
_TABLES = ("parquet", "arrow", "table", "csv", "tsv")
_SHOWN = 40  # columns in a message


def columns_read(options: EncodeOptions, types: Mapping[str, Any] | None) -> Columns:
    """The columns that are read besides texts, or instead of them; ``types`` as a plan has them."""
    kept = list(options.kept.values())
    if options.chat:
        known = {} if types is None else types["chosen"]
        return PythonRecords(
            {}, {one: known.get(one, "string") for one in columns_of(options.where)}
        )
    if types is None:
        return kept
    if options.map is None:
        return list(dict.fromkeys([*columns_of(options.where), *kept]))
    chosen = {name: types["chosen"].get(name, "string") for name in columns_of(options.where)}
    return WholeRecords(types["whole"], chosen)


def columns_in_process(options: Mapping[str, Any]) -> Columns | None:
    """The same for an object of this process; ``options`` are as ``encode`` takes them.

    None: all columns, of which the first records are to say which are wanted.
    """
    names = columns_of(options.get("where"))
    if options.get("chat"):
        return PythonRecords({}, dict.fromkeys(names, ""))
    if options.get("map") is not None:
        return WholeRecords({}, dict.fromkeys(names, ""))
    keep = options.get("keep") or ()
    names_of_kept = [keep] if isinstance(keep, str) else list(keep)
    if ALL in names_of_kept:
        return None
    kept = parse_keep(names_of_kept)
    return list(dict.fromkeys([*names, *kept.values()]))


def settle(options: EncodeOptions, sources: Sequence[Source]) -> dict[str, Any] | None:
    """The types of the columns of JSON records; None where ``where`` and ``map`` are not asked for.

    UsageError, or InputError, where these cannot be done with the first records.
    """
    if not options.where and options.map is None:
        return None
    expression = where.parse(options.where) if options.where else None
    if options.map is not None:
        load(options.map)
    first = [FirstRecords(source, options) for source in some_of(sources)]
    records = [record for one in first for record in one.records]
    paths = expression.columns if expression else ()
    types: dict[str, str] = {}
    if records:
        types = types_of(records, [".".join(path) for path in paths])
        whole = types_of(records, None)
        for path in paths:
            _check_known(path, records, whole)
        if expression:
            types |= {".".join(path): kind for path, kind in expression.casts.items()}
    settled: dict[str, Any] = {"chosen": types}
    if options.map is not None:
        settled["whole"] = types_of(records, None)
    columns = columns_read(options, settled)
    batches = [(one.name, batch) for one in first for batch in one.batches(columns)]
    _apart(_try, options, types, batches)
    return settled


def first_conversations(
    options: EncodeOptions, sources: Sequence[Source]
) -> list[Mapping[str, Any]]:
    """Some of the first records of some inputs, as Python mappings."""
    records: list[Mapping[str, Any]] = []
    for source in some_of(sources):
        first = FirstRecords(source, options)
        seen = first.records or [
            record
            for batch in first.batches(PythonRecords({}, {}))
            if batch.rows is not None
            for record in batch.rows.whole[:FIRST_RECORDS]
        ]
        records += seen
    return records


def deciding(options: EncodeOptions, columns: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a plan has of ``where`` and ``map``, which decide the bytes."""
    if columns is None:
        return {}
    made: dict[str, Any] = {"columns": dict(columns)}
    if options.where:
        made |= {"where": options.where, "duckdb": where.version()}
    if options.map is not None:
        made |= identity(options.map)
    return made


class FirstRecords:
    """The first records of an input: of a table its rows, of any other as JSON has them."""

    def __init__(self, source: Source, options: EncodeOptions) -> None:
        self._source, self._options = source, options
        self.name = source.name
        self.records: list[Any] = []
        self._table: Any = None  # of an iterable of tables
        if source.format == "documents":
            first = source.memory.first(FIRST_RECORDS, FIRST_BYTES)
            if isinstance(first, list):
                self.records = first
            else:
                self._table = first
        elif source.format not in _TABLES:
            seen = SeenRecords({}, {})
            if self._first(seen) is not None:
                self.records = seen.records[:FIRST_RECORDS]

    def batches(self, columns: Columns) -> Iterator[DocumentBatch]:
        """Some records as they are read: of tables, or with whole records, as rows."""
        if self._source.format in _TABLES:
            first = self._first(columns)
            yield from [] if first is None else [first]
        elif self._table is not None:
            reader = DocumentReader(self.name, [self._table], as_tables=True)
            yield from _of_reader(reader, self._options, columns)
        elif self.records and isinstance(columns, WholeRecords):
            count = len(self.records)
            yield with_rows_of(
                DocumentBatch({}, [], count, count), self.records, np.arange(count), columns
            )
        elif self.records:
            reader = DocumentReader(self.name, self.records)
            yield from _of_reader(reader, self._options, columns)

    def sizes(self) -> tuple[int, dict[str, int]]:
        """How many first records there are; bytes of the JSON texts of their values, by key."""
        sizes: dict[str, int] = {}
        for record in self.records:
            for name, value in record.items():
                size = 0 if value is None else len(json_text(value).encode("utf-8", "replace"))
                sizes[name] = sizes.get(name, 0) + size
        if self.records:
            return len(self.records), sizes
        count, columns = self._columns()
        return count, {name: len(values_as_bytes(values)) for name, values in columns.items()}

    def _columns(self) -> tuple[int, dict[str, Any]]:
        """The values of the first rows of a table, by column."""
        if self._table is not None:
            schema, is_table = self._table.schema, hasattr(self._table, "to_batches")
            batches = self._table.combine_chunks().to_batches() if is_table else [self._table]
            names = [name for name in schema.names if root_of(name, schema)]
            columns = {name: plain_values(one, name) for one in batches for name in names}
            return self._table.num_rows, columns
        if self._source.format not in _TABLES:
            return 0, {}
        seen = self._first(())
        batch = self._first(list(seen.table_columns or ())) if seen is not None else None
        if batch is None:
            return 0, {}
        documents = next(iter(batch.documents.values()))
        first = documents.select(np.arange(len(documents)) < FIRST_RECORDS)
        return len(first), first.columns

    def _first(self, columns: Columns) -> DocumentBatch | None:
        reading = read(
            self._source,
            Part(0, "whole", 0, 0, 0),
            self._options.keys,
            columns=columns,
            block_bytes=FIRST_BYTES,
            max_document_bytes=self._options.max_document_bytes,
        )
        with closing(reading) as batches:
            return next(batches, None)


def _of_reader(
    reader: DocumentReader, options: EncodeOptions, columns: Columns
) -> Iterator[DocumentBatch]:
    limits = Limits(FIRST_BYTES, options.max_document_bytes)
    for segment in reader.segments(options.keys, FIRST_BYTES, limits, None, columns):
        yield from segment.batches if segment is not None else ()


def some_of(sources: Sequence[Source]) -> list[Source]:
    """Some of the inputs, spread evenly: the first is among them."""
    count = min(len(sources), FIRST_INPUTS)
    return [sources[len(sources) * number // count] for number in range(count)]


def _check_known(
    path: tuple[str, ...], records: Sequence[Mapping[str, Any]], whole: Mapping[str, str]
) -> None:
    """UsageError where none of the records has a column."""
    name = ".".join(path)
    if name in whole:
        return
    inside: dict[str, None] = {}
    above: Any = None
    for record in records:
        above = value_at(record, ".".join(path[:-1])) if len(path) > 1 else record
        if isinstance(above, dict):
            if path[-1] in above:
                return
            inside |= dict.fromkeys(".".join((*path[:-1], key)) for key in above)
    there = inside or whole
    shown = ", ".join(list(there)[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    raise UsageError(
        f"{option('where')} names the column {name!r}, which none of the first records has; they "
        f"have {shown}"
    )


def _try(
    options: EncodeOptions, types: Mapping[str, str], batches: Sequence[tuple[str, DocumentBatch]]
) -> None:
    """Do with the first records of inputs what is asked for. UsageError, InputError."""
    chooser = Chooser(options, types)
    function = load(options.map) if options.map is not None else None
    for name, batch in batches:
        chooser.choose(batch, name)
        if function is None or batch.rows is None or not len(batch.rows.lines):
            continue
        try:
            check_by_rows(function, batch.rows.whole, options.keys)
        except InputError as error:
            raise InputError(f"{error.args[0]} (among the first records of {name})") from error


def _apart(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process of its own, and raise what it raises.

    Workers are forked later: what the function loads may start threads, which no fork has.
    """
    if sys.platform != "linux":
        function(*arguments)
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def tell() -> None:
        try:
            function(*arguments)
            there.send(None)
        except TokpackError as error:
            there.send(error)
        except MemoryError as error:
            there.send(WorkerError(f"not enough memory for the first records: {error}"))
        except Exception:
            there.send(WorkerError(f"the first records cannot be tried\n{traceback.format_exc()}"))

    with warnings.catch_warnings():  # a fork warns of the idle threads of libraries
        warnings.simplefilter("ignore", DeprecationWarning)
        process = context.Process(target=tell, daemon=True)
        process.start()
    there.close()
    try:
        error = here.recv()
    except EOFError:
        process.join()
        raise WorkerError(
            f"the process that tried {option('where')} and {option('map')} with the first records "
            f"was ended by something else (exit code {process.exitcode})"
        ) from None
    process.join()
    if error is not None:
        raise error
