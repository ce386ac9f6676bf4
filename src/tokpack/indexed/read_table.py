"""The tables of a dataset's documents as one Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.display import nearest
from tokpack.errors import FormatError, UsageError
from tokpack.indexed.table import base_tables, import_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.indexed.dataset import MMapIndexedDataset


def read_table(dataset: MMapIndexedDataset, columns: Sequence[str] | None) -> Any:
    """A ``pyarrow.Table`` of the documents of a dataset, in order: its ``columns``, or all.

    A kept column that a shard lacks is null there. Of a view it has the rows of the documents that
    it lists. Raises as ``table_paths``; UsageError for an unknown column, or one whose types in the
    shards do not go together.
    """
    arrow, prefix, view = import_parquet(), dataset.path_prefix, dataset.view
    for _ in () if view is None else view.base:  # FormatError where one is not what it was
        pass
    paths = base_tables(dataset)
    schemas = [arrow.parquet.read_schema(path) for path in paths]
    names = list(dict.fromkeys(name for schema in schemas for name in schema.names))
    wanted = [columns] if isinstance(columns, str) else list(names if columns is None else columns)
    for name in wanted:
        if name not in names:
            likely = nearest(name, names)
            hint = f" (did you mean {likely}?)" if likely else ""
            raise UsageError(
                f"{prefix}: its table has no column {name!r}{hint}; it has {', '.join(names)}"
            )
    if not paths:
        return arrow.table({name: [] for name in wanted})
    try:
        tables = [
            arrow.parquet.read_table(
                path, columns=[name for name in wanted if name in schema.names]
            )
            for path, schema in zip(paths, schemas, strict=True)
        ]
        table = arrow.concat_tables(tables, promote_options="permissive").select(wanted)
        rows = table.replace_schema_metadata().unify_dictionaries()
        return rows if view is None else rows.take(arrow.array(view.numbers))
    except arrow.ArrowTypeError as error:
        raise UsageError(f"{prefix}: columns of its shards do not go together: {error}") from None
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise FormatError(f"{prefix}: not a right table of documents: {error}") from None
