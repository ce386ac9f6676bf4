"""``PREFIX.docs.parquet``, described in docs/format.md: a row for each document of a dataset.

Records left out have rows in ``PREFIX.dropped.parquet``. The footer of each file has the checksum
of the .bin, and the manifest has the size and checksum of the file.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from xxhash import xxh3_128_intdigest

from tokpack import _core
from tokpack.dataset.format import by_part, prefix_of
from tokpack.dataset.manifest import Manifest, checksum_of, manifest_path
from tokpack.dataset.shards import is_virtual, piece_prefix
from tokpack.dataset.view import numbers_of_view
from tokpack.display import nearest
from tokpack.errors import FormatError, InputError, UsageError, needs_extra
from tokpack.storage import exists, head, identity, near, open_file
from tokpack.storage.disk import not_a_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from tokpack.dataset.manifest import FileDigest
    from tokpack.dataset.view import Numbers

    Int64s = npt.NDArray[np.int64]


TABLE_SUFFIX = ".docs.parquet"
DROPPED_SUFFIX = ".dropped.parquet"
# The columns of every table, in this order; kept columns follow. If a kept column has the same
# name, our column is called OWN + name instead, and readers find it under either name.
COLUMNS = ("source", "line", "bytes", "tokens", "text_xxh3", "tokens_xxh3")
OWN = "tokpack_"
DROPPED_COLUMNS = ("source", "line", "reason")
EMPTY = "empty"  # the reason for a document without a token
ROW_GROUP = 1 << 16  # rows; the last group has fewer
VERSION = 1
NO_TOKENS = xxh3_128_intdigest(b"") >> 64  # the upper half of tokens_xxh3 for no tokens
MARK = b"tokpack.table"  # a key of the footer's metadata

_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16  # at the end of the footer, where its metadata is

_OPEN = 8  # row groups in memory
_ADVICE = (
    "`tokpack adopt` makes one from its tokens; for one with lines and values of the input, "
    "encode with --keep or --trace"
)


def table_path(prefix: str | os.PathLike[str]) -> str:
    """The path of the table of documents of the dataset ``prefix``."""
    return os.fsdecode(prefix) + TABLE_SUFFIX


def dropped_path(prefix: str | os.PathLike[str]) -> str:
    """The path of the table of records that were left out of the dataset ``prefix``."""
    return os.fsdecode(prefix) + DROPPED_SUFFIX


def token_digests(tokens: npt.NDArray[Any], spans: Int64s) -> npt.NDArray[np.uint8]:
    """``tokens_xxh3`` of documents, uint8 [n, 16]: document i has the tokens of spans[i].

    Tokens are hashed as int32, little endian, whatever the dtype. If a token of a document does not
    fit, it is hashed as int64, followed by a 0 byte.
    """
    return _core.token_digests(np.require(plain_ids(tokens), requirements=["C", "A"]), spans)


def plain_ids(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Token ids as the core compares them: uint16, uint32 or uint64, in the byte order of this
    machine.

    A negative id becomes the number with the same bits.
    """
    if tokens.dtype.kind == "u" and tokens.dtype.itemsize in (2, 4, 8):
        return tokens.astype(tokens.dtype.newbyteorder("="), copy=False)
    if tokens.dtype.itemsize == 8:
        return tokens.astype(np.int64, copy=False).view(np.uint64)
    return tokens.astype(np.int32, copy=False).view(np.uint32)


def is_table(path: str | os.PathLike[str], mark: bytes = MARK) -> bool:
    """Whether a file is a table of documents or of records left out, and may be replaced.

    Other tables have another ``mark`` in their footer's metadata.
    """
    path = os.fsdecode(path)
    if head(path, len(_MAGIC)) != _MAGIC:
        return False
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC) - 4))
            footer = int.from_bytes(file.read(4), "little")
            if file.read() != _MAGIC:
                return False
            file.seek(max(0, size - len(_MAGIC) - 4 - min(footer, _TAIL_BYTES)))
            # A key in Thrift's compact protocol: its number, its length, its letters.
            return b"\x18%c%b\x18" % (len(mark), mark) in file.read()
    except OSError:
        return False


