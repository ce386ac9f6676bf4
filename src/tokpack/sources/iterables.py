"""Documents of an iterable in this process: a stream that can be read only once, in segments.

The run's process reads it, because the iterable may use threads, which a forked worker would not
have; workers are sent segments. The ends of segments depend only on the documents, so that a
resumed run can skip the segments that it has, after comparing their checksums.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash

from tokpack.display import brief
from tokpack.errors import InputError, UsageError, option
from tokpack.sources.base import RAW_BYTES_KEPT, BadRecord, DocumentBatch, Source
from tokpack.sources.columns import (
    DOCUMENT_BYTES,
    RowCutter,
    check_columns,
    dataset_source,
    table_source,
)
from tokpack.sources.find import HUB_SCHEME, has_magic, matching, no_such
from tokpack.sources.records import NoKeyError, documents_of, utf8_at, value_at
from tokpack.sources.rows import TEXT, WholeRecords, batch_with_rows, no_column
from tokpack.sources.values import (
    ContentHash,
    as_text,
    compact,
    compact_rows,
    of_objects,
    root_of,
    table_of,
)
from tokpack.storage import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.sources.base import Limits
    from tokpack.sources.rows import Columns


_UNCHANGING = (str, int, float, bytes, type(None))
_USUAL = (dict, str)  # types of documents with a fast path
_AT_ONCE = 64  # documents taken before the caller gets a turn
_MUCH = 256 << 10  # bytes of text; with more, fewer documents are taken at once


@dataclass
class DocumentSegment:
    """Consecutive documents, as batches, with ``line`` documents before them.

    Lines in the batches count from the first document of the segment. ``checksum`` is XXH3-128, in
    hex, of texts and values, and does not depend on batches.
    """

    line: int
    batches: list[DocumentBatch] = field(default_factory=list)
    records: int = 0
    weight: int = 0

    def __post_init__(self) -> None:
        self._content = ContentHash()

    def add(self, batch: DocumentBatch) -> None:
        """Add the next batch."""
        if not batch.records:
            return
        self.batches.append(batch)
        self.records += batch.records
        self.weight += batch.text_bytes + DOCUMENT_BYTES * batch.records
        content, whole = self._content, batch.first.whole
        if whole is None:
            for key, documents in batch.documents.items():
                content.add_texts(key, np.diff(documents.spans), documents.data)
            for name, values in batch.first.columns.items():
                content.add(f"column {name}", values)
        if isinstance(whole, list | None):
            content.update("rows", "", b"".join(_texts_of(batch)))
        else:
            for name, values in zip(whole.schema.names, whole.columns, strict=True):
                content.add(f"{name} {values.type}", values)

    @property
    def checksum(self) -> str:
        """A checksum that differs for other documents."""
        digest = xxhash.xxh3_128(self._content.digest())
        for batch in self.batches:
            for record in batch.bad:
                digest.update(f"{record.line} {record.reason}".encode())
        return digest.hexdigest()


class DocumentReader:
    """Reads an iterable: str or mappings, or with ``as_tables`` Arrow tables or record batches.

    ``names`` are those of all columns, if the tables have only some of them.
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
        self._segment = DocumentSegment(0)  # being read

    def first(self, count: int, size: int) -> Any:
        """The first documents, up to ``count`` or about ``size`` bytes, or rows of the first table.

        They are kept, and read again with the others.
        """
        documents, weight = iter(self._documents), 0
        taken: list[Any] = []
        for document in documents:
            # The iterable may reuse and change the object for its next document.
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
        """The segments, each of about ``segment_bytes``, at least one; with None in between.

        At each None the caller gets a turn, to serve its workers. Only the first ``most``
        documents are read, unless that is None, with the values of ``columns``. Errors of the
        iterable are passed on.
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
            # Take so many at once that they have at most a few megabytes.
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
    """Documents that are taken a few at a time, until they are enough for a batch."""

    def __init__(
        self, keys: Sequence[str], max_document_bytes: int, columns: Sequence[str] = ()
    ) -> None:
        self._columns = tuple(columns)
        self._values: list[Any] = []  # values of these columns, document by document
        self._has_nested = any("." in name for name in columns)
        self._texts: dict[str, list[bytes]] = {key: [] for key in keys}
        self._max_document_bytes = max_document_bytes
        self._bad: list[BadRecord] = []
        self._records = 0
        self._bytes = 0

    @property
    def weight(self) -> int:
        """The weight of the documents so far, as a segment counts it."""
        return self._bytes + DOCUMENT_BYTES * self._records

    def add(self, documents: Iterable[Any]) -> int | None:
        """Add some documents. Returns the bytes of their texts, or None if there are no more.

        The text is taken immediately, because the next document may be the same object.
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
                    text = None  # a bad record, or a nested key: ``_add_one`` will see
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
        """Add a document of any type, or a bad record. Returns the bytes of its texts."""
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
        """All of them as a batch; the first has number ``line``."""
        lines = np.arange(line, line + self._records, dtype=np.int64)
        if self._bad:
            lines = np.delete(lines, [record.line for record in self._bad])
        for record in self._bad:
            record.line += line
        columns = {
            name: of_objects(self._values[number :: len(self._columns)])
            for number, name in enumerate(self._columns)
        }
        documents = {key: documents_of(texts, lines, columns) for key, texts in self._texts.items()}
        return DocumentBatch(documents, self._bad, self._records, self._records, 0, self._bytes)


