"""``PREFIX.docs.parquet``, described in docs/format.md: a row for each document of a dataset.

Records that were left out have their rows in ``PREFIX.dropped.parquet``. The footer of either says
of which .bin it is, and the manifest has its size and checksum.
"""

from __future__ import annotations

import json
import os
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_128_intdigest

from tokpack import _core
from tokpack.errors import FormatError, InputError, needs_extra
from tokpack.files.mistaken import not_a_dataset
from tokpack.indexed.digests import checksum_of
from tokpack.indexed.lengths import by_part
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.stores import exists, head, identity, near, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from tokpack.indexed.digests import FileDigest

    Int64s = npt.NDArray[np.int64]

TABLE_SUFFIX = ".docs.parquet"
DROPPED_SUFFIX = ".dropped.parquet"
# Columns that every table has, in this order; kept ones follow.
COLUMNS = ("source", "line", "bytes", "tokens", "text_xxh3", "tokens_xxh3")
DROPPED_COLUMNS = ("source", "line", "reason")
EMPTY = "empty"  # the reason of a document without a token
ROW_GROUP = 1 << 16  # rows; the last group has fewer
VERSION = 1
NO_TOKENS = xxh3_128_intdigest(b"") >> 64  # the upper half of tokens_xxh3 of a document without
MARK = b"tokpack.table"  # a key of the footer's metadata

_MAGIC = b"PAR1"
_TAIL_BYTES = 1 << 16  # of the footer's end, where its metadata is
_OPEN = 8  # row groups
_ADVICE = (
    "`tokpack adopt` makes one from its tokens; to have lines and values of the input in it, "
    "encode with --keep or --trace"
)


def table_path(prefix: str | os.PathLike[str]) -> str:
    """Where the table of the documents of the dataset ``prefix`` lies."""
    return os.fsdecode(prefix) + TABLE_SUFFIX


def dropped_path(prefix: str | os.PathLike[str]) -> str:
    """Where the table of the records that were left out of the dataset ``prefix`` lies."""
    return os.fsdecode(prefix) + DROPPED_SUFFIX


def token_digests(tokens: npt.NDArray[Any], spans: Int64s) -> npt.NDArray[np.uint8]:
    """``tokens_xxh3`` of documents, uint8 [n, 16]: document i has the tokens of spans[i].

    They are hashed as int32, little endian, whatever the dtype of the dataset; those of a document
    that has others as int64, with a byte of 0 behind them.
    """
    return _core.token_digests(np.require(plain_ids(tokens), requirements=["C", "A"]), spans)


