"""Token ids as lists in a parquet column, a document a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.operations.foreign import ForeignDataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.operations.export import Content

MAGIC = b"PAR1"
NAMES = ("input_ids", "tokens", "token_ids", "ids")  # columns that hold ids, the likeliest first
_ROWS = 1024  # read at once
_GROUP_IDS = 1 << 22  # ids of a row group that is written: 16 MiB of int32


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError('parquet files need pyarrow: pip install "tokpack[parquet]"') from None
    return pyarrow


def open_parquet(path: str, column: str | None) -> ForeignDataset:
    """Open the lists of ids under ``column``, or under the only column that has such lists."""
    arrow = _pyarrow()
    try:
        file = arrow.parquet.ParquetFile(path)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise _broken(path, "not a right parquet file", error) from None
    if file.metadata.num_rows < 0:
        raise FormatError(f"{path}: not a right parquet file: it says it has less than no rows")
    schema = file.schema_arrow
    name = _column(path, arrow, schema, column)
    dtype = np.dtype(schema.field(name).type.value_type.to_pandas_dtype())

    def lists() -> Iterator[tuple[int, Any]]:
        row = 0
        try:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[name]):
                column = batch.column(0)
                yield row, column
                row += len(column)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise _broken(path, f"row {row} or a later one is broken", error) from None

    return ForeignDataset(
        path,
        dtype,
        file.metadata.num_rows,
        lambda: (_lengths(path, name, row, column) for row, column in lists()),
        lambda: (_ids(path, name, row, column) for row, column in lists()),
        both=lambda: (
            (_lengths(path, name, row, column), _ids(path, name, row, column))
            for row, column in lists()
        ),
        tokens_about=_values(file.metadata, name),
    )


def _values(metadata: Any, name: str) -> int:
    """Values of a column of lists: its ids, and one for each empty list."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(one.num_values for one in columns if one.path_in_schema.startswith(f"{name}."))


def _broken(path: str, what: str, error: Exception) -> FormatError | InputError:
    # Arrow reports much of what it finds in a file as an OSError without a number.
    if getattr(error, "errno", None):
        return InputError(f"{path}: cannot be read: {error}")
    return FormatError(f"{path}: {what}: {error}")


def _column(path: str, arrow: Any, schema: Any, column: str | None) -> str:
    columns = [
        field.name
        for field in schema
        if hasattr(field.type, "value_type") and arrow.types.is_integer(field.type.value_type)
    ]
    if column is not None:
        if column not in columns:
            raise UsageError(f"{path}: no column {column!r} of lists of integers; it has {columns}")
        return column
    likely = [name for name in NAMES if name in columns]
    if likely or len(columns) == 1:
        return str((likely or columns)[0])
    raise UsageError(
        f"{path}: "
        + (
            f"several columns hold lists of integers: name one of {columns} with --column"
            if columns
            else f"no column of lists of integers among {schema.names}"
        )
    )


def _lengths(path: str, name: str, row: int, lists: Any) -> npt.NDArray[Any]:
    if lists.null_count:
        number = row + lists.is_null().to_pylist().index(True)
        raise FormatError(f"{path}: {name} of row {number} is null, expected a list of ids")
    if not hasattr(lists, "value_lengths"):  # lists of one fixed size
        return np.full(len(lists), lists.type.list_size)
    lengths: npt.NDArray[Any] = lists.value_lengths().to_numpy(zero_copy_only=False)
    return lengths


def _ids(path: str, name: str, row: int, lists: Any) -> npt.NDArray[Any]:
    values = lists.flatten()
    if values.null_count:
        raise FormatError(f"{path}: {name} has null among the ids in rows {row} and following")
    ids: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return ids


def write_lists(file: BinaryIO, content: Content) -> None:
    """Write documents as lists under ``input_ids``, some million ids a row group."""
    arrow = _pyarrow()
    schema = arrow.schema([("input_ids", arrow.list_(arrow.from_numpy_dtype(content.dtype)))])
    rows, begin = 0, 0  # that are written, and the ids in them
    pending = [np.zeros(0, content.dtype)]

    def write(end: int) -> None:
        """Write the rows up to ``end``, whose ids have all come."""
        nonlocal rows, begin, pending
        offsets = np.concatenate([[0], content.ends[rows:end] - begin])
        if int(offsets[-1]) > np.iinfo(np.int32).max:
            raise UsageError(
                f"{content.name}: document {end - 1} has too many tokens for a row of a parquet "
                "file"
            )
        ids = np.concatenate(pending)
        values = arrow.array(ids[: offsets[-1]])
        lists = arrow.ListArray.from_arrays(offsets.astype(np.int32), values)
        writer.write_table(arrow.table([lists], schema=schema))
        rows, begin, pending = end, begin + int(offsets[-1]), [ids[offsets[-1] :]]

    with arrow.parquet.ParquetWriter(file, schema) as writer:
        total = 0
        for ids in content.ids():
            pending.append(ids)
            total += len(ids)
            whole = int(np.searchsorted(content.ends, total, side="right"))
            if total - begin >= _GROUP_IDS and whole > rows:
                write(whole)
        if rows < len(content.ends):
            write(len(content.ends))