class _GatheredRecords(_PendingDocuments):
    """Whole documents, from which ``where``, ``map`` or a template will make texts."""

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
    """The lines of a batch's records in JSON; records that have no JSON form become bad ones."""
    texts, wrong = list[bytes](), dict[int, str]()
    kept = np.ones(len(batch.first), np.bool_)
    for i, one in enumerate(batch.first.whole or ()):
        try:
            texts.append(as_text(one) + b"\n")
        except InputError as error:
            kept[i], wrong[i] = False, str(error)
    batch.keep(kept, wrong)
    return texts


def _weight_of(value: Any) -> int:
    """About the bytes that a value of a document has as text."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_weight_of, value)) + sum(map(_weight_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_weight_of, value))
    return int(getattr(value, "nbytes", 8))


def record_of_document(document: Any) -> dict[str, Any]:
    """A document as a record, independent of later changes of the document."""
    record: dict[str, Any] = {TEXT: document} if isinstance(document, str) else copied(document)
    return record


def copied(value: Any) -> Any:
    """A copy of a value: the next document may be the same object with other values."""
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
        return copy.copy(value)  # for instance an array
    except TypeError:
        kind = type(value).__name__
        raise InputError(
            f"a document has a value of the type {kind}, which cannot be copied"
        ) from None


def _encoded(document: Any, key: str, keys: int) -> bytes:
    """The text of a document, UTF-8. ValueError with the reason if it has none."""
    if isinstance(document, str):
        if keys > 1:
            raise UsageError("documents of type str have no keys; give mappings, or one key")
        return utf8_at({key: document}, key)
    if not isinstance(document, Mapping):
        raise ValueError(_not_a_document(document))
    return utf8_at(document, key)


def _not_a_document(document: Any) -> str:
    kind = type(document).__name__
    reason = f"the document is of type {kind}, not a str or a mapping of keys to texts"
    # A row of sqlite3, or a Series of pandas, has keys but is not a mapping.
    return f"{reason}: give dict(row)" if hasattr(document, "keys") else reason


def _beginning(document: Any) -> bytes:
    """The first bytes of a bad document, in a form that people can read."""
    text = document if isinstance(document, str) else repr(document)
    return text[:RAW_BYTES_KEPT].encode("utf-8", "backslashreplace")[:RAW_BYTES_KEPT]


def _compact(batch: DocumentBatch) -> DocumentBatch:
    """The batch with buffers of only its own bytes, to be sent to a worker."""
    for documents in batch.documents.values():
        spans, data = documents.spans, documents.data
        begin, end = (int(spans[0, 0]), int(spans[-1, 1])) if len(spans) else (0, 0)
        documents.data, documents.spans = data[begin:end], spans - begin
        documents.columns = {name: compact(one) for name, one in documents.columns.items()}
        if not isinstance(documents.whole, list | None):
            documents.whole = compact_rows(documents.whole)
    return batch


# The inputs of ``tokpack.encode`` in Python become names of files, or a source.
#
# A str, a path, or a list or tuple of these always means names of files. A table or dataset is read
# in place. Any other iterable gives documents. No library is imported to recognize an object: if a
# library is not loaded, the object cannot be of its classes.

_LISTS = (list, tuple)
_NAMES = (str, os.PathLike)
_TAKEN = (
    "give names of files, texts=[...], an iterable of str or of mappings, a datasets.Dataset, a "
    "pyarrow Table, RecordBatchReader or Dataset, or a DataFrame"
)


class ArrowStream(Protocol):
    """An object that gives its rows as Arrow: a pyarrow Table, a DataFrame of polars."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, as the Arrow PyCapsule interface defines it."""