def plain_ids(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Token ids as the core compares them: uint16, uint32 or uint64, of this machine's byte order.

    Negative ones are the numbers of their bits.
    """
    if tokens.dtype.kind == "u" and tokens.dtype.itemsize in (2, 4, 8):
        return tokens.astype(tokens.dtype.newbyteorder("="), copy=False)
    if tokens.dtype.itemsize == 8:
        return tokens.astype(np.int64, copy=False).view(np.uint64)
    return tokens.astype(np.int32, copy=False).view(np.uint32)


def is_table(path: str | os.PathLike[str], mark: bytes = MARK) -> bool:
    """Whether a file is a table of documents or of dropped records: no other is replaced by one.

    Other tables have another ``mark`` in the metadata of their footer.
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
            # A key, as Thrift's compact protocol has it: its number, its length, its letters.
            return b"\x18%c%b\x18" % (len(mark), mark) in file.read()
    except OSError:
        return False


def table_metadata(binary: FileDigest) -> dict[bytes, bytes]:
    """The metadata of the tables of a dataset with such a .bin."""
    value = {"version": VERSION, "bin": checksum_of(binary)}
    return {MARK: json.dumps(value).encode()}


@cache
def import_parquet() -> Any:
    """``pyarrow`` with ``pyarrow.parquet``. UsageError that names the extra where it is missing."""
    with needs_extra("parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def table_paths(prefix: str | os.PathLike[str]) -> list[str]:
    """The tables of a dataset's shards, in order, as files of this machine.

    Of a dataset on a store they are copies, to be opened at once. A view has none of its own:
    ``DocumentTable`` has the rows of its documents. InputError for one, and where a shard has no
    table; FormatError where one is of another dataset: by its size, its rows, and the checksum of
    the .bin that its footer has. All its bytes are compared by ``tokpack verify`` alone.
    """
    prefix = prefix_of(prefix)
    prefixes = [prefix]
    if is_virtual(prefix):
        manifest = Manifest.load(prefix)
        if manifest.selection is not None:  # its rows would be those of other documents
            raise InputError(
                f"{prefix}: is a view, which has no table of its own: merge writes it out with one"
            )
        prefixes = [piece_prefix(prefix, piece) for piece in manifest.pieces or ()]
    return [table_file(one) for one in prefixes]


def has_table(prefix: str) -> bool:
    """Whether the manifest of the dataset ``prefix`` tells of a table.

    Of a virtual one or a view it is that of each dataset of which it is made.
    """
    if not is_virtual(prefix):
        manifest = Manifest.find(prefix)
        return manifest is not None and manifest.table is not None
    manifest = Manifest.load(prefix)
    pieces = manifest.pieces or ()
    return bool(pieces) and all(has_table(piece_prefix(prefix, piece)) for piece in pieces)


def table_file(prefix: str) -> str:
    """The table of one shard; as ``table_paths``."""
    path, manifest = table_path(prefix), Manifest.find(prefix)
    if manifest is None or manifest.table is None:
        if manifest is None and (what := not_a_dataset(prefix)):
            raise InputError(what)
        old = exists(f"{prefix}.trace")
        more = " (its .trace is of an earlier version)" if old else ""
        raise InputError(f"{prefix}: has no table of its documents{more}; {_ADVICE}")
    file = identity(path)
    if file is None:
        raise InputError(f"{path} is missing, of which {manifest_path(prefix)} tells; {_ADVICE}")
    if file.size != manifest.table["bytes"]:
        raise FormatError(
            f"{path}: {file.size} bytes, expected {manifest.table['bytes']}, as "
            f"{manifest_path(prefix)} says: the files do not belong together"
        )
    local = near(path)
    check_footer(local, manifest, manifest.documents + manifest.kept_empty, path)
    return local


def check_footer(local: str, manifest: Manifest, rows: int, name: str = "") -> Any:
    """The metadata of a table, which is of a dataset, or FormatError; ``name`` is for messages."""
    name = name or local
    metadata = read_footer(local, name)
    value = (metadata.metadata or {}).get(MARK)
    if value is None:
        raise FormatError(f"{name}: is a parquet file, and no table of tokpack")
    if value != table_metadata(manifest.bin)[MARK]:
        raise FormatError(f"{name}: is the table of another dataset; encode this one again")
    if metadata.num_rows != rows:
        raise FormatError(f"{name}: has {metadata.num_rows} rows, expected {rows}")
    return metadata


def within(numbers: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
    """Those of ascending numbers that are in [begin, end)."""
    if begin == end:
        return numbers[:0]
    first, last = np.array([begin, end - 1]).astype(numbers.dtype)  # which no search casts all to
    return numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last, side="right")]


def read_footer(local: str, name: str = "") -> Any:
    """The metadata of a parquet file. FormatError, with ``name``, where it is broken."""
    arrow = import_parquet()
    try:
        return arrow.parquet.read_metadata(local)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise FormatError(f"{name or local}: not a right parquet file: {error}") from None


class TableReader:
    """Rows of one table, by their numbers and by their lines; row groups are read when needed."""

    def __init__(self, local: str, name: str = "") -> None:
        arrow = import_parquet()
        self.name = name or local
        self._errors = (OSError, ValueError, arrow.ArrowException)
        try:
            self._file = arrow.parquet.ParquetFile(local)
        except self._errors as error:
            raise self._broken(error) from None
        metadata = self._file.metadata
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self._ends = [0]
        for count in counts:
            self._ends.append(self._ends[-1] + count)
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
        return tuple(name for name in self.schema.names if name not in COLUMNS)

    def is_null(self, column: str) -> bool:
        """Whether a column has no value at all, as the statistics of its row groups say."""
        metadata = self._file.metadata
        place = self.schema.get_field_index(column)
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(place).statistics
            rows = metadata.row_group(group).num_rows
            if statistics is None or not statistics.has_null_count or statistics.null_count < rows:
                return False
        return True

    def take(self, numbers: Int64s, columns: tuple[str, ...]) -> Any:
        """Rows by their numbers, int64 [n], in any order and with repeats, as an Arrow table.

        IndexError where they are not there.
        """
        arrow = import_parquet()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError(f"{self.name}: rows {numbers.min()} to {numbers.max()} of {len(self)}")
        nothing = self.schema.empty_table().select(list(columns))
        parts, order = [nothing], [np.zeros(0, np.int64)]
        for group, here, rows in by_part(self._ends, numbers):
            parts.append(self._group(group, columns).take(arrow.array(rows)))
            order.append(here)
        places = np.concatenate(order)
        joined = arrow.concat_tables(parts).unify_dictionaries()
        if (places[1:] > places[:-1]).all():
            return joined
        return joined.take(arrow.array(np.argsort(places)))

    def read(self, columns: Sequence[str]) -> Any:
        """All rows, with some columns, as an Arrow table."""
        try:
            return self._file.read(columns=list(columns))
        except self._errors as error:
            raise self._broken(error) from None

    def of_rows(self, column: str, rows: npt.NDArray[Any]) -> Iterator[tuple[Any, Int64s]]:
        """The values of a row group, and which of them ascending ``rows`` are of, with repeats.

        Groups without any are not read.
        """
        for group, (begin, end) in enumerate(pairwise(self._ends)):
            inside = within(rows, begin, end)
            if len(inside):
                yield self._read(group, (column,))[column], inside.astype(np.int64) - begin

    def column(self, name: str) -> Iterator[Any]:
        """A column of all rows, as Arrow arrays; more than a row group is never in memory."""
        for group in range(len(self._ends) - 1):
            yield from self._read(group, (name,))[name].chunks

    def find(self, source: str, line: int, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """The rows of a line of an input, each with its ``row``; groups without it are not read."""
        from pyarrow import compute

        matches: list[dict[str, Any]] = []
        for group in range(len(self._ends) - 1):
            if not self._may_have(group, source, line):
                continue
            table = self._group(group, columns)
            same: Any = compute
            is_line = same.equal(table["line"], line)
            if not same.any(is_line).as_py():
                continue
            numbers = is_line.to_numpy().nonzero()[0].tolist()
            for number in numbers:
                [row] = table.slice(number, 1).to_pylist()
                if row["source"] == source:
                    matches.append({**row, "row": self._ends[group] + number})
        return matches

    def _may_have(self, group: int, source: str, line: int) -> bool:
        metadata = self._file.metadata.row_group(group)
        for number, value in enumerate((source, line)):  # the first two of COLUMNS
            statistics = metadata.column(number).statistics
            if statistics is None or not statistics.has_min_max:
                continue
            if not statistics.min <= value <= statistics.max:
                return False
        return True

    def _read(self, group: int, columns: tuple[str, ...]) -> Any:
        try:
            return self._file.read_row_group(group, columns=list(columns), use_threads=False)
        except self._errors as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> FormatError:
        return FormatError(f"{self.name}: not a right table of documents: {error}")
