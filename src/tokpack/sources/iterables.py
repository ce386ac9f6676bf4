"""Documents of an iterable of this process: a stream that can be read only once, in segments.

The process of the run reads it, since the iterable may have threads, which no fork has; workers are
sent segments. A segment depends on the documents alone, so a stopped run goes on behind those that
it has, and compares what it passes over with their checksums.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import RAW_BYTES_KEPT, BadRecord, DocumentBatch
from tokpack.sources.columns import (
    DOCUMENT_BYTES,
    RowCutter,
)
from tokpack.sources.records import NoKeyError, joined, utf8_at, value_at
from tokpack.sources.rows import TEXT, WholeRecords, batch_with_rows, take
from tokpack.sources.values import ContentHash, as_text, compact, compact_rows, of_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.sources.base import Limits
    from tokpack.sources.rows import Columns

_UNCHANGING = (str, int, float, bytes, type(None))
_USUAL = (dict, str)  # types of documents whose text is taken without a call
_AT_ONCE = 64  # documents that are taken before the caller has its turn
_MUCH = 256 << 10  # of text for so many


@dataclass
class DocumentSegment:
    """A run of documents, as batches; ``line`` documents are before it. Lines count from its first.

    ``checksum`` is XXH3-128, in hex, of texts and values, however they are cut into batches.
    """

    line: int
    batches: list[DocumentBatch] = field(default_factory=list)
    records: int = 0
    weight: int = 0

    def __post_init__(self) -> None:
        self._content = ContentHash()

    def add(self, batch: DocumentBatch) -> None:
        """Add what comes next."""
        if not batch.records:
            return
        self.batches.append(batch)
        self.records += batch.records
        self.weight += batch.text_bytes + DOCUMENT_BYTES * batch.records
        content = self._content
        for key, documents in batch.documents.items():
            content.add_texts(key, np.diff(documents.spans), documents.data)
        for documents in islice(batch.documents.values(), 1):
            for name, values in documents.columns.items():
                content.add(f"column {name}", values)
        whole = batch.rows.whole if batch.rows is not None else []
        if isinstance(whole, list):
            content.update("rows", "", b"".join(_texts_of(batch)))
        else:
            for name, values in zip(whole.schema.names, whole.columns, strict=True):
                content.add(f"{name} {values.type}", values)

    @property
    def checksum(self) -> str:
        """What distinguishes these documents from others."""
        digest = xxhash.xxh3_128(self._content.digest())
        for batch in self.batches:
            for record in batch.bad:
                digest.update(f"{record.line} {record.reason}".encode())
        return digest.hexdigest()


class DocumentReader:
    """Reads an iterable: str or mappings, or with ``as_tables`` Arrow tables or record batches.

    ``names`` are those of all columns, where the tables have only some of them.
    """

    def __init__(
        self,
        name: str,
        documents: Iterable[Any],
        *,
        as_tables: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        self._name, self.names = name, names
        self._documents = documents
        self._as_tables = as_tables
        self._segment = DocumentSegment(0)  # that is read

    def first(self, count: int, size: int) -> Any:
        """The first documents, ``count`` or about ``size`` bytes, or of the first table; kept."""
        documents, weight = iter(self._documents), 0
        taken: list[Any] = []
        for document in documents:
            taken.append(document if self._as_tables else copied(document))
            weight += 0 if self._as_tables else _weight_of(document)
            if self._as_tables or len(taken) >= count or weight >= size:
                break
        self._documents = chain(taken, documents)
        if self._as_tables:
            return taken[0].slice(0, count) if taken else None
        return [record_of_document(one) for one in taken if isinstance(one, (str, Mapping))]

    def segments(
        self,
        keys: Sequence[str],
        segment_bytes: int,
        limits: Limits,
        most: int | None,
        columns: Columns = (),
    ) -> Iterator[DocumentSegment | None]:
        """The segments of about ``segment_bytes``, at least one; None now and then between them.

        Of ``most`` documents, where that is not None, with the values of ``columns``. What the
        iterable raises is passed on.
        """
        self._columns = columns
        read = self._tables if self._as_tables else self._objects
        for batch in read(keys, segment_bytes, limits, most):
            if batch is None:
                yield None
                continue
            segment = self._segment
            segment.add(batch)
            if segment.weight >= segment_bytes:
                self._segment = DocumentSegment(segment.line + segment.records)
                yield segment
        if self._segment.records or not self._segment.line:
            yield self._segment

    def _objects(
        self, keys: Sequence[str], segment_bytes: int, limits: Limits, most: int | None
    ) -> Iterator[DocumentBatch | None]:
        """Batches that end where segments do; None between two."""
        documents = islice(iter(self._documents), most)
        gathered, count = self._gathered(keys, limits), 1
        while (size := gathered.add(islice(documents, count))) is not None:
            # Not more than a few megabytes are taken at once, however long documents are.
            count = min(2 * count, _AT_ONCE) if size < _MUCH else max(count // 2, 1)
            room = min(limits.block_bytes, segment_bytes - self._segment.weight)
            if gathered.weight >= room:
                yield gathered.batch(self._segment.records)
                gathered = self._gathered(keys, limits)
            yield None
        yield gathered.batch(self._segment.records)

    def _gathered(self, keys: Sequence[str], limits: Limits) -> _PendingDocuments:
        if isinstance(self._columns, WholeRecords):
            return _GatheredRecords(limits.max_document_bytes, self._columns)
        return _PendingDocuments(keys, limits.max_document_bytes, self._columns)

    def _tables(
        self, keys: Sequence[str], segment_bytes: int, limits: Limits, most: int | None
    ) -> Iterator[DocumentBatch | None]:
        """Batches that end where segments do; None between two."""
        left = most

        def place() -> tuple[int, int]:
            segment = self._segment
            return segment.records, min(limits.block_bytes, segment_bytes - segment.weight)

        for table in self._documents:
            cutter = RowCutter(
                self._name, table.schema, keys, limits, self._columns, all_names=self.names
            )
            chosen = table.select(cutter.names)
            for record_batch in chosen.to_batches() if hasattr(chosen, "to_batches") else [chosen]:
                rows = record_batch.num_rows if left is None else min(left, record_batch.num_rows)
                left = None if left is None else left - rows
                for batch in cutter.cut(record_batch.slice(0, rows), place):
                    yield _compact(batch)
                    yield None
            if left == 0:
                return


class _PendingDocuments:
    """Documents that come a few at a time, on their way to a batch."""

    def __init__(
        self, keys: Sequence[str], max_document_bytes: int, columns: Sequence[str] = ()
    ) -> None:
        self._columns = tuple(columns)
        self._values: list[Any] = []  # of these, document by document
        self._has_nested = any("." in name for name in columns)
        self._texts: dict[str, list[bytes]] = {key: [] for key in keys}
        self._max_document_bytes = max_document_bytes
        self._bad: list[BadRecord] = []
        self._records = 0
        self._bytes = 0

    @property
    def weight(self) -> int:
        """As that of a segment."""
        return self._bytes + DOCUMENT_BYTES * self._records

    def add(self, documents: Iterable[Any]) -> int | None:
        """Add some documents; the bytes of their texts, None where there are no more.

        Each text is taken when its document comes: the next one may be the same object.
        """
        before, size, most = self._records, 0, self._max_document_bytes
        key = next(iter(self._texts)) if len(self._texts) == 1 else None
        texts = next(iter(self._texts.values()))
        for document in documents:
            kind, text = type(document), None
            if key is not None and kind in _USUAL:
                try:
                    text = str.encode(document if kind is str else document[key])
                except (LookupError, TypeError, ValueError):
                    text = None  # a bad record, or a nested key
            if text is not None and len(text) <= most:
                texts.append(text)
                size += len(text)
                if self._columns:
                    self._add_values(document)
            else:
                size += self._add_one(document)
            self._records += 1
        self._bytes += size
        return size if self._records > before else None

    def _add_one(self, document: Any) -> int:
        """Add a document of any type, or a bad record; the bytes of its texts."""
        try:
            row = [_encoded(document, key, len(self._texts)) for key in self._texts]
            if max(map(len, row)) > self._max_document_bytes:
                raise ValueError(f"a document of more than {self._max_document_bytes} bytes")
        except UsageError:
            raise
        except ValueError as error:
            there = error.keys if isinstance(error, NoKeyError) else None
            self._bad.append(BadRecord(self._records, str(error), _beginning(document), there))
            return 0
        for texts, text in zip(self._texts.values(), row, strict=True):
            texts.append(text)
        self._add_values(document)
        return sum(map(len, row))

    def _add_values(self, document: Any) -> None:
        if type(document) is dict and not self._has_nested:
            self._values += map(copied, map(document.get, self._columns))
        else:
            self._values += [copied(value_at(document, name)) for name in self._columns]

    def batch(self, line: int) -> DocumentBatch:
        """All of them, of which the first has number ``line``."""
        lines = np.arange(line, line + self._records, dtype=np.int64)
        if self._bad:
            lines = np.delete(lines, [record.line for record in self._bad])
        for record in self._bad:
            record.line += line
        documents = {key: joined(texts, lines) for key, texts in self._texts.items()}
        columns = {
            name: of_objects(self._values[number :: len(self._columns)])
            for number, name in enumerate(self._columns)
        }
        for one in documents.values():
            one.columns = columns
        return DocumentBatch(documents, self._bad, self._records, self._records, 0, self._bytes)


class _GatheredRecords(_PendingDocuments):
    """Whole documents, whose texts nobody knows yet."""

    def __init__(self, max_document_bytes: int, whole: WholeRecords) -> None:
        super().__init__((), max_document_bytes)
        self._whole = whole
        self._taken: list[dict[str, Any]] = []

    def add(self, documents: Iterable[Any]) -> int | None:
        before, size = self._records, 0
        for document in documents:
            if isinstance(document, (str, Mapping)):
                self._taken.append(record_of_document(document))
                size += _weight_of(document)
            else:
                reason = _not_a_document(document)
                self._bad.append(BadRecord(self._records, reason, _beginning(document)))
            self._records += 1
        self._bytes += size
        return size if self._records > before else None

    def batch(self, line: int) -> DocumentBatch:
        lines = np.arange(line, line + self._records, dtype=np.int64)
        lines = np.delete(lines, [record.line for record in self._bad])
        return batch_with_rows(super().batch(line), self._taken, lines, self._whole)


def _texts_of(batch: DocumentBatch) -> list[bytes]:
    """The lines of a batch's records in JSON; those that have none become bad records."""
    rows, texts = batch.rows, list[bytes]()
    if rows is None:
        return texts
    kept = np.ones(len(rows.whole), np.bool_)
    for i, one in enumerate(rows.whole):
        try:
            texts.append(as_text(one) + b"\n")
        except InputError as error:
            kept[i] = False
            batch.bad.append(BadRecord(int(rows.lines[i]), str(error), b""))
    batch.rows = take(rows, kept)
    return texts


