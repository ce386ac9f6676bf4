"""Token ids as lists in a parquet column, a document a row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.operations.foreign import Chunk, ForeignDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from tokpack.indexed.dataset import MMapIndexedDataset

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

    def chunks() -> Iterator[Chunk]:
        row = 0
        try:
            for batch in file.iter_batches(batch_size=_ROWS, columns=[name]):
                lists = batch.column(0)
                yield _chunk(path, name, row, lists)
                row += len(lists)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise _broken(path, f"row {row} or a later one is broken", error) from None

    return ForeignDataset(path, dtype, file.metadata.num_rows, chunks)


def _broken(path: str, what: str, error: Exception) -> FormatError | InputError:
    # Arrow reports much of what it finds in a file as an OSError without a number.
    if getattr(error, "errno", None):
        return InputError(f"{path}: cannot be read: {error}")
    return FormatError(f"{path}: {what}: {error}")


def _column(path: str, arrow: Any, schema: Any, column: str | None) -> str:
    found = [
        field.name
        for field in schema
        if hasattr(field.type, "value_type") and arrow.types.is_integer(field.type.value_type)
    ]
    if column is not None:
        if column not in found:
            raise UsageError(f"{path}: no column {column!r} of lists of integers; it has {found}")
        return column
    likely = [name for name in NAMES if name in found]
    if likely or len(found) == 1:
        return str((likely or found)[0])
    raise UsageError(
        f"{path}: "
        + (
            f"several columns hold lists of integers: name one of {found} with --column"
            if found
            else f"no column of lists of integers among {schema.names}"
        )
    )


def _chunk(path: str, name: str, row: int, lists: Any) -> Chunk:
    if lists.null_count:
        number = row + lists.is_null().to_pylist().index(True)
        raise FormatError(f"{path}: {name} of row {number} is null, expected a list of ids")
    if not hasattr(lists, "value_lengths"):  # lists of one fixed size
        lists = lists.cast(_pyarrow().list_(lists.type.value_type))
    values = lists.flatten()
    if values.null_count:
        raise FormatError(f"{path}: {name} has null among the ids in rows {row} and following")
    ids: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return Chunk(ids, lists.value_lengths().to_numpy(zero_copy_only=False))


def write_lists(
    file: BinaryIO,
    dataset: MMapIndexedDataset,
    cast: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    dtype: np.dtype[Any],
) -> None:
    """Write the documents of a dataset as lists under ``input_ids``, some million ids a group.

    ``cast`` turns ids into ``dtype``, and raises for those that do not fit.
    """
    arrow = _pyarrow()
    schema = arrow.schema([("input_ids", arrow.list_(arrow.from_numpy_dtype(dtype)))])
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        for number, rows in _groups(dataset):
            ids = np.concatenate([np.zeros(0, dataset.dtype), *(i for row in rows for i in row)])
            lengths = [sum(len(sequence) for sequence in row) for row in rows]
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            if int(offsets[-1]) > np.iinfo(np.int32).max:
                raise UsageError(
                    f"{dataset.path_prefix}: document {number} has {lengths[-1]} tokens, too many "
                    "for a row of a parquet file"
                )
            values = cast(ids) if ids.size else ids.astype(dtype)
            lists = arrow.ListArray.from_arrays(offsets.astype(np.int32), arrow.array(values))
            writer.write_table(arrow.table([lists], schema=schema))


def _groups(dataset: MMapIndexedDataset) -> Iterator[tuple[int, list[list[npt.NDArray[Any]]]]]:
    """Documents, each a list of sequences, with enough ids for a row group; the last's number."""
    rows: list[list[npt.NDArray[Any]]] = []
    held, walk = 0, iter(dataset)
    number = -1
    for number, (begin, end) in enumerate(pairwise(dataset.doc_idx)):
        rows.append([next(walk) for _ in range(int(end) - int(begin))])
        held += sum(len(sequence) for sequence in rows[-1])
        if held >= _GROUP_IDS or len(rows) >= _GROUP_IDS:
            yield number, rows
            rows, held = [], 0
    if rows:
        yield number, rows
