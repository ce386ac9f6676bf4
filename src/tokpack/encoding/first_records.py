"""The first records of some inputs, which determine columns and types before any work."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.table import OWN
from tokpack.encoding.kept import ALL
from tokpack.errors import Remark, UsageError, option
from tokpack.sources import (
    DocumentBatch,
    DocumentReader,
    Limits,
    Part,
    WholeRecords,
    as_text,
    batch_with_rows,
    read,
    value_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Columns, Source

    Records = Sequence[Mapping[str, Any]]


FIRST_RECORDS = 1000  # the most records of an input
FIRST_INPUTS = 8  # the number of inputs, spread evenly over all
FIRST_BYTES = 1 << 20  # about the most bytes of each
_TABLES = ("parquet", "arrow", "table", "csv", "tsv")
_SHOWN_COLUMNS = 40  # columns in a message


@dataclass
class FirstInputs:
    """The first records of a run's inputs, read once, when they are first needed."""

    _options: EncodeOptions
    _sources: Sequence[Source]

    @functools.cached_property
    def inputs(self) -> list[FirstRecords]:
        """Some of the inputs, spread evenly: the first is among them."""
        count = min(len(self._sources), FIRST_INPUTS)
        numbers = [len(self._sources) * number // count for number in range(count)]
        return [FirstRecords(self._sources[number], self._options) for number in numbers]

    @property
    def records(self) -> list[Mapping[str, Any]]:
        """The records of all of them."""
        return [record for one in self.inputs for record in one.records]

    def check_columns(self, name: str, keys: Iterable[str]) -> None:
        """Raise UsageError if the option ``name`` has a key that is in none of the records."""
        for key in keys:
            names = [one for of_input in self.inputs for one in of_input.names]
            check_named(name, tuple(key.split(".")), self.records, names)


def check_named(
    option_name: str, path: tuple[str, ...], records: Records, names: Iterable[str]
) -> None:
    """Raise UsageError if no record has a value at ``path``; ``names`` are their columns.

    A column with only nulls might contain anything, so it counts.
    """
    name, above = ".".join(path), ".".join(path[:-1])
    names = dict.fromkeys(names)
    if name in names or not names:
        return
    inside: dict[str, None] = {}
    if len(path) > 1:
        outer = [value for record in records if (value := value_at(record, above)) is not None]
        if not outer and any(path[0] in record for record in records):
            return
        for value in outer:
            keys = value if isinstance(value, dict) else ()
            inside |= dict.fromkeys(f"{above}.{key}" for key in keys)
        if name in inside:
            return
    there = list(inside or names)
    shown = ", ".join(there[:_SHOWN_COLUMNS]) + (", ..." if len(there) > _SHOWN_COLUMNS else "")
    later = option_name == "keep"
    raise UsageError(
        f"{option(option_name)} names the column {name!r}, which is in none of the first records; "
        f"they have {shown}" + (f"; write {name}? if only later records have it" * later)
    )


class FirstRecords:
    """The first records of an input as Python mappings; for a table, its rows."""

    def __init__(self, source: Source, options: EncodeOptions) -> None:
        self._source, self._options = source, options
        self.name = source.name
        self._of_iterable: Any = None  # a list, or a table
        if source.format == "documents":
            self._of_iterable = source.memory.first(FIRST_RECORDS, FIRST_BYTES)
        is_list = isinstance(self._of_iterable, list)
        self.is_table = source.format in _TABLES or not (self._of_iterable is None or is_list)

    @functools.cached_property
    def records(self) -> list[Mapping[str, Any]]:
        """The records."""
        first, rows = self._of_iterable, WholeRecords({}, None, self._options.with_nulls)
        if self._source.format != "documents":
            batch = self._first(rows)
            first = None if batch is None else batch.first.whole
        if first is None:
            return []
        records: list[Any] = first if isinstance(first, list) else rows.of_rows(first)
        return records[:FIRST_RECORDS]

    @property
    def names(self) -> list[str]:
        """The keys of the records; for a table, the names of all its columns."""
        names = getattr(self._source.memory, "names", None)
        return list(names or dict.fromkeys(name for one in self.records for name in one))

    def batches(self, columns: Columns) -> Iterator[DocumentBatch]:
        """Some records as a run reads them: as rows, if from tables or with whole records."""
        if self._source.format in _TABLES:
            first = self._first(columns)
            yield from [] if first is None else [first]
        elif self.is_table:
            reader = DocumentReader(self.name, [self._of_iterable], as_tables=True)
            yield from _of_reader(reader, self._options, columns)
        elif self.records and isinstance(columns, WholeRecords):
            count = len(self.records)
            yield batch_with_rows(
                DocumentBatch({}, [], count, count), self.records, np.arange(count), columns
            )
        elif self.records:
            reader = DocumentReader(self.name, self.records)
            yield from _of_reader(reader, self._options, columns)

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


# The columns for ``keep="all"`` come from the first records of the inputs. They are determined
# before any work and written into the plan, so that they depend neither on the number of workers
# nor on where inputs are cut.

SMALL_BYTES = 256  # of JSON text for each value, on average over the first records

_log = logging.getLogger(__name__)


def with_small_columns(options: EncodeOptions, first: FirstInputs) -> EncodeOptions:
    """The options with ``keep="all"`` replaced by all small columns, in record order.

    A warning names the larger ones. InputError if an input cannot be read.
    """
    records, sizes = first.records, Counter[str]()
    for record in records:
        for name, value in record.items():
            sizes[name] += 0 if value is None else len(as_text(value))
    texts = {name for key in options.keys for name in (key, key.partition(".")[0])}
    named = [one for one in options.keep if one != ALL]
    chosen = {one.partition("=")[2] or one for one in named}
    means = {name: sizes[name] / len(records) for name in sizes if name not in texts | chosen}
    small = [name for name, mean in means.items() if name and mean <= SMALL_BYTES]
    large = [f"{name} ({mean:,.0f} bytes)" for name, mean in means.items() if mean > SMALL_BYTES]
    if large:
        _log.warning(
            Remark(
                f"{option('keep', ALL)} leaves out columns of more than {SMALL_BYTES} bytes per "
                f"record on average: {', '.join(large)}; to keep one, name it as well as all"
            )
        )
    return replace(options, keep=(*_requests(small, named), *named), trace=True)


def _requests(keys: Iterable[str], others: Sequence[str]) -> list[str]:
    """``keep`` for some keys; a key with a reserved name gets another column name."""
    taken = {one.partition("=")[0] for one in others}
    requests = []
    for key in keys:
        name = key.replace("=", "_")
        if name.lower().startswith(OWN):
            name = f"_{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        requests.append(key if name == key else f"{name}={key}")
    return requests
