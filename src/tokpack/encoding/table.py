"""The tables of a run: rows of documents, written by workers, and of records left out."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset.manifest import write_digested
from tokpack.dataset.table import (
    EMPTY,
    array_of,
    array_of_text,
    dropped_schema,
    import_parquet,
    table_chunks,
    table_metadata,
    table_schema,
    token_digests,
)
from tokpack.encoding.folder import open_own
from tokpack.encoding.kept import unpack
from tokpack.encoding.piece import LINES, REJECTS
from tokpack.errors import OutputError, worded
from tokpack.storage.disk import cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.dataset import FileDigest
    from tokpack.encoding.piece import Pieces
    from tokpack.sources import BadRecord, Documents


# What a worker writes for a document; ``line`` counts from the start of its part or segment.
ROW = np.dtype(
    [("line", "<i8"), ("bytes", "<i8"), ("tokens", "<i8"), ("text", "V16"), ("ids", "V16")]
)
_CHUNK = 1 << 16  # rows that are read at once


# -- what a worker writes ----------------------------------------------------------------------


def tokens_of_each(lengths: npt.NDArray[Any], sequences: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The tokens of each document, the sum of ``lengths`` over its ``sequences``; may be 0."""
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return np.diff(ends[np.concatenate(([0], np.cumsum(sequences)))])