def table_metadata(binary: FileDigest) -> dict[bytes, bytes]:
    """The metadata for the tables of a dataset with this .bin."""
    value = {"version": VERSION, "bin": checksum_of(binary)}
    return {MARK: json.dumps(value).encode()}


@cache
def import_parquet() -> Any:
    """``pyarrow`` with ``pyarrow.parquet``. UsageError that names the extra if it is missing."""
    with needs_extra("parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def array_of(values: npt.NDArray[Any], kind: Any = None) -> Any:
    """An Arrow array without nulls, with the type of ``values`` or ``kind`` of equal width.

    ``pyarrow.array`` would load pandas.
    """
    arrow = import_parquet()
    data = arrow.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    kind = kind or arrow.from_numpy_dtype(values.dtype)
    return arrow.Array.from_buffers(kind, len(values), [None, data])


def array_of_text(text: str) -> Any:
    """An Arrow array of one string."""
    arrow = import_parquet()
    data = text.encode()
    offsets = arrow.py_buffer(np.array([0, len(data)], np.int32))
    return arrow.Array.from_buffers(arrow.string(), 1, [None, offsets, arrow.py_buffer(data)])


def table_paths(prefix: str | os.PathLike[str]) -> list[str]:
    """The paths of the tables of a dataset's shards, in order, on this machine.

    For a dataset on a store they are copies, which must be opened at once. A view has no table of
    its own: use ``DocumentTable``. InputError for a view, or if a shard has no table; FormatError
    if one is from another dataset, by its size, rows, and the checksum in its footer. Only
    ``tokpack verify`` compares all bytes.
    """
    prefix = prefix_of(prefix)
    prefixes = [prefix]
    if is_virtual(prefix):
        manifest = Manifest.load(prefix)
        if manifest.selection is not None:  # the tables under a view have other rows too
            raise InputError(
                f"{prefix}: a view has no table of its own: `tokpack merge` makes a copy with one"
            )
        prefixes = [piece_prefix(prefix, piece) for piece in manifest.pieces or ()]
    return [table_file(one) for one in prefixes]


def has_table(prefix: str) -> bool:
    """Whether the manifest of the dataset ``prefix`` names a table.

    For a virtual dataset or a view: whether all manifests under it do.
    """
    if not is_virtual(prefix):
        manifest = Manifest.find(prefix)
        return manifest is not None and manifest.table is not None
    manifest = Manifest.load(prefix)
    pieces = manifest.pieces or ()
    return bool(pieces) and all(has_table(piece_prefix(prefix, piece)) for piece in pieces)


def table_file(prefix: str) -> str:
    """The path of the table of one shard. Raises as ``table_paths``."""
    path, manifest = table_path(prefix), Manifest.find(prefix)
    if manifest is None or manifest.table is None:
        if manifest is None and (what := not_a_dataset(prefix)):
            raise InputError(what)
        old = exists(f"{prefix}.trace")
        more = " (its .trace is of an earlier version)" if old else ""
        raise InputError(f"{prefix}: no table of documents{more}; {_ADVICE}")
    file = identity(path)
    if file is None:
        raise InputError(f"{path} is missing: {manifest_path(prefix)} names it; {_ADVICE}")
    if file.size != manifest.table["bytes"]:
        raise FormatError(
            f"{path}: {file.size} bytes, expected {manifest.table['bytes']}, as "
            f"{manifest_path(prefix)} says: the files do not belong together"
        )
    local = near(path)
    check_footer(local, manifest, manifest.documents + manifest.kept_empty, path)
    return local


def check_footer(local: str, manifest: Manifest, rows: int, name: str) -> None:
    """Raise FormatError, with ``name``, if a table is broken, or not of this dataset."""
    arrow = import_parquet()
    try:
        metadata = arrow.parquet.read_metadata(local)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise FormatError(f"{name}: not a valid parquet file: {error}") from None
    value = (metadata.metadata or {}).get(MARK)
    if value is None:
        raise FormatError(f"{name}: a parquet file, but not a table of tokpack")
    if value != table_metadata(manifest.bin)[MARK]:
        raise FormatError(f"{name}: is the table of another dataset; encode this one again")
    if metadata.num_rows != rows:
        raise FormatError(f"{name}: has {metadata.num_rows} rows, expected {rows}")


def within(numbers: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
    """The ascending ``numbers`` in [begin, end)."""
    if begin == end:
        return numbers[:0]
    # In the dtype of the numbers: otherwise the search would convert all of them.
    first, last = np.array([begin, end - 1]).astype(numbers.dtype)
    return numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last, side="right")]


