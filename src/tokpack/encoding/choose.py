"""What becomes of the records of a batch: ``where`` chooses some of them, ``map`` changes these."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.display import brief
from tokpack.encoding.map_function import ROW, load, name_of, place_of, takes_dict
from tokpack.encoding.where import Where
from tokpack.errors import InputError, option
from tokpack.sources import BadRecord
from tokpack.sources.columns import (
    batch_of_columns,
    check_columns,
    decoded,
    text_column,
)
from tokpack.sources.records import joined
from tokpack.sources.rows import chosen_columns, take
from tokpack.sources.sql import columns_of
from tokpack.sources.values import column_of, is_table, of_table, root_of, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import DocumentBatch
    from tokpack.sources.values import Values

    Place = Callable[[npt.NDArray[np.int64]], str]  # says which records some lines are

_LEAST_ROWS = 3  # of a batch that can be cut
_HINT = (
    "; values of a RecordBatch are Arrow's: batch['text'].to_pylist() has those of Python, and a "
    "function whose parameter is annotated, def clean(batch: dict), gets lists of these"
)
_OUT = "a RecordBatch or Table of pyarrow, a DataFrame, or a dict of columns"


class Chooser:
    """Does ``where`` and then ``map`` with batches that have rows."""

    def __init__(self, options: EncodeOptions, types: Mapping[str, str]) -> None:
        self._names = columns_of(options.where)
        self._types = types
        self._keys = options.keys
        self._kept = list(options.kept.values())
        self._most = options.max_document_bytes
        self._where = Where(options.where) if options.where else None
        self._map = load(options.map) if options.map else None

    def __call__(
        self, batches: Iterable[DocumentBatch], name: str, place: Place
    ) -> Iterator[DocumentBatch]:
        """The batches of the source ``name`` with the documents that are to be encoded.

        InputError where the function fails, or gives what cannot be encoded.
        """
        for batch in batches:
            self.choose(batch, name)
            if self._map is not None:
                self._apply(batch, self._map, place)
            yield batch

    def choose(self, batch: DocumentBatch, name: str) -> None:
        """Leave those records out of a batch that ``where`` does not keep."""
        if self._where is None:
            return
        rows, errors = batch.rows, dict[int, str]()
        if rows is not None:
            columns, lines = rows.columns, rows.lines
        else:
            documents = batch.documents
            lines = next(iter(documents.values())).lines
            if len(lines):
                columns, errors = chosen_columns(name, batch, self._types, self._names)
        if not len(lines):
            return
        kept, failed = self._where.kept(columns)
        batch.nans = self._where.nans(columns)
        errors = {**failed, **errors}
        kept[list(errors)] = False
        batch.bad += [BadRecord(int(lines[i]), errors[i], b"") for i in errors]
        batch.bad.sort(key=lambda record: record.line)
        batch.left_out = len(kept) - int(np.count_nonzero(kept)) - len(errors)
        if not kept.all():
            batch.documents = {key: one.select(kept) for key, one in batch.documents.items()}
            batch.rows = None if rows is None else take(rows, kept)

    def _apply(self, batch: DocumentBatch, function: Callable[..., Any], place: Place) -> None:
        """Make the documents of a batch of what the function makes of its rows."""
        rows = batch.rows
        count = 0 if rows is None else len(rows.lines)
        if rows is None or not count:
            empty = joined([], np.zeros(0, np.int64))
            batch.documents = dict.fromkeys(self._keys, empty)
            return
        try:
            results, origin = mapped(function, rows.whole)
            texts = texts_of(results, self._keys)
        except InputError as error:
            raise InputError(f"{error.args[0]} ({place(rows.lines)})") from error.__cause__
        copies = np.bincount(origin, minlength=count)
        batch.mapped_out = int(np.count_nonzero(copies == 0))
        batch.mapped_in = len(origin) - count + batch.mapped_out
        lines = rows.lines[origin]
        encodable = batch_of_columns(texts, 0, self._most, values_of(results, self._kept))
        for documents in encodable.documents.values():
            documents.lines = lines[documents.lines]
        for record in encodable.bad:
            record.line = int(lines[record.line])
        batch.documents = encodable.documents
        batch.bad = sorted([*batch.bad, *encodable.bad], key=lambda record: record.line)


def mapped(function: Callable[..., Any], columns: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """What a function makes of a RecordBatch, a Table, and the row that each of its rows is of.

    It gets the column ROW besides, and where it asks for a dict one of lists. InputError where it
    fails, or where nobody can say which row is of which.
    """
    import pyarrow

    count = columns.num_rows
    numbers = pyarrow.array(np.arange(count, dtype=np.int32))
    batch = pyarrow.RecordBatch.from_arrays(
        [*columns.columns, numbers], names=[*columns.schema.names, ROW]
    )
    try:
        answer = function(batch.to_pydict() if takes_dict(function) else batch)
    except Exception as error:
        hint = _HINT if "pyarrow." in str(error) and not takes_dict(function) else ""
        raise InputError(f"{option('map')} failed: {place_of(error, function)}{hint}") from error
    name = name_of(function)
    table = _as_table(answer, name)
    if ROW not in table.schema.names:
        if table.num_rows != count:
            raise InputError(
                f"{option('map')}: {name} gave {table.num_rows} rows for {count}, without the "
                f"column {ROW!r}, which says of each which row it is of: keep that column, as "
                "batch.filter and batch.take do"
            )
        return table, np.arange(count)
    origin = np.asarray(table.column(ROW).to_numpy())
    table = table.drop_columns([ROW])
    is_number = np.issubdtype(origin.dtype, np.integer)
    if len(origin) and not (
        is_number and origin.min() >= 0 and origin.max() < count and (np.diff(origin) >= 0).all()
    ):
        raise InputError(
            f"{option('map')}: {name} gave a column {ROW!r} that is not the one of the batch, in "
            "its order: numbers of rows, ascending, where several may be the same"
        )
    return table, origin.astype(np.int64)


def _as_table(answer: Any, name: str) -> Any:
    import pyarrow

    if not (isinstance(answer, dict) or is_table(answer)):
        raise InputError(f"{option('map')}: {name} gave {brief(answer)}; it is to give {_OUT}")
    try:
        return table_of(answer)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"{option('map')}: what {name} gave is no table: {' '.join(str(error).split())}"
        ) from error


def texts_of(table: Any, keys: Sequence[str]) -> dict[str, Any]:
    """The columns of texts of a table, each in one piece. InputError where one is missing."""
    check_columns(f"{option('map')} gave a table", table.schema, keys)
    return {key: decoded(text_column(column_of(table, key).combine_chunks())) for key in keys}


def values_of(table: Any, names: Sequence[str]) -> dict[str, Values]:
    """The values of those columns that a table has."""
    batches = table.combine_chunks().to_batches()
    there = [name for name in names if root_of(name, table.schema)]
    return {name: of_table(batches[0], name) for name in there if batches}


def check_by_rows(function: Callable[..., Any], columns: Any, keys: Sequence[str]) -> list[str]:
    """The columns that a function makes of a batch. InputError where its pieces become another.

    Where batches begin and end depends on the number of workers, and the result must not.
    """
    whole, origin = mapped(function, columns)
    texts = texts_of(whole, keys)
    count = columns.num_rows
    cuts = [0, 1, count // 2, count]
    names: list[str] = whole.schema.names
    if count < _LEAST_ROWS:
        return names
    parts = [(a, *mapped(function, columns.slice(a, b - a))) for a, b in pairwise(cuts)]
    origins = np.concatenate([begin + rows for begin, _, rows in parts])
    name = name_of(function)
    own_texts = [texts_of(part, keys) for _, part, _ in parts]
    pieces = {key: [one for texts in own_texts for one in texts[key].to_pylist()] for key in keys}
    same = np.array_equal(origin, origins) and all(
        texts[key].to_pylist() == pieces[key] for key in keys
    )
    if not same:
        shown = _first_difference(texts, pieces, keys)
        raise InputError(
            f"{option('map')}: {name} makes something else of {count} records than of the same in "
            f"three batches{shown}: what it gives for a record has to depend on that record alone, "
            "since batches are others with another number of workers"
        )
    return names


def _first_difference(
    texts: dict[str, Any], pieces: dict[str, list[Any]], keys: Sequence[str]
) -> str:
    for key in keys:
        for number, pair in enumerate(zip(texts[key].to_pylist(), pieces[key], strict=False)):
            if pair[0] != pair[1]:
                return f", first in {key!r} of row {number}: {brief(pair[0])} and {brief(pair[1])}"
    return ""