def rows_of(
    documents: Documents, ids: npt.NDArray[Any], tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:
    """The rows, ROW [n], of documents whose tokens follow each other in ``ids``."""
    spans = documents.spans
    rows = np.empty(len(spans), ROW)
    rows["line"] = documents.lines
    rows["bytes"] = spans[:, 1] - spans[:, 0]
    rows["tokens"] = tokens
    rows["text"] = _core.text_digests(documents.data.data, spans).view("V16")[:, 0]
    ends = np.cumsum(tokens)
    digests = token_digests(ids, np.stack((ends - tokens, ends), axis=1))
    rows["ids"] = digests.view("V16")[:, 0]
    return rows


# -- what the commit writes --------------------------------------------------------------------


def write_table(
    pieces: Pieces, index: int, path: str, binary: FileDigest, types: dict[str, str]
) -> FileDigest:
    """Write the table of key number ``index``; ``types`` are those of the kept columns.

    Raises OutputError.
    """
    chunks = table_chunks(
        table_schema(types), _tables(pieces, index, types), table_metadata(binary)
    )
    return write_digested(path, chunks)


def write_dropped(
    pieces: Pieces,
    index: int,
    path: str,
    binary: FileDigest,
    rejected: Iterable[tuple[int, int, str]],
) -> FileDigest:
    """Write the table of the records that key number ``index`` has left out.

    ``rejected`` are (input, line from 1, reason) of the bad ones, in order. Raises OutputError.
    """
    tables = _dropped(pieces, index, rejected)
    return write_digested(path, table_chunks(dropped_schema(), tables, table_metadata(binary)))


def _tables(pieces: Pieces, index: int, types: dict[str, str]) -> Iterator[Any]:
    """The rows of all documents, as Arrow tables."""
    arrow = import_parquet()
    job = pieces.job
    names = [source.name for source in job.sources]
    track = job.path(job.folder.track(job.options.keys[index], "kept"))
    columns = _Columns(track, list(types.values())) if types else None
    digest = arrow.binary(16)
    for source, rows in _rows(pieces, index):
        of_name = array_of(np.zeros(len(rows), np.int32))
        arrays = [arrow.DictionaryArray.from_arrays(of_name, array_of_text(names[source]))]
        arrays += [array_of(rows[name]) for name in ("line", "bytes", "tokens")]
        arrays += [array_of(rows[name], digest) for name in ("text", "ids")]
        arrays += columns.take(len(rows)) if columns else []
        yield arrow.table(arrays, names=table_schema(types).names)
    if columns:
        columns.close()


class _Columns:
    """Reads the kept values of a run, in the order of its documents."""

    def __init__(self, path: str, types: Sequence[str]) -> None:
        arrow = import_parquet()
        self._path = path
        with cannot_write(path):
            self._file = arrow.OSFile(path) if os.path.getsize(path) else None
        self._types = types
        self._batches = unpack(self._file, types) if self._file else iter(())
        self._left: list[Any] = []  # values of the last batch not taken yet

    def take(self, rows: int) -> list[Any]:
        """The next ``rows`` values of each column, in one chunk per batch."""
        arrow = import_parquet()
        chunks: list[list[Any]] = [[] for _ in self._types]
        while rows:
            if not self._left or not len(self._left[0]):
                try:
                    self._left = next(self._batches)
                except (StopIteration, arrow.ArrowException) as error:
                    raise OutputError(f"{self._path} is cut off; start from scratch") from error
            count = min(rows, len(self._left[0]))
            for column, array in zip(chunks, self._left, strict=True):
                column.append(array.slice(0, count))
            self._left = [array.slice(count) for array in self._left]
            rows -= count
        return [arrow.chunked_array(column) for column in chunks]

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


def _rows(pieces: Pieces, index: int) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
    """Pairs of an input and rows of its documents, in order; their lines count from 1."""
    job = pieces.job
    column = job.key_column(index, "documents")
    empty = job.key_column(index, "empty") if job.options.empty == "document" else None
    path = job.path(job.folder.track(job.options.keys[index], "rows"))
    with cannot_write(path), open(path, "rb") as file:
        for source, before, counts in pieces.rows():
            left = counts[column] + (counts[empty] if empty is not None else 0)
            while left:
                rows = np.fromfile(file, ROW, min(left, _CHUNK))
                if not rows.size:
                    raise OutputError(f"{path} is cut off; start from scratch")
                left -= rows.size
                rows["line"] += 1 + before
                yield source, rows


def _dropped(pieces: Pieces, index: int, rejected: Iterable[tuple[int, int, str]]) -> Iterator[Any]:
    """The rows of records that were left out, in the order of inputs and lines."""
    arrow = import_parquet()
    job = pieces.job
    names = [source.name for source in job.sources]
    path = job.path(job.folder.track(job.options.keys[index], "empties"))
    column = job.key_column(index, "empty")
    bad = iter(rejected)
    following = next(bad, None)
    with cannot_write(path), open(path, "rb") as file:
        for source, before, counts in pieces.rows():
            count = counts[column] if job.options.empty == "skip" else 0
            lines = np.fromfile(file, "<i8", count)
            if lines.size != count:
                raise OutputError(f"{path} is cut off; start from scratch")
            rows = [(line, EMPTY) for line in (lines + 1 + before).tolist()]
            end = before + counts[LINES]
            while following is not None and following[0] == source and following[1] <= end:
                rows.append(following[1:])
                following = next(bad, None)
            if rows:
                rows.sort()
                columns = [[names[source]] * len(rows), *map(list, zip(*rows, strict=True))]
                yield arrow.table(dict(zip(dropped_schema().names, columns, strict=True)))


# The bad records of a piece, and of a run in input order: one JSON object per line.

_MALFORMED = "malformed record"


def lines_of(bad: Sequence[BadRecord], unfit: Sequence[BadRecord] = ()) -> bytes:
    """Bad records as in the track of a piece; lines count from the piece's first.

    ``unfit`` are conversations left out of the dataset, which are not bad records.
    """
    records = [_entry(record) for record in bad]
    records += [{**_entry(record), "left_out": True} for record in unfit]
    records.sort(key=itemgetter("line"))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _entry(record: BadRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {"line": record.line, "reason": worded(record.reason)}
    if record.kind:
        entry["kind"] = record.kind
    entry["record"] = record.raw.decode("utf-8", "replace")
    if entry["record"].encode() != record.raw:
        entry["base64"] = base64.b64encode(record.raw).decode()
    return entry


def reject_lines(pieces: Pieces) -> Iterator[bytes]:
    """The file of all bad records of a run, line by line, in input order."""
    for source, record in rejects(pieces):
        name = pieces.job.sources[source].name
        yield json.dumps({"source": name, **record}).encode() + b"\n"


def rejected_lines(pieces: Pieces) -> Iterator[tuple[int, int, str]]:
    """(input, line from 1, reason) of each bad record, in input order."""
    for source, record in rejects(pieces):
        if "left_out" not in record:
            yield source, record["line"], record["reason"]


def reject_kinds(pieces: Pieces) -> Counter[str]:
    """How many conversations are left out of the dataset, by kind of reason."""
    return Counter(record.get("kind", _MALFORMED) for _, record in rejects(pieces))


def rejects(pieces: Pieces) -> Iterator[tuple[int, dict[str, Any]]]:
    """(input, bad record with its line, from 1), in input order."""
    path, columns = pieces.job.path(REJECTS), pieces.job.reject_columns
    with cannot_write(path), open(open_own(path, os.O_RDONLY), "rb") as file:
        for source, before, counts in pieces.rows():
            for _ in range(sum(counts[column] for column in columns)):
                try:
                    record = json.loads(file.readline())
                except ValueError:
                    raise OutputError(f"{path} is damaged; start from scratch") from None
                yield source, {**record, "line": before + record["line"] + 1}