class TableReader:
    """Reads rows of one table by number or line; row groups are read on demand."""

    def __init__(self, local: str, name: str = "") -> None:
        arrow = import_parquet()
        self.name = name or local
        self._errors = (OSError, ValueError, arrow.ArrowException)
        try:
            self._file = arrow.parquet.ParquetFile(local)
        except self._errors as error:
            raise self._broken(error) from None
        metadata = self._file.metadata
        counts = (metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
        self._ends: list[int] = [0, *accumulate(counts)]
        self._group = lru_cache(_OPEN)(self._read)

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        return self._file.schema_arrow

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the kept columns."""
        return tuple(self.schema.names[len(COLUMNS) :])

    def stored(self, column: str) -> str:
        """The name of a column in this table; OWN + name stands for one of COLUMNS."""
        own = column.removeprefix(OWN)
        is_plain = own in COLUMNS and column not in self.schema.names[: len(COLUMNS)]
        return own if is_plain else column

    def has(self, column: str, others: Collection[str] = ()) -> bool:
        """Whether it has a column, where ``others`` may have kept one of the same name."""
        moved = OWN + column in {*others} - {*self.schema.names}
        return not moved and self.stored(column) in self.schema.names

    def is_null(self, column: str) -> bool:
        """Whether a column has no value at all, by the statistics of its row groups."""
        metadata = self._file.metadata
        place = self.schema.get_field_index(self.stored(column))
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(place).statistics
            rows = metadata.row_group(group).num_rows
            if statistics is None or not statistics.has_null_count or statistics.null_count < rows:
                return False
        return True

    def take(self, numbers: Int64s, columns: tuple[str, ...]) -> Any:
        """Rows by their numbers, int64 [n], in any order and with repeats, as an Arrow table.

        IndexError for a row that does not exist.
        """
        arrow = import_parquet()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError(f"{self.name}: rows {numbers.min()} to {numbers.max()} of {len(self)}")
        nothing = arrow.Table.from_batches([], self.schema).select([*map(self.stored, columns)])
        nothing = nothing.rename_columns(columns)
        parts, order = [nothing], [np.zeros(0, np.int64)]
        for group, here, rows in by_part(self._ends, numbers):
            parts.append(self._group(group, columns).take(array_of(rows)))
            order.append(here)
        places = np.concatenate(order)
        joined = arrow.concat_tables(parts).unify_dictionaries()
        if (places[1:] > places[:-1]).all():
            return joined
        return joined.take(array_of(np.argsort(places)))

    def read(self, columns: Sequence[str]) -> Any:
        """All rows, with some columns, as an Arrow table."""
        try:
            names = [*map(self.stored, columns)]
            return self._file.read(columns=names).select(names).rename_columns(columns)
        except self._errors as error:
            raise self._broken(error) from None

    def of_rows(self, column: str, rows: npt.NDArray[Any]) -> Iterator[tuple[Any, Int64s]]:
        """For each row group with ``rows``, the values of a column, and which belong to rows.

        ``rows`` are ascending, with repeats.
        """
        for group, (begin, end) in enumerate(pairwise(self._ends)):
            inside = within(rows, begin, end)
            if len(inside):
                yield self._read(group, (column,))[column], inside.astype(np.int64) - begin

    def column(self, name: str) -> Iterator[Any]:
        """A column of all rows, as Arrow arrays; at most one row group is in memory."""
        for group in range(len(self._ends) - 1):
            yield from self._read(group, (name,))[name].chunks

    def find(
        self, source: str, line: int, columns: tuple[str, ...]
    ) -> list[tuple[int, dict[str, Any]]]:
        """The rows of a line of an input, with their numbers; skips groups that cannot have it."""
        from pyarrow import compute

        arrow = import_parquet()
        matches: list[tuple[int, dict[str, Any]]] = []
        for group in range(len(self._ends) - 1):
            if not self._may_have(group, source, line):
                continue
            table = self._group(group, (*_WHERE, *columns))
            of_lines: Any = compute  # untyped
            is_line = of_lines.equal(table[1], arrow.scalar(line, arrow.int64()))
            for number in of_lines.indices_nonzero(is_line).to_pylist():
                [row] = table.slice(number, 1).to_pylist()
                there, _ = map(row.pop, _WHERE)
                if there == source:
                    matches.append((self._ends[group] + number, row))
        return matches

    def _may_have(self, group: int, source: str, line: int) -> bool:
        metadata = self._file.metadata.row_group(group)
        for number, value in enumerate((source, line)):  # the first two of COLUMNS
            statistics = metadata.column(number).statistics
            has_bounds = statistics is not None and statistics.has_min_max
            if has_bounds and not statistics.min <= value <= statistics.max:
                return False
        return True

    def _read(self, group: int, columns: tuple[str, ...]) -> Any:
        try:
            names = [*map(self.stored, columns)]
            table = self._file.read_row_group(group, columns=names, use_threads=False)
            return table.select(names).rename_columns(columns)
        except self._errors as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> FormatError:
        return FormatError(f"{self.name}: not a right table of documents: {error}")


# Tables are written in row groups of a fixed size, so their bytes depend only on the rows, however
# these were cut on their way here (and on pyarrow's version, which is in the footer).

_HASH = "fixed_size_binary[16]"  # their type
_COUNTS = slice(1, 4)  # columns of numbers that are similar in neighbouring rows
# Columns with more bytes of distinct values in a row group get no dictionary.
_DICTIONARY_BYTES = 1 << 16


def table_schema(kept: Mapping[str, str]) -> Any:
    """The Arrow schema of a table of documents; ``kept`` are its other columns, with their types.

    A type is bool, int64, double or string.
    """
    arrow = import_parquet()
    name = arrow.dictionary(arrow.int32(), arrow.string())
    digest = arrow.binary(16)
    number = arrow.int64()
    taken = {one.lower() for one in kept}  # SQL ignores case
    names = [OWN + one if one in taken else one for one in COLUMNS]
    own = zip(names, (name, number, number, number, digest, digest), strict=True)
    return arrow.schema([*own, *((n, arrow_type(kind)) for n, kind in kept.items())])


def arrow_type(kind: str) -> Any:
    """The Arrow type of a kept column: bool, int64, double or string."""
    return import_parquet().type_for_alias(kind)


def dropped_schema() -> Any:
    """The Arrow schema of a table of records that were left out."""
    arrow = import_parquet()
    name = arrow.dictionary(arrow.int32(), arrow.string())
    return arrow.schema(list(zip(DROPPED_COLUMNS, (name, arrow.int64(), name), strict=True)))


def table_chunks(
    schema: Any, tables: Iterable[Any], metadata: Mapping[bytes, bytes]
) -> Iterator[bytes]:
    """The bytes of a table, for ``replace_file``, from Arrow tables of any size, in order.

    Dictionary columns of the schema may be strings in these.
    """
    arrow = import_parquet()
    schema = schema.with_metadata(dict(metadata))
    sink = _Sink()
    texts = [field.name for field in schema if str(field.type) not in (*_PLAIN_TYPES, _HASH)]
    kinds = dict(zip(schema.names, map(str, schema.types), strict=True))
    counts = [name for name in schema.names[_COUNTS] if kinds[name] == "int64"]
    writer = arrow.parquet.ParquetWriter(
        sink,
        schema,
        compression={name: "none" if kinds[name] == _HASH else "zstd" for name in kinds},
        use_dictionary=texts,
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        column_encoding=dict.fromkeys(counts, "DELTA_BINARY_PACKED"),
    )
    for group in _groups(tables):
        columns = [_encoded(group[field.name], field.type) for field in schema]
        writer.write_table(arrow.table(columns, schema=schema), row_group_size=ROW_GROUP)
        yield from sink.take()
    writer.close()
    yield from sink.take()


_PLAIN_TYPES = ("bool", "int64", "double")


def _groups(tables: Iterable[Any]) -> Iterator[Any]:
    """The rows in tables of ROW_GROUP rows; the last one may have fewer."""
    arrow = import_parquet()
    waiting: list[Any] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        while rows >= ROW_GROUP:
            joined = arrow.concat_tables(waiting)
            yield joined.slice(0, ROW_GROUP)
            rows -= ROW_GROUP
            waiting = [joined.slice(ROW_GROUP)] if rows else []
    if rows:
        yield arrow.concat_tables(waiting)


def _encoded(column: Any, kind: Any) -> Any:
    """A column in one chunk; for a dictionary, its values are in the order of their first rows."""
    arrow = import_parquet()
    if not arrow.types.is_dictionary(kind):
        return column.combine_chunks()
    if arrow.types.is_dictionary(column.type):  # one value per chunk: the order is right
        return column.unify_dictionaries().combine_chunks()
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, arrow.ChunkedArray) else encoded


class _Sink(io.RawIOBase):
    """A file in memory whose content is taken while it is written."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._bytes

    def take(self) -> list[bytes]:
        """The bytes that were written since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks


class DocumentTable:
    """The table rows of a dataset's documents, by document number.

    A virtual dataset has them in the tables of its shards, a view in the tables of the datasets
    under it; each table is opened on demand. ``prefixes`` are the datasets with tables. ``numbers``
    are the documents of a view in these, or None for any other dataset. Opening takes a moment, for
    a view a pass over its list. InputError if a table is missing, FormatError if one is broken or
    of another dataset.
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
            self.shard(0)  # raises at once if there is no table

    def __len__(self) -> int:
        """Number of documents."""
        return self.ends[-1] if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[TableReader]:
        """The tables of the shards, each opened on demand."""
        return map(self.shard, range(len(self.prefixes)))

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns of the first shards, with their types in words."""
        return {
            field.name: "string" if "dictionary" in str(field.type) else str(field.type)
            for reader in islice(self, _OPEN)
            for field in reader.schema
        }

    @property
    def kept(self) -> dict[str, str]:
        """The kept columns, with their types."""
        names = {name for reader in islice(self, _OPEN) for name in reader.kept}
        return {name: kind for name, kind in self.columns.items() if name in names}

    @property
    def in_pairs(self) -> bool:
        """Whether documents 2i and 2i + 1 are always different documents of the same line."""
        from pyarrow import compute

        table = self.read([OWN + "source", OWN + "line", OWN + "tokens_xxh3"])
        one, other = (table.take(np.arange(first, len(table), 2)) for first in range(2))
        if len(one) != len(other):
            return False
        equal: Any = compute.equal
        source, line, tokens = (equal(one[name], other[name]) for name in table.column_names)
        both: Any = compute.and_not(compute.and_(source, line), tokens)
        return bool(np.all(both.to_numpy()))

    def parts(self, documents: Int64s, columns: Sequence[str]) -> Iterator[tuple[Int64s, Any]]:
        """For each table with any of ``documents``: their places, and their rows."""
        if self.numbers is not None:
            documents = self.numbers[documents].astype(np.int64)
        for shard, here, rows in by_part(self.ends, documents):
            reader = self.shard(shard)
            names = tuple(one for one in columns if reader.has(one, columns))
            yield here, reader.take(rows, names)

    def rows(self, documents: Int64s, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Rows as mappings, in document order, without columns that a shard lacks.

        IndexError for a document that does not exist.
        """
        rows: list[dict[str, Any]] = [{}] * len(documents)
        for places, table in self.parts(documents, columns):
            for place, row in zip(places.tolist(), table.to_pylist(), strict=True):
                rows[place] = row
        return rows

    def take(self, documents: Int64s, columns: Sequence[str], fit: Callable[[Any], Any]) -> Any:
        """Rows as an Arrow table, in the order of the documents.

        ``fit`` converts the ``columns`` of a table to their common form.
        """
        arrow = import_parquet()
        tables, order = [], []
        for places, table in self.parts(documents, columns):
            tables.append(fit(table))
            order.append(places)
        joined = arrow.concat_tables(tables)
        if len(order) == 1:
            return joined
        return joined.take(array_of(np.argsort(np.concatenate(order))))

    def read(self, columns: Sequence[str] | str | None) -> Any:
        """All rows as an Arrow table with ``columns``, or all columns.

        A kept column that a shard lacks is null there. UsageError for an unknown column, or one
        with incompatible types in shards.
        """
        arrow = import_parquet()
        names = list(dict.fromkeys(name for reader in self for name in reader.schema.names))
        wanted = names if columns is None else [columns] if isinstance(columns, str) else [*columns]
        for name in wanted:
            if name not in names and not any(reader.has(name) for reader in self):
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
                reader.read([name for name in wanted if reader.has(name, names)]) for reader in self
            ]
            table = arrow.concat_tables(tables, promote_options="permissive").select(wanted)
        except arrow.ArrowTypeError as error:
            raise UsageError(
                f"{self.prefix}: columns of its shards do not fit together: {error}"
            ) from None
        rows = table.replace_schema_metadata().unify_dictionaries()
        return rows if self.numbers is None else rows.take(array_of(self.numbers))

    def _opened(self, shard: int) -> TableReader:
        prefix = self.prefixes[shard]
        return TableReader(table_file(prefix), table_path(prefix))