def _weight_of(value: Any) -> int:
    """About how many bytes a value of a document has as text."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_weight_of, value)) + sum(map(_weight_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_weight_of, value))
    return int(getattr(value, "nbytes", 8))


def record_of_document(document: Any) -> dict[str, Any]:
    """A document as a record of its own."""
    record: dict[str, Any] = {TEXT: document} if isinstance(document, str) else copied(document)
    return record


def copied(value: Any) -> Any:
    """A value that stays as it is: the next document may be the same object, changed inside."""
    if isinstance(value, _UNCHANGING):
        return value
    try:
        if isinstance(value, Mapping):
            return {key: copied(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [copied(one) for one in value]
    except RecursionError:
        raise InputError("a document is nested too deeply to be read") from None
    try:
        return copy.copy(value)  # an array, or another container
    except TypeError:
        kind = type(value).__name__
        raise InputError(
            f"a document has a value of the type {kind}, which nobody can copy"
        ) from None


def _encoded(document: Any, key: str, keys: int) -> bytes:
    """The text of a document, UTF-8. ValueError with the reason where it has none."""
    if isinstance(document, str):
        if keys > 1:
            raise UsageError("documents that are str have no keys; give mappings, or one key")
        return utf8_at({key: document}, key)
    if not isinstance(document, Mapping):
        raise ValueError(_not_a_document(document))
    return utf8_at(document, key)


def _not_a_document(document: Any) -> str:
    kind = type(document).__name__
    reason = f"the document is of type {kind}, not a str or a mapping of keys to texts"
    # As of a row of sqlite3, and a Series of pandas.
    return f"{reason}: give dict(row)" if hasattr(document, "keys") else reason


def _beginning(document: Any) -> bytes:
    """The first bytes of a document that is bad, as people may read it."""
    text = document if isinstance(document, str) else repr(document)
    return text[:RAW_BYTES_KEPT].encode("utf-8", "backslashreplace")[:RAW_BYTES_KEPT]


def _compact(batch: DocumentBatch) -> DocumentBatch:
    """The batch with the bytes that it has alone: it is sent to a worker."""
    for documents in batch.documents.values():
        spans, data = documents.spans, documents.data
        begin, end = (int(spans[0, 0]), int(spans[-1, 1])) if len(spans) else (0, 0)
        documents.data, documents.spans = data[begin:end], spans - begin
        documents.columns = {name: compact(one) for name, one in documents.columns.items()}
    if batch.rows is not None and not isinstance(batch.rows.whole, list):
        rows = batch.rows
        rows.whole, rows.columns = compact_rows(rows.whole), compact_rows(rows.columns)
    return batch
