"""``where`` chooses some of the records of a batch, and ``map`` changes those."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from dataclasses import dataclass
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.display import brief, first_line
from tokpack.errors import InputError, UsageError, option
from tokpack.sources import (
    batch_of_columns,
    check_columns,
    chosen_columns,
    column_of,
    decoded,
    documents_of,
    is_table,
    nested,
    of_table,
    root_of,
    table_of,
    text_column,
)
from tokpack.sources.sql import check_boolean, columns_of, connect_closed, describing, listed, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import DocumentBatch, Values

    Place = Callable[[npt.NDArray[np.int64]], str]  # the records on some lines, in words


# ``where``: keep the records for which an SQL expression, evaluated by duckdb, is true.


@dataclass
class _Records:
    """The table that duckdb queries; a prepared query reads its current rows each time."""

    rows: Any = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The current rows, as an Arrow stream."""
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self.rows.schema, [self.rows])
        return reader.__arrow_c_stream__(requested_schema)


class Where:
    """Evaluates an expression on records."""

    def __init__(self, text: str) -> None:
        self._text = text
        expression = parse(text)
        self._paths, self._counts_nan = expression.columns, not expression.asks_nan
        self._connection: Any = None
        self._records = _Records()
        self._schema: Any = None

    def kept(self, columns: Any) -> tuple[npt.NDArray[np.bool_], dict[int, str]]:
        """Which rows of a RecordBatch are kept, bool [n], and errors by row.

        ``columns`` have the names from ``columns_of``. NULL counts as false. UsageError if the
        expression does not fit the columns.
        """
        columns = nested(columns, self._paths)
        if self._schema is None or not self._schema.equals(columns.schema):
            self._prepare(columns)
        return self._evaluated(columns)

    def nans(self, columns: Any) -> int:
        """How many rows have NaN in a column, unless the expression tests for it."""
        from pyarrow import types

        if not self._counts_nan:
            return 0
        has_nan = np.zeros(columns.num_rows, np.bool_)
        for column in columns.columns:
            if types.is_floating(column.type):
                has_nan |= column.is_nan().fill_null(False).to_numpy(zero_copy_only=False)
        return int(np.count_nonzero(has_nan))

    def _prepare(self, columns: Any) -> None:
        import duckdb

        connection, shown = connect_closed(), f"{option('where')} {self._text!r}"
        self._records.rows = columns.slice(0, 0)
        connection.register("records", self._records)
        try:
            _, kind, *_ = connection.execute(describing(self._text, "records")).fetchone()
            connection.execute(f"PREPARE choose AS SELECT ({self._text}\n) AS kept FROM records")
            connection.execute("EXECUTE choose").fetchall()
        except duckdb.Error as error:
            raise UsageError(
                f"{shown}: {first_line(error)}; the columns are "
                f"{listed({field.name: field.type for field in columns.schema})}"
            ) from None
        check_boolean(kind, shown)
        self._connection, self._schema = connection, columns.schema

    def _evaluated(self, columns: Any) -> tuple[npt.NDArray[np.bool_], dict[int, str]]:
        import duckdb

        self._records.rows = columns
        try:
            answer = self._connection.execute("EXECUTE choose").fetchnumpy()["kept"]
        except duckdb.Error as error:
            middle = columns.num_rows // 2
            if not middle:
                return np.zeros(1, np.bool_), {0: f"where: {first_line(error)}"}
            # duckdb fails for the whole batch without naming the row. Halving the batch finds each
            # bad row in about log2(n) queries.
            kept, errors = self._evaluated(columns.slice(0, middle))
            others, more = self._evaluated(columns.slice(middle))
            return np.append(kept, others), errors | {middle + i: more[i] for i in more}
        return np.ma.filled(answer, fill_value=False).astype(np.bool_), {}


# ``map``: a function of the user that is called with the records of a batch.

ROW = "__row__"  # the column with the number of the record in its batch

_FORMS = "module:function, path/to/file.py:function"
_MAKE = "make it a function of a module, and name it: map='module:function'"
_DICT = re.compile(r"(<class ')?(typing\.|collections\.abc\.)?(dict|mapping)", re.IGNORECASE)