_WHERE = (OWN + "source", OWN + "line")
Became = Literal["document", "empty", "rejected", "unselected", "nothing"]


@dataclass(frozen=True)
class Origin:
    """A line of an input, and what became of it.

    ``source`` is the input's name as in the manifest. ``line`` counts from 1: lines of JSON lines
    and plain text (blank ones too, compressed or not), elements of a JSON array, rows of a table,
    records of an archive; None if it is not known. ``became`` is ``document``, and then
    ``document`` is its number in the dataset; or why it was left out: ``empty`` (no token),
    ``rejected`` with a ``reason``, ``unselected`` for a document that a view does not list; or
    ``nothing`` for a line that is no record, or one that ``where`` or ``map`` left out, for which
    no trace is kept. ``kept`` are the kept values of a document, by column, if they were requested.
    """

    source: str
    line: int | None
    became: Became
    document: int | None = None
    reason: str = ""
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """``wiki.jsonl:123``."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Origins:
    """Where the documents of a dataset come from, by its table and manifest.

    For a virtual dataset or a view, the tables under it are opened on demand. InputError if one is
    missing, FormatError if it is broken or of another dataset. Opening takes a moment, for a view a
    pass over its list; a lookup takes some milliseconds, less for a document near the last one.
    With ``kept`` origins include kept values, which take longer to read.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, kept: bool = False) -> None:
        self._has_kept = kept
        self.table = table = DocumentTable(prefix)
        self._dropped = lru_cache(_OPEN)(_dropped)
        self._manifests = [Manifest.load(table.prefix)]
        if table.numbers is not None:  # the inputs of a view are datasets, not files
            bases = (Manifest.find(one) for one in table.prefixes)
            self._manifests = [one for one in bases if one is not None]
        names = [name for one in self._manifests for name in _names(one)]
        self.sources = names if table.numbers is None else list(dict.fromkeys(names))

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.table)

    def __getitem__(self, document: int) -> Origin:
        """The origin of a document. IndexError if there is no document with this number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self.table.prefix}: document {document} of {len(self)}")
        [origin] = self._of(number, number + 1)
        return origin

    def __iter__(self) -> Iterator[Origin]:
        for begin in range(0, len(self), ROW_GROUP):
            yield from self._of(begin, min(begin + ROW_GROUP, len(self)))

    def _of(self, begin: int, end: int) -> Iterator[Origin]:
        """The origins of documents [begin, end)."""
        columns = (*_WHERE, *(self.table.kept if self._has_kept else ()))
        rows = self.table.rows(np.arange(begin, end), columns)
        for number, row in enumerate(rows, begin):
            source, line = map(row.pop, _WHERE)
            yield Origin(source, line, "document", number, kept=row)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: one origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError if no input, or more than one, has such a name.
        """
        table = self.table
        name = self.sources[_matching(self.sources, source, table.prefix)]
        origins = []
        for shard, first in enumerate(table.ends[:-1]):
            reader, prefix = table.shard(shard), table.prefixes[shard]
            for number, kept in reader.find(name, line, reader.kept if self._has_kept else ()):
                places = [first + number]
                if table.numbers is not None:
                    places = np.flatnonzero(table.numbers == first + number).tolist()
                origins += [Origin(name, line, "document", one, kept=kept) for one in places]
                if not places:
                    reason = f"it is document {number} of {prefix}"
                    origins.append(Origin(name, line, "unselected", reason=reason, kept=kept))
            dropped = self._dropped(prefix)
            for _, row in [] if dropped is None else dropped.find(name, line, ("reason",)):
                if row["reason"] == EMPTY:
                    origins.append(Origin(name, line, "empty", reason="no token"))
                else:
                    origins.append(Origin(name, line, "rejected", reason=row["reason"]))
        return origins or [Origin(name, line, "nothing", reason=self._no_record(name))]

    def _no_record(self, name: str) -> str:
        """Why a line of an input is neither a document nor a record left out."""
        reasons = ["blank", "behind the last line"]
        manifests = [one for one in self._manifests if name in _names(one)]
        reasons += dict.fromkeys(way for one in manifests for way in one.ways_out())
        for limit in {one.options.get("num_docs") for one in manifests} - {None}:
            reasons.append(f"not among the first {limit} records, which were read")
        return f"{', '.join(reasons[:-1])}, or {reasons[-1]}"


def _dropped(prefix: str) -> TableReader | None:
    """The table of the records that a shard has left out, or None if there is none."""
    manifest, path = Manifest.load(prefix), dropped_path(prefix)
    if manifest.dropped is None:
        return None
    left_out = manifest.empty + manifest.rejected - manifest.kept_empty
    try:
        local = near(path)
        check_footer(local, manifest, left_out, path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: the manifest names it") from None
    return TableReader(local, path)


def _matching(sources: list[str], source: str, prefix: str) -> int:
    """The number of the input that a user names. UsageError if none or several match."""
    if source in sources:
        return sources.index(source)
    end = "/" + source.lstrip("./")
    names = sorted({name for name in sources if ("/" + name).endswith(end)})
    if len(names) == 1:
        return sources.index(names[0])
    if names:
        raise UsageError(f"{source!r} could be {', '.join(names[:5])}: give more of its path")
    some = ", ".join(sources[:5]) + (", ..." if len(sources) > 5 else "")
    raise UsageError(f"{prefix} was not made from {source!r}; its inputs are {some}")


def _names(manifest: Manifest) -> list[str]:
    entries = (entry if isinstance(entry, dict) else {} for entry in manifest.inputs)
    return [str(entry.get("name", "?")) for entry in entries]