def in_process(
    inputs: Any,
    keys: Sequence[str],
    resume_key: str | None = None,
    columns: Columns | None = (),
    texts: Any = None,
) -> Source | tuple[str, ...]:
    """The source for an object of this process, or the names of files if it names them.

    ``texts`` are documents in the place of ``inputs``. ``columns`` are other columns to read, if
    they exist (None: all), or whole records, which need not have ``keys``. ``resume_key``
    identifies the content of an iterable, which can be read only once. UsageError for any other
    object, InputError if a table lacks a column of ``keys``, or it is not text.
    """
    if texts is not None:
        if inputs is not None:
            raise UsageError(f"inputs and {option('texts')} are both given: keep one of them")
        return _texts(texts, resume_key)
    if isinstance(inputs, _NAMES):
        return _names([inputs])
    if callable(inputs) and hasattr(inputs, "__qualname__"):
        name = inputs.__qualname__
        raise UsageError(f"inputs is the function {name}: call it, as in encode({name}(), ...)")
    if isinstance(inputs, bytes) or hasattr(inputs, "read"):
        raise UsageError(f"inputs is {brief(inputs)}: {_TAKEN}")
    if isinstance(inputs, (set, frozenset)):
        raise UsageError("inputs is a set, which has no order: give a list, such as sorted(...)")
    if isinstance(inputs, _LISTS) and any(isinstance(one, _NAMES) for one in inputs or [""]):
        return _names(inputs)
    return (
        _hugging_face(inputs, keys, resume_key, columns)
        or _arrow_files(inputs)
        or _table(inputs, keys, resume_key, columns)
        or _iterable(inputs, resume_key)
    )


def _names(inputs: Iterable[Any]) -> tuple[str, ...]:
    for one in inputs:
        if not isinstance(one, _NAMES):
            raise UsageError(
                f"a list of file names has {brief(one)} in it; give texts as texts=[...], "
                "other documents as iter([...])"
            )
    names = tuple(map(os.fspath, inputs))
    for name in names:
        if not _is_name(name):
            raise InputError(f"{no_such(name)}; give texts as texts=[...]")
    return names


def _is_name(text: str) -> bool:
    """Whether a text names inputs: files that are there, a list, a pattern, what is elsewhere."""
    parts = (text, *map(str.strip, text.split(",")))
    is_there = text == "-" or text.startswith(("@", HUB_SCHEME)) or any(map(_is_input, parts))
    return is_there or bool(has_magic(text) and matching(text))


def _texts(texts: Any, resume_key: str | None) -> Source:
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise UsageError(f"{option('texts')} is {brief(texts)}; it must be an iterable of str")
    return _stream("documents", texts, resume_key)


def _is_a(value: Any, module: str, *names: str) -> bool:
    """Whether it is an object of one of these classes of a module, if loaded."""
    loaded = sys.modules.get(module)
    classes = tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
    return isinstance(value, classes)


def _hugging_face(
    value: Any, keys: Sequence[str], resume_key: str | None, columns: Columns | None
) -> Source | None:
    if _is_a(value, "datasets", "DatasetDict", "IterableDatasetDict"):
        if len(value) == 1:
            [only] = value.values()
            return _hugging_face(only, keys, resume_key, columns)
        splits = ", ".join(map(repr, value))
        raise UsageError(
            f"a dict of datasets has the splits {splits}: give one of them, data[...], or all as "
            "one, datasets.concatenate_datasets(list(data.values()))"
        )
    if _is_a(value, "datasets", "Dataset"):
        return dataset_source(value, keys, columns)
    if not _is_a(value, "datasets", "IterableDataset"):
        return None
    # If the dataset has tables, these are a hundred times as fast; otherwise it would make them.
    as_tables = bool(getattr(getattr(value, "_ex_iterable", None), "iter_arrow", None))
    documents = value.with_format("arrow").iter(batch_size=1000) if as_tables else value
    return _stream("datasets", documents, resume_key, as_tables=as_tables)


def _arrow_files(value: Any) -> tuple[str, ...]:
    """The files of a pyarrow Dataset, if it is all of their rows; () for any other object."""
    if not _is_a(value, "pyarrow.dataset", "FileSystemDataset") or value._scan_options:
        return ()
    is_local = _is_a(value.filesystem, "pyarrow.fs", "LocalFileSystem")
    is_read = _is_a(value.format, "pyarrow.dataset", "ParquetFileFormat", "IpcFileFormat")
    is_whole = is_local and is_read and all(map(_is_whole, value.get_fragments()))
    return tuple(value.files) if is_whole else ()