def load(named: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function ``named``, or of that name. UsageError if there is none."""
    if callable(named):
        return named
    module_name, _, function_name = named.rpartition(":")
    if not module_name or not function_name.isidentifier():
        raise UsageError(
            f"{option('map')} is {named!r}; it can be {_FORMS}, or in Python a callable"
        )
    module = _module(module_name, named)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name, one in vars(module).items() if isinstance(one, FunctionType)]
        there = ", ".join(name for name in names if not name.startswith("_")) or "none"
        raise UsageError(
            f"{option('map')} {named!r}: {_file_of(module) or module_name} has no function "
            f"{function_name!r}; its functions are {there}"
        )
    return function  # type: ignore[no-any-return]


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of a callable object, for messages."""
    inner = getattr(function, "func", function)  # the function of a partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def importable_name(named: str | Callable[..., Any]) -> str:
    """A name by which another machine can import a function. UsageError if it has none."""
    if isinstance(named, str):
        path, _, function_name = named.rpartition(":")
        return f"{os.path.abspath(path)}:{function_name}" if path.endswith(".py") else named
    module = getattr(named, "__module__", "__main__")
    name = getattr(named, "__qualname__", "")
    if module == "__main__" or not name.isidentifier():
        raise UsageError(f"{option('map')} is {brief(named)}, which no other machine has: {_MAKE}")
    return f"{module}:{name}"


def takes_dict(function: Callable[..., Any]) -> bool:
    """Whether a function's parameter is annotated as a dict."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return False
    return any(_DICT.match(str(one.annotation)) for one in [*parameters][:1])


def place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """The place in the user's code that raised an exception: "file:line, in function: message"."""
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    ours = [frame for frame in frames if frame.filename == file] or frames[-1:]
    message = f"{type(error).__name__}: {brief_text(error)}"
    if not ours:
        return message
    names = (frame.name for frame in reversed(ours))
    name = next((one for one in names if not one.startswith("<")), ours[-1].name)  # no <listcomp>
    return f"{ours[-1].filename}:{ours[-1].lineno}, in {name}: {message}"


def brief_text(error: BaseException) -> str:
    """The message of an exception, in one line."""
    return " ".join(str(error).split())[:500] or "no message"


def _module(name: str, named: str) -> ModuleType:
    """The module of this name, also looked for in the current folder, or in this file."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = os.path.abspath(name)
        if not os.path.isfile(path):
            raise UsageError(f"{option('map')} {named!r}: there is no file {name}")
        folder, file = os.path.split(path)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        unique = f"tokpack_map_{hashlib.sha256(path.encode()).hexdigest()[:8]}_{file[:-3]}"
        if unique not in sys.modules:
            spec = importlib.util.spec_from_file_location(unique, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[unique] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[unique]
                raise
        return sys.modules[unique]
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name and name.partition(".")[0] == error.name.partition(".")[0]:
            raise UsageError(
                f"{option('map')} {named!r}: there is no module {error.name!r}; it is looked for "
                f"in {here}, and where Python looks; a file is given as path/to/file.py:function"
            ) from None
        raise UsageError(f"{option('map')} {named!r}: {_failed(error)}") from error
    except Exception as error:
        raise UsageError(f"{option('map')} {named!r}: {_failed(error)}") from error


def _failed(error: BaseException) -> str:
    """The reason why a module cannot be imported, in words."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith("<")
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if len(frames) > 1 else ""
    return f"{place}{type(error).__name__}: {brief_text(error)}"


def _file_of(module: ModuleType | None) -> str | None:
    """The file of a module, or None if it has none, as in a notebook."""
    file = getattr(module, "__file__", None)
    return file if file and file.endswith(".py") and os.path.isfile(file) else None


_LEAST_ROWS = 3  # a smaller batch is not cut for comparison
_HINT = (
    "; values of a RecordBatch are Arrow's: batch['text'].to_pylist() has those of Python, and a "
    "function whose parameter is annotated, def clean(batch: dict), gets lists of these"
)
_OUT = "a RecordBatch or Table of pyarrow, a DataFrame, or a dict of columns"


class Chooser:
    """Applies ``where`` and then ``map`` to batches that have rows."""

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
        """The batches of the source ``name``, with the documents to encode.

        InputError if the function fails, or returns something that cannot be encoded.
        """
        for batch in batches:
            self.choose(batch, name)
            if self._map is not None:
                self._apply(batch, self._map, place)
            yield batch

    def choose(self, batch: DocumentBatch, name: str) -> None:
        """Remove the records that ``where`` does not keep from a batch."""
        if self._where is None or not len(batch.first):
            return
        columns, errors = chosen_columns(name, batch, self._types, self._names)
        kept, failed = self._where.kept(columns)
        batch.counts["nans"] = self._where.nans(columns)
        errors = {**failed, **errors}
        kept[list(errors)] = False
        batch.counts["left_out"] = len(kept) - int(np.count_nonzero(kept)) - len(errors)
        batch.keep(kept, errors)

    def _apply(self, batch: DocumentBatch, function: Callable[..., Any], place: Place) -> None:
        """Replace the documents of a batch with those that the function returns for its rows."""
        rows = batch.first
        if not (count := len(rows)):
            empty = documents_of([], np.zeros(0, np.int64))
            batch.documents = dict.fromkeys(self._keys, empty)
            return
        try:
            results, origin = mapped(function, rows.whole)
            texts = texts_in(results, self._keys)
        except InputError as error:
            raise InputError(f"{error.args[0]} ({place(rows.lines)})") from error.__cause__
        copies = np.bincount(origin, minlength=count)
        without = int(np.count_nonzero(copies == 0))
        batch.counts |= {"mapped_out": without, "mapped_in": len(origin) - count + without}
        lines = rows.lines[origin]
        encodable = batch_of_columns(texts, 0, self._most, values_of(results, self._kept))
        for documents in encodable.documents.values():
            documents.lines = lines[documents.lines]
        for record in encodable.bad:
            record.line = int(lines[record.line])
        batch.documents = encodable.documents
        batch.bad = sorted([*batch.bad, *encodable.bad], key=lambda record: record.line)


def mapped(function: Callable[..., Any], columns: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """The Table that a function returns for a RecordBatch, and the input row of each output row.

    The function also gets a column ROW, and a dict of lists if it is annotated for one. InputError
    if it fails, or if the input rows cannot be determined.
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
    if not (isinstance(answer, dict) or is_table(answer)):
        raise InputError(f"{option('map')}: {name} returned {brief(answer)}; it must return {_OUT}")
    try:
        table = table_of(answer)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"{option('map')}: what {name} returned is not a table: {' '.join(str(error).split())}"
        ) from error
    if ROW not in table.schema.names:
        if table.num_rows != count:
            raise InputError(
                f"{option('map')}: {name} returned {table.num_rows} rows for {count}, without the "
                f"column {ROW!r}, which has the number of the input row: keep that column, as "
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
            f"{option('map')}: {name} returned a column {ROW!r} that is not the batch's: it must "
            "have numbers of its rows, in ascending order; a number may occur several times"
        )
    return table, origin.astype(np.int64)


def texts_in(table: Any, keys: Sequence[str]) -> dict[str, Any]:
    """The text columns of a table, each in one chunk. InputError if one is missing."""
    check_columns(f"{option('map')} gave a table", table.schema, keys)
    return {key: decoded(text_column(column_of(table, key).combine_chunks())) for key in keys}


def values_of(table: Any, names: Sequence[str]) -> dict[str, Values]:
    """The columns of a table among ``names``."""
    batches = table.combine_chunks().to_batches()
    there = [name for name in names if root_of(name, table.schema)]
    return {name: of_table(batches[0], name) for name in there if batches}


def check_by_rows(function: Callable[..., Any], columns: Any, keys: Sequence[str]) -> list[str]:
    """The names of the columns that a function returns for a batch.

    It is also called with the batch in pieces. InputError if the results differ: batch bounds
    depend on the number of workers, and the dataset must not.
    """
    whole, origin = mapped(function, columns)
    texts = texts_in(whole, keys)
    count = columns.num_rows
    cuts = [0, 1, count // 2, count]
    names: list[str] = whole.schema.names
    if count < _LEAST_ROWS:
        return names
    parts = [(a, *mapped(function, columns.slice(a, b - a))) for a, b in pairwise(cuts)]
    origins = np.concatenate([begin + rows for begin, _, rows in parts])
    name = name_of(function)
    own_texts = [texts_in(part, keys) for _, part, _ in parts]
    pieces = {key: [one for texts in own_texts for one in texts[key].to_pylist()] for key in keys}
    values = {key: texts[key].to_pylist() for key in keys}
    if not np.array_equal(origin, origins) or values != pieces:
        differences = (
            f", first in {key!r} of row {number}: {brief(one)} and {brief(other)}"
            for key in keys
            for number, (one, other) in enumerate(zip(values[key], pieces[key], strict=False))
            if one != other
        )
        raise InputError(
            f"{option('map')}: {name} returns something else for {count} records at once than for "
            f"the same in three batches{next(differences, '')}: the result for a record must "
            "depend on that record alone, because batches depend on the number of workers"
        )
    return names
