"""The types of reading: sources, their parts, documents, bad records."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from tokpack import storage
from tokpack.display import brief
from tokpack.errors import InputError
from tokpack.input_formats import FORMATS
from tokpack.sources.compression import COMPRESSIONS
from tokpack.sources.values import select_values

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from tokpack.sources.values import Values


STDIN = "-"
WHOLE = ""  # in place of a key: records whose texts are still to be made
PATH = "path"  # the column with the name of the file, or archive member, that is a document
BOM = b"\xef\xbb\xbf"
RAW_BYTES_KEPT = 4096  # of a bad record
_KEYS_SHOWN = 12
_SAMPLE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Source:
    """An input file as discovered, or an object in this process with documents.

    ``name`` is for people and manifests: printable, valid UTF-8. ``path`` is what to open: a path
    as ``os.fsdecode`` returns it, ``-`` for the standard input, or a URL, which may contain a
    secret. ``format`` is one of FORMATS, ``compression`` a key of COMPRESSIONS, ``size`` in stored
    bytes, 0 for a pipe. ``etag`` is the store's name for this content; if known, ``mtime_ns`` is 0.
    ``seen`` is the fingerprint if the whole file was read to find its format, else "". ``memory``
    is an object in this process, without a path: ``MemoryRows`` (format ``table``), or a
    ``DocumentReader`` (``documents``), which can be read only once. ``json_path`` is the key,
    ``a.b``, of the array with the records of a JSON file.
    """

    name: str
    path: str
    format: str
    compression: str
    size: int
    mtime_ns: int
    etag: str = ""
    seen: str = field(default="", compare=False)
    memory: Any = field(default=None, compare=False, repr=False)
    json_path: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether the source is on a store."""
        return storage.is_url(self.path)

    @property
    def is_pipe(self) -> bool:
        """Whether it can be read only once: the standard input, a named pipe, an iterable."""
        if self.memory is not None:
            return self.format == "documents"
        if self.size or self.is_remote:
            return False
        return is_pipe(self.path)

    @property
    def unit(self) -> str:
        """The unit of record numbers in messages, "" for lines."""
        return "document number" if self.memory is not None else FORMATS[self.format].unit

    @property
    def is_on_disk(self) -> bool:
        """Whether it is a file that can be read again."""
        return not (self.is_remote or self.is_pipe or self.memory is not None)

    def fingerprint(self) -> str:
        """The identity of the content, in hex: of its size and 64 KiB at head, middle and tail.

        Two files of the same size that differ elsewhere have the same fingerprint. For an object
        with an ETag it is made from that. A pipe has none: "".
        """
        if self.seen or self.is_pipe:
            return self.seen
        if self.etag:
            return xxhash.xxh3_128_hexdigest(f"{self.size} {self.etag}".encode())
        try:
            with self.open() as file:
                size = file.seek(0, os.SEEK_END)
                digest = _of_size(size)
                last = max(0, size - _SAMPLE_BYTES)
                for at in sorted({0, last // 2, last}):
                    file.seek(at)
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise InputError(f"{self.name}: {error.strerror}") from error
        return digest.hexdigest()

    def fingerprint_of(self, head: bytes) -> str:
        """The fingerprint of a file if ``head`` is all of it, else ""."""
        if len(head) != self.size or self.size > _SAMPLE_BYTES or not head:
            return ""
        digest = _of_size(self.size)
        digest.update(head)
        return digest.hexdigest()

    def open(self) -> BinaryIO:
        """Open the file or object to read and seek in. Raises OSError, InputError."""
        return storage.open_object(self._object) if self.is_remote else open(self.path, "rb")

    def open_at(self, begin: int, until: int | None) -> io.FileIO | storage.Reader:
        """Open it to read from ``begin`` on, probably up to ``until``; None: to the end.

        Raises OSError, InputError.
        """
        if self.is_remote:
            return storage.Reader(self._object, begin, self.size if until is None else until)
        file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        if begin:
            file.seek(begin)
        return file

    @property
    def _object(self) -> storage.StoredObject:
        return storage.StoredObject(self.path, self.size, self.etag, self.mtime_ns)

    def check_unchanged(self) -> None:
        """Raise InputError if size, time or ETag have changed since discovery."""
        if self.is_pipe or self.memory is not None:
            return
        if self.is_remote:
            storage.check_same(self._object)
            return
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise InputError(f"{self.name}: {error.strerror}, after it was read") from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise InputError(
                f"{self.name} changed while it was read; run again when nothing writes to it"
            )

    @property
    def is_sound(self) -> bool:
        """Whether the fields, which may come from a file, have the right types."""
        texts = (self.name, self.path, self.format, self.compression, self.etag, self.json_path)
        return (
            all(isinstance(text, str) for text in texts)
            and self.format in FORMATS
            and self.compression in COMPRESSIONS
            and all(type(count) is int and count >= 0 for count in (self.size, self.mtime_ns))
        )

    def to_json(self) -> dict[str, Any]:
        """The arguments of ``Source`` as JSON values, without secrets in a URL."""
        names = ("name", "path", "format", "compression", "size", "mtime_ns")
        values = {name: getattr(self, name) for name in names}
        if self.json_path:
            values["json_path"] = self.json_path
        return {**values, "path": self.name, "etag": self.etag} if self.is_remote else values


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker reads: a range of a source, or several small sources.

    ========  ==========================================================================
    kind      begin, end
    ========  ==========================================================================
    whole     0, 0
    files     sources [begin, end), each of them whole
    bytes     byte range of an uncompressed file; the part owns the lines that begin in
              (begin, end], and the part at 0 also the first line
    frames    compressed byte range of whole zstd frames, with the same rule for the
              decompressed bytes
    stream    0, and the bytes of a segment: lines that can only be read from their
              beginning, which are shared out in segments of about this size
    rows      row groups of a parquet file, record batches of an Arrow file: [begin, end)
    ========  ==========================================================================

    ``source`` is the number of the first source.
    ``weight`` estimates the work, in bytes of text, for scheduling.
    """

    source: int
    kind: str
    begin: int
    end: int
    weight: int

    @property
    def sources(self) -> range:
        """The numbers of its sources."""
        last = self.end if self.kind == "files" else self.source + 1
        return range(self.source, last)

    def renumbered(self, first: int) -> Part:
        """The same part, with sources numbered from ``first``."""
        files = self.kind == "files"
        begin, end = (self.begin - first, self.end - first) if files else (self.begin, self.end)
        return replace(self, source=self.source - first, begin=begin, end=end)

    def to_json(self) -> dict[str, Any]:
        """The arguments of ``Part`` as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def fits_sources(self, sources: int) -> bool:
        """Whether it can be a part of this many sources."""
        numbers = (self.source, self.begin, self.end, self.weight)
        return (
            self.kind in ("whole", "files", "bytes", "frames", "stream", "rows")
            and all(type(number) is int and number >= 0 for number in numbers)
            and self.begin <= self.end
            and self.source < self.sources.stop <= sources
        )


@dataclass(frozen=True)
class Limits:
    """The bytes that are held at once: of a block of documents, and of one document."""

    block_bytes: int
    max_document_bytes: int


@dataclass
class Documents:
    """The texts of many documents in one buffer.

    ``data`` uint8, UTF-8; ``spans`` int64 [n, 2], begin and end of document i in data; ``lines``
    int64 [n], 0-based record number of document i, counted from the first record that was read. The
    arrays may be views of reused memory, valid only until the next batch is taken. ``columns`` are
    other values of the same records, by name, as in ``sources.values``. ``whole`` has the records
    themselves where texts are still to be made of them, so that all spans are empty: an Arrow
    RecordBatch, or a list of mappings. Of a conversation it has what a template made of it.
    """

    data: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    columns: dict[str, Values] = field(default_factory=dict)
    whole: Any = None

    def __len__(self) -> int:
        return len(self.spans)

    def text(self, index: int) -> bytes:
        """A copy of one document, UTF-8."""
        begin, end = self.spans[index]
        return self.data[begin:end].tobytes()

    def select(self, chosen: npt.NDArray[np.bool_]) -> Documents:
        """The documents that are ``chosen``, bool [n], with the values of their columns."""
        columns = {name: select_values(one, chosen) for name, one in self.columns.items()}
        whole = select_values(self.whole, chosen)
        return Documents(self.data, self.spans[chosen], self.lines[chosen], columns, whole)


@dataclass
class BadRecord:
    """A record that cannot be used; ``line`` counts as in Documents.

    ``raw`` has its first RAW_BYTES_KEPT bytes. ``keys`` are the keys of a record that lacks the
    requested one. ``kind`` is a phrase by which such records are counted.
    """

    line: int
    reason: str
    raw: bytes
    keys: tuple[str, ...] | None = None
    kind: str = ""

    @property
    def keys_there(self) -> str:
        """Its keys in words, for a message; "" if it is bad for another reason."""
        if self.keys is None:
            return ""
        names = ", ".join(map(brief, self.keys[:_KEYS_SHOWN])) or "none"
        more = len(self.keys) - _KEYS_SHOWN
        return f"its keys are {names}" + (f" and {more} more" if more > 0 else "")


@dataclass
class DocumentBatch:
    """The result of one step of reading.

    ``documents`` are by key; a record that is bad for one key is left out for all. ``records`` =
    documents + bad ones. Records whose texts are still to be made are there under WHOLE.
    ``counts`` has other counts, by the names in ``tokpack.counts``. ``lines`` is how far the record
    number advanced, blank lines included. ``bytes_read`` counts stored bytes and ``text_bytes``
    decompressed ones since the last batch; over all parts of a source they add up to about its
    size, however it is split. ``table_columns`` are the names of all columns of the documents'
    table.
    """

    documents: dict[str, Documents]
    bad: list[BadRecord]
    records: int
    lines: int
    bytes_read: int = 0
    text_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    table_columns: Sequence[str] | None = None

    @property
    def first(self) -> Documents:
        """The documents of the first key, or the records whose texts are still to be made."""
        return next(iter(self.documents.values()))

    def keep(self, chosen: npt.NDArray[np.bool_], reasons: Mapping[int, str]) -> None:
        """Keep the records that are ``chosen``, bool [n].

        Of the others those with one of ``reasons``, by index, are bad.
        """
        lines = self.first.lines
        self.bad += [BadRecord(int(lines[i]), reasons[i], b"") for i in sorted(reasons)]
        self.bad.sort(key=lambda record: record.line)
        if not chosen.all():
            self.documents = {key: one.select(chosen) for key, one in self.documents.items()}


def _of_size(size: int) -> xxhash.xxh3_128:
    """The hash for a fingerprint, before samples are added."""
    return xxhash.xxh3_128(size.to_bytes(8, "little"))


def printable(path: str) -> str:
    """A path for people, without undecodable bytes and control characters."""
    if path.isascii() and path.isprintable():
        return path  # the same string, not a copy: there may be a million
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_pipe(path: str) -> bool:
    """Whether a path is the standard input or a named pipe. InputError if it does not exist."""
    if path == STDIN:
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError as error:
        raise InputError(f"{printable(path)}: {error.strerror}") from error