def _is_whole(fragment: Any) -> bool:
    """Whether a fragment of a pyarrow Dataset has all row groups of its file."""
    if not _is_a(fragment, "pyarrow.dataset", "ParquetFileFragment"):
        return True
    chosen = [group.id for group in fragment.row_groups]
    return chosen == list(range(fragment.metadata.num_row_groups))


def _table(
    value: Any, keys: Sequence[str], resume_key: str | None, columns: Columns | None
) -> Source | None:
    """The source for a table, or for a stream of tables; None for anything else."""
    if _is_a(value, "polars", "LazyFrame"):
        raise UsageError("a LazyFrame has no rows yet: give the result of its collect()")
    if _is_a(value, "pyarrow", "Array", "ChunkedArray"):
        raise UsageError("inputs is an Arrow column: give it as pyarrow.table({'text': column})")
    is_pandas, is_polars = (_is_a(value, name, "DataFrame") for name in ("pandas", "polars"))
    is_dataset = _is_a(value, "pyarrow.dataset", "Dataset")
    if not is_dataset and (
        not (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"))
        or len(getattr(value, "shape", (0, 0))) == 1  # a single column is read as an iterable
    ):
        return None
    try:
        import pyarrow
    except ImportError as error:
        raise InputError("a table needs a package: pip install 'tokpack[parquet]'") from error
    is_whole = columns is None or isinstance(columns, WholeRecords)
    named = () if columns is None or isinstance(columns, WholeRecords) else columns
    all_names: Sequence[str] | None = None  # if only some columns are read
    if is_dataset:
        all_names = value.schema.names
        if not is_whole:
            check_columns("table", value.schema, keys)
        roots = (root_of(one, value.schema) for one in (*keys, *named))
        chosen = list(dict.fromkeys(filter(None, roots)))
        value = value.scanner(columns=None if is_whole else chosen).to_reader()
    if not hasattr(value, "__len__"):
        reader = pyarrow.RecordBatchReader.from_stream(value)
        return _stream("table", reader, resume_key, as_tables=True, names=all_names)
    if (is_pandas or is_polars) and not is_whole:
        all_names = list(map(str, value.columns))
        for key in keys:
            if not {key, key.partition(".")[0]} & {*value.columns}:
                raise no_column("table", key, all_names)
        asked_for = {name for one in (*keys, *named) for name in (one, one.partition(".")[0])}
        # Do not convert other columns: that takes time, and may fail.
        value = value[[name for name in value.columns if name in asked_for]]
    try:
        table = table_of(value)
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        names = ", ".join(("of it",) if is_whole else keys)
        raise InputError(
            f"table: the columns {names} cannot be converted to Arrow ({error}); give the "
            "documents one by one, iter(table['text']), to find or skip the bad ones"
        ) from error
    return table_source(table, keys, columns=columns, names=all_names)


def _iterable(value: Any, resume_key: str | None) -> Source | tuple[str, ...]:
    if isinstance(value, Mapping):
        raise UsageError("inputs is a mapping, which is one document: give a list of them")
    if not isinstance(value, Iterable):
        raise UsageError(f"inputs is {brief(value)}: {_TAKEN}")
    documents = iter(value)
    begin = list(islice(documents, 1))
    first = begin[0] if begin else None
    documents = chain(begin, documents)
    if isinstance(first, os.PathLike):  # from Path.glob, for instance
        return _names(list(documents))
    is_text = isinstance(first, str) and is_url(first) and len(first.split()) > 1
    if isinstance(first, str) and _is_input(first) and not is_text:
        raise UsageError(
            f"an iterable other than a list is taken for documents, and the first is "
            f"{brief(first)}, the name of an input: give file names as a list, list(...), or "
            "documents as texts=..."
        )
    return _stream("documents", documents, resume_key)


def _is_input(text: str) -> bool:
    try:
        return os.path.lexists(text) or ("\n" not in text and is_url(text))
    except (OSError, ValueError):  # a name that no file can have
        return False


def _stream(
    name: str,
    documents: Iterable[Any],
    resume_key: str | None,
    *,
    as_tables: bool = False,
    names: Sequence[str] | None = None,
) -> Source:
    if resume_key is not None and not (isinstance(resume_key, str) and resume_key):
        raise UsageError(
            f"{option('resume_key')} is {resume_key!r}; it must be a name for the content"
        )
    seen = "" if resume_key is None else xxhash.xxh3_128_hexdigest(resume_key.encode())
    reader = DocumentReader(name, documents, as_tables=as_tables, names=names)
    return Source(name, "", "documents", "", 0, 0, seen=seen, memory=reader)
