"""The table of a dataset's documents as one, however its files lie: rows by document."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.display import nearest
from tokpack.errors import UsageError
from tokpack.indexed.lengths import by_part
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.table import COLUMNS, TableReader, import_parquet, table_file, table_path
from tokpack.indexed.view import numbers_of_view

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack.indexed.selection import Numbers

    Int64s = npt.NDArray[np.int64]

_OPEN = 8  # shards


class DocumentTable:
    """The rows of the documents of the dataset ``prefix``, numbered as these are.

    Those of a dataset in shards lie in the tables of its shards, those of a view in the tables of
    the datasets that it selects from; each is opened when it is asked. ``prefixes`` are theirs,
    ``numbers`` the documents of a view there, None for any other dataset. Opening takes a moment,
    that of a view a pass over its list. InputError where a table is missing, FormatError where one
    is broken or of another dataset.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = prefix_of(prefix)
        self.prefixes: list[str] = [self.prefix]
        self.numbers: Numbers | None = None
        self.shard: Callable[[int], TableReader] = lru_cache(_OPEN)(self._opened)
        if is_virtual(self.prefix):
            manifest = Manifest.load(self.prefix)
            if manifest.selection is not None:
                self.numbers = numbers_of_view(self.prefix)
            pieces = manifest.pieces or ()
            self.prefixes = [piece_prefix(self.prefix, piece) for piece in pieces]
            counts = [piece.documents for piece in pieces]
        else:
            counts = [len(self.shard(0))]
        self.ends = [0, *accumulate(counts)]
        if self.prefixes:
            self.shard(0)  # so that what has no table is known at once

    def __len__(self) -> int:
        """Number of documents."""
        return self.ends[-1] if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[TableReader]:
        """The tables of the shards, each opened in turn."""
        return map(self.shard, range(len(self.prefixes)))

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns, with their types in words, of the first shards."""
        return {
            field.name: "string" if "dictionary" in str(field.type) else str(field.type)
            for reader in islice(self, _OPEN)
            for field in reader.schema
        }

    @property
    def kept(self) -> dict[str, str]:
        """Those of them that were kept of the input."""
        return {name: kind for name, kind in self.columns.items() if name not in COLUMNS}

    @property
    def in_pairs(self) -> bool:
        """Whether documents 2i and 2i + 1 are different ones of the same line of a source."""
        from pyarrow import compute

        table = self.read(["source", "line", "tokens_xxh3"])
        one, other = (table.take(np.arange(first, len(table), 2)) for first in range(2))
        if len(one) != len(other):
            return False
        equal: Any = compute.equal
        source, line, tokens = (equal(one[name], other[name]) for name in table.column_names)
        both: Any = compute.and_not(compute.and_(source, line), tokens)
        return bool(np.all(both.to_numpy()))

    def parts(self, documents: Int64s) -> Iterator[tuple[TableReader, Int64s, Int64s]]:
        """The tables that have some documents: of each their places among these, and its rows."""
        if self.numbers is not None:
            documents = self.numbers[documents].astype(np.int64)
        for shard, here, rows in by_part(self.ends, documents):
            yield self.shard(shard), here, rows

    def rows(self, documents: Int64s, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Rows as mappings, in the order of the documents; without what a shard has not.

        IndexError where a document is not there.
        """
        rows: list[dict[str, Any]] = [{}] * len(documents)
        for reader, places, numbers in self.parts(documents):
            names = tuple(name for name in columns if name in reader.schema.names)
            table = reader.take(numbers, names)
            for place, row in zip(places.tolist(), table.to_pylist(), strict=True):
                rows[place] = row
        return rows

    def take(self, documents: Int64s, columns: Sequence[str], fit: Callable[[Any], Any]) -> Any:
        """Rows as an Arrow table, in the order of the documents.

        ``fit`` gives what a table has of ``columns`` the form that it has in all tables.
        """
        arrow = import_parquet()
        tables, order = [], []
        for reader, places, numbers in self.parts(documents):
            names = tuple(name for name in columns if name in reader.schema.names)
            tables.append(fit(reader.take(numbers, names)))
            order.append(places)
        joined = arrow.concat_tables(tables)
        if len(order) == 1:
            return joined
        return joined.take(arrow.array(np.argsort(np.concatenate(order))))

    def read(self, columns: Sequence[str] | str | None) -> Any:
        """All rows as an Arrow table: its ``columns``, or all.

        A kept column that a shard lacks is null there. UsageError for an unknown column, or one
        whose types in the shards do not go together.
        """
        arrow = import_parquet()
        names = list(dict.fromkeys(name for reader in self for name in reader.schema.names))
        columns = names if columns is None else columns
        wanted = [columns] if isinstance(columns, str) else list(columns)
        for name in wanted:
            if name not in names:
                likely = nearest(name, names)
                hint = f" (did you mean {likely}?)" if likely else ""
                raise UsageError(
                    f"{self.prefix}: its table has no column {name!r}{hint}; it has "
                    f"{', '.join(names)}"
                )
        if not self.prefixes:
            return arrow.table({name: [] for name in wanted})
        try:
            tables = [
                reader.read([name for name in wanted if name in reader.schema.names])
                for reader in self
            ]
            table = arrow.concat_tables(tables, promote_options="permissive").select(wanted)
        except arrow.ArrowTypeError as error:
            raise UsageError(
                f"{self.prefix}: columns of its shards do not go together: {error}"
            ) from None
        rows = table.replace_schema_metadata().unify_dictionaries()
        return rows if self.numbers is None else rows.take(arrow.array(self.numbers))

    def _opened(self, shard: int) -> TableReader:
        prefix = self.prefixes[shard]
        return TableReader(table_file(prefix), table_path(prefix))
