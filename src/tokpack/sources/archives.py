"""Documents from tar, zip, .dat and WET files; nothing is extracted to disk.

A member with JSON gives its records, any other member is one document, and an archive inside an
archive is read like the outer one. lm-dataformat wrote many such archives, but is not used to read
them: it holds whole members in memory, and does not notice truncated files.
"""

from __future__ import annotations

import logging
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import (
    BOM,
    PATH,
    RAW_BYTES_KEPT,
    BadRecord,
    printable,
)
from tokpack.sources.compression import MOST_LAYERS, compression_of
from tokpack.sources.detect import (
    ARCHIVE,
    DAT_HEADER,
    HEAD_BYTES,
    READ_BYTES,
    PeekableStream,
    format_of,
    is_tar,
    no_text,
    read_exactly,
    warc_kind,
    why_no_text,
)
from tokpack.sources.find import log_passed_over
from tokpack.sources.json_values import JsonValuesStream
from tokpack.sources.records import LineReader, batch_of_texts, documents_of, only_bad
from tokpack.sources.rows import WholeRecords, json_parser, with_text_rows
from tokpack.sources.streams import (
    FOREVER,
    BoundedStream,
    DerivedStream,
    FileStream,
    decompressed,
    fill,
    open_stream,
)
from tokpack.sources.values import of_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tokpack.sources.base import DocumentBatch, Limits, Source
    from tokpack.sources.rows import Columns
    from tokpack.sources.streams import RawStream, Stream


_BLOCK = 512  # the size of a block of a tar
_LINK = "links"

# Records of WARC files (ISO 28500); those of WET files have the texts of pages.

_MOST_HEADER = 1 << 20  # bytes of a long name or of pax records, held in memory by tarfile
_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_BROKEN = (  # the errors of tarfile and zipfile for unexpected bytes
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, NotImplementedError, ValueError, IndexError, OverflowError),
)


@dataclass
class Member:
    """A file in an archive. Its stream is valid until the next member is taken."""

    name: str
    stream: RawStream
    stored: int  # compressed bytes in the archive, if known


def drain(stream: Stream, most: int = FOREVER) -> int:
    """Read up to ``most`` bytes, to check them or to skip them. Returns the number read."""
    view = memoryview(bytearray(READ_BYTES))
    drained = 0
    while drained < most and (count := stream.readinto(view[: most - drained])):
        drained += count
    return drained


def tar_members(stream: Stream, name: str, passed_over: list[tuple[str, str]]) -> Iterator[Member]:
    """The files of a tar. InputError if it is cut off or damaged.

    Symbolic links are added to ``passed_over``, as pairs of the reason and the name.
    """
    watched = _WatchedStream(stream)
    end = 0
    raw = cast("IO[bytes]", watched)
    with _reported(name), tarfile.open(fileobj=raw, mode="r|", tarinfo=_Header) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep all that it has seen
            if info.islnk():
                raise InputError(f"{name}/{printable(info.name)}: a hard link; repack the archive")
            if info.issparse():
                raise _sparse(info)
            if info.issym():
                passed_over.append((_LINK, printable(info.name)))
            if info.isfile() and not _is_hidden(info.name):
                file = tar.extractfile(info)
                if file is not None:
                    yield Member(info.name, _MemberStream(file, name), 0)
        end = tar.offset
    drain(watched)
    if watched.last_byte >= end:
        raise InputError(f"{name}: no member begins at byte {end} of the tar, which is not its end")
    if watched.size < end + _BLOCK:
        raise InputError(f"{name}: the tar is cut off at byte {watched.size}, after a member")


def zip_members(file: IO[bytes], name: str, passed_over: list[tuple[str, str]]) -> Iterator[Member]:
    """The files of a zip, in the order of its directory; ``passed_over`` is as for a tar."""
    with _reported(name), zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if stat.S_ISLNK(info.external_attr >> 16):  # its content is the name of another file
                passed_over.append((_LINK, printable(info.filename)))
            elif not info.is_dir() and not _is_hidden(info.filename):
                with archive.open(info) as member:
                    stream = _MemberStream(member, f"{name}/{printable(info.filename)}")
                    yield Member(info.filename, stream, info.compress_size)


class _Header(tarfile.TarInfo):
    """A header that keeps tarfile from allocating whatever size a few bytes claim."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self)
        if self.type in _HEADERS and self.size > _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes, more than {_MOST_HEADER:,}")
        return super()._proc_member(tar)  # type: ignore[misc]

    def _proc_gnusparse_10(self, member: tarfile.TarInfo, *_: object) -> None:
        raise _sparse(member)


def _sparse(member: tarfile.TarInfo) -> tarfile.ReadError:
    # A sparse file is not text, and a few bytes can claim any size.
    name = printable(member.name)
    return tarfile.ReadError(f"{name} is a sparse file; repack the archive without --sparse")


class _WatchedStream(DerivedStream):
    """A stream that notes how far it was read, and the place of its last nonzero byte."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.size = 0
        self.last_byte = -1

    def readinto(self, view: memoryview) -> int:
        count = fill(self._stream, view)
        used = len(bytes(view[:count]).rstrip(b"\0"))
        if used:
            self.last_byte = self.size + used - 1
        self.size += count
        return count


class _MemberStream:
    """A member as tarfile or zipfile reads it, with their errors turned into InputError."""

    stored = 0

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name

    def read(self, size: int) -> bytes:
        with _reported(self._name):
            return self._file.read(size)

    def readinto(self, view: memoryview) -> int:
        chunk = self.read(len(view))
        view[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._file.close()


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise InputError(
            f"{name}: the archive is cut off, corrupt or not readable: {error}"
        ) from error


def _is_hidden(name: str) -> bool:
    """Whether a member is hidden, or one of the companions that macOS adds."""
    return os.path.basename(name).startswith(".") or name.startswith("__MACOSX/")


_BETWEEN = re.compile(rb"[\r\n]*")
_END = re.compile(rb"\r?\n\r?\n")  # the end of a record's header
_FOLDED = re.compile(r"\r?\n[ \t]+")


class WarcRecord(NamedTuple):
    """A record of a WARC file: its type, its header with names in lower case, and its content."""

    kind: str
    header: dict[str, str]
    content: bytes


def warc_records(stream: Stream, name: str, most: int) -> Iterator[WarcRecord]:
    """The records of a file, with up to ``most`` bytes of each. InputError if it is damaged."""
    ahead, at = b"", 0  # bytes read in advance, and where the next record begins in them
    for number in count(1):
        while (end := _END.search(ahead, at)) is None and len(ahead) - at < _MOST_HEADER:
            more = read_exactly(stream, READ_BYTES)
            ahead, at = ahead[at:] + more, 0
            at = len(_BETWEEN.match(ahead)[0])  # type: ignore[index]  # of any bytes
            if not more:
                break
        if at == len(ahead):
            return
        if not ahead.startswith(b"WARC/", at):
            raise InputError(f"{name}: WARC record {number} does not begin with WARC/")
        if end is None:
            raise InputError(f"{name}: WARC record {number} is cut off in its header")
        header = _header(ahead[at : end.start()])
        digits = header.get("content-length", "(none)")
        if not (digits.isascii() and digits.isdigit()):
            raise InputError(
                f"{name}: WARC record {number}: Content-Length is {digits}, expected a number"
            )
        length = int(digits)
        content = ahead[end.end() : end.end() + length]
        at = end.end() + len(content)
        if len(content) < length:
            content += read_exactly(stream, max(min(length, most) - len(content), 0))
            if len(content) + drain(stream, length - len(content)) < length:
                raise InputError(
                    f"{name}: WARC record {number} is cut off; the file is incomplete: fetch it "
                    "again"
                )
        yield WarcRecord(header.get("warc-type", "none").lower(), header, content[:most])
        at = _BETWEEN.match(ahead, at).end()  # type: ignore[union-attr]


def _header(head: bytes) -> dict[str, str]:
    """The fields of a header by their names."""
    lines = _FOLDED.sub(" ", head.decode("utf-8", "replace")).splitlines()
    fields = (line.partition(":") for line in lines[1:])
    return {name.strip().lower(): value.strip() for name, _, value in fields}


_log = logging.getLogger(__name__)
_DEEPEST = 3
_SAMPLES = 3  # if one in this many members has the name of the one before, warn
_DAT_HEADER_BYTES = 16
# Values beside the text of a page, and their fields in its header.
_PAGE = {
    "id": "warc-record-id",
    "url": "warc-target-uri",
    "date": "warc-date",
    "language": "warc-identified-content-language",
}


def read_archive(
    source: Source, keys: Sequence[str], limits: Limits, columns: Columns = ()
) -> Generator[DocumentBatch]:
    """Yield the documents of an archive, member by member, with continuous record numbers."""
    with closing(PeekableStream(open_stream(source))) as stream:
        yield from _Reading(source, keys, limits, columns).batches(stream)


class _Reading:
    """One pass over an archive; counts its records.

    With ``are_documents`` each member with text is one document; others are skipped, and a warning
    gives their number.
    """

    def __init__(
        self,
        source: Source,
        keys: Sequence[str],
        limits: Limits,
        columns: Columns,
        *,
        are_documents: bool = False,
    ) -> None:
        self._passed_over: list[tuple[str, str]] = []  # skipped members: the reason and the name
        self._are_documents = are_documents
        self._wanted = {PATH, *_PAGE} if isinstance(columns, WholeRecords) else {*columns}
        self._members_read = self._shared = 0  # all, and those named as the one before
        self._sample = ""  # the names of two members that differ only after a dot
        self._last = ""
        self._stored = 0  # compressed bytes of the members read, for a zip
        self._source = source
        self._name = source.name
        self._keys = keys
        self._limits = limits
        self._columns = columns
        self._parser = json_parser(keys, columns)
        self._plain: list[bytes] = []  # documents for the next batch; the last has line _line - 1
        self._beside: list[dict[str, str]] = []  # their columns, such as the name of the member
        self._plain_bytes = 0
        self._line = 0

    def batches(self, stream: PeekableStream) -> Iterator[DocumentBatch]:
        """The documents of the archive, whose stream is open."""
        stored = 0
        for batch in self._all(stream):
            now = max(stored, self._stored or stream.stored)
            batch.bytes_read, stored = now - stored, now
            yield batch
        log_passed_over(self._name, self._passed_over, self._source.format)
        if not self._are_documents and _SAMPLES * self._shared >= self._members_read > 1:
            _log.warning(
                "%s: members share names, such as %s, as in a WebDataset: each is a document of "
                "its own; if only one of each has text, unpack the archive and encode those files, "
                "'FOLDER/*.txt'",
                *(self._name, self._sample),
            )

    def _all(self, stream: PeekableStream) -> Iterator[DocumentBatch]:
        if stream.head.startswith(b"PK"):
            if self._source.is_pipe:
                raise InputError(f"{self._name}: a zip cannot be read from a pipe; give the file")
            with self._source.open() as file:
                yield from self._members(zip_members(file, self._name, self._passed_over), 1)
        elif is_tar(stream.head):
            yield from self._members(tar_members(stream, self._name, self._passed_over), 1)
        elif self._source.format == "wet":
            yield from self._wet(stream, self._name)
        else:
            yield from self._dat(stream)
        yield from self._flush()

    def _members(self, members: Iterator[Member], depth: int) -> Iterator[DocumentBatch]:
        for member in members:
            name = printable(member.name)
            self._members_read += 1
            if self._last and _stem(self._last) == _stem(name):
                self._shared += 1
                self._sample = self._sample or f"{self._last} and {name}"
            self._last = name
            yield from self._member(member, depth)
            self._stored += member.stored

    def _member(self, member: Member, depth: int) -> Iterator[DocumentBatch]:
        path = printable(member.name)
        name = f"{self._name}/{path}"
        stream = PeekableStream(member.stream)
        layers = 0
        while layers < MOST_LAYERS and (layer := compression_of(stream.head)):
            stream = PeekableStream(decompressed(stream, layer, name))
            layers += 1
        if self._are_documents:
            kind = why_no_text(stream.head)
            if kind is not None:
                self._passed_over.append((kind.reason, path))
            else:
                text = read_exactly(stream, self._limits.max_document_bytes + 1)
                yield from self._document(text.removeprefix(BOM), {PATH: path})
            drain(stream)
            return
        format_ = format_of(stream.head, name, is_packed=layers > 0)
        if is_tar(stream.head) and depth < _DEEPEST:
            yield from self._members(tar_members(stream, name, self._passed_over), depth + 1)
        elif format_ == "json":
            yield from self._records(JsonValuesStream(stream, name), name)
        elif format_ == "jsonl":
            yield from self._records(stream, name)
        elif format_ == "wet":
            yield from self._wet(stream, name)
        elif format_ == "text":
            text = read_exactly(stream, self._limits.max_document_bytes + 1)
            yield from self._document(text, {PATH: path})
        else:
            raise InputError(f"{name}: {format_} inside an archive; unpack it")
        drain(stream)

    def _records(self, stream: Stream, name: str) -> Iterator[DocumentBatch]:
        yield from self._flush()
        first = self._line
        reader = LineReader(stream, self._limits.block_bytes, self._limits.max_document_bytes)
        for block in reader.blocks(BoundedStream()):
            if block.too_long:
                bad = BadRecord(self._line, self._too_long, bytes(block.data))
                parsed = only_bad(self._keys, bad)
            else:
                parsed = self._parser.parse(block.data, self._line)
            for record in parsed.bad:
                record.reason += f" (line {record.line - first + 1} of {name})"
            self._line += parsed.lines
            parsed.text_bytes = block.length
            yield parsed

    def _dat(self, stream: Stream) -> Iterator[DocumentBatch]:
        """The documents of lm-dataformat's .dat, each after its length in 16 digits."""
        at = 0
        while header := read_exactly(stream, _DAT_HEADER_BYTES):
            if not DAT_HEADER.fullmatch(header):
                raise InputError(f"{self._name}: no document length at decompressed byte {at}")
            length = int(header)
            text = read_exactly(stream, min(length, self._limits.max_document_bytes + 1))
            if len(text) + drain(stream, length - len(text)) < length:
                raise InputError(
                    f"{self._name}: cut off in the document at decompressed byte {at}; the file "
                    "is incomplete: fetch or make it again"
                )
            at += _DAT_HEADER_BYTES + length
            yield from self._document(text, {})

    def _wet(self, stream: Stream, name: str) -> Iterator[DocumentBatch]:
        """The texts of pages in a WET file of Common Crawl."""
        for record in warc_records(stream, name, self._limits.max_document_bytes + 1):
            if record.kind == "conversion":
                fields = ((column, record.header.get(field)) for column, field in _PAGE.items())
                beside = {column: value for column, value in fields if value}
                yield from self._document(record.content, beside)
            elif record.kind != "warcinfo":
                raise no_text(name, warc_kind(record.kind))

    def _document(self, text: bytes, beside: dict[str, str]) -> Iterator[DocumentBatch]:
        if len(self._keys) > 1:
            keys = ", ".join(self._keys)
            raise UsageError(f"{self._name}: its documents are plain text, without the keys {keys}")
        if len(text) > self._limits.max_document_bytes:
            yield from self._flush()
            reason = self._too_long + _named(beside)
            bad = BadRecord(self._line, reason, text[:RAW_BYTES_KEPT])
            yield replace(only_bad(self._keys, bad), text_bytes=len(text))
        else:
            self._plain.append(text)
            self._beside.append(beside)
            self._plain_bytes += len(text)
        self._line += 1
        if self._plain_bytes >= self._limits.block_bytes:
            yield from self._flush()

    def _flush(self) -> Iterator[DocumentBatch]:
        count = len(self._plain)
        if count:
            lines = np.arange(self._line - count, self._line, dtype=np.int64)
            there = dict.fromkeys(name for values in self._beside for name in values)
            columns = {
                name: of_objects([values.get(name) for values in self._beside])
                for name in there
                if name in self._wanted
            }
            batch = batch_of_texts(self._keys[0], documents_of(self._plain, lines, columns))
            for record in batch.bad:
                record.reason += _named(self._beside[record.line - self._line])
            batch.text_bytes = self._plain_bytes
            self._plain, self._plain_bytes, self._beside = [], 0, []
            yield with_text_rows(batch, self._columns)

    @property
    def _too_long(self) -> str:
        return f"a document of more than {self._limits.max_document_bytes} bytes"


def _stem(name: str) -> str:
    """The name of a member up to the first dot: the sample's name in WebDataset."""
    folder, _, name = name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _named(beside: dict[str, str]) -> str:
    """The name of a document's member or page, for a message; "" if it has none."""
    name = beside.get(PATH) or beside.get("url")
    return f" ({name})" if name else ""


_SMALL = 1 << 20  # files up to this size are read at once


def read_file(
    source: Source,
    keys: Sequence[str],
    limits: Limits,
    tell_sums: Callable[[str], None] | None,
    columns: Sequence[str] = (),
) -> Generator[DocumentBatch]:
    """Yield the one document of a file, decompressed and without a BOM; or those of an archive.

    An archive that is named itself has one document per member. ``tell_sums`` and ``columns`` are
    as for ``read``; there is a column ``path``.
    """
    if len(keys) > 1:
        raise UsageError(
            f"{source.name}: a file is one document, without the keys {', '.join(keys)}"
        )
    file = FileStream(source, sums=tell_sums is not None)
    is_small = 0 < source.size < _SMALL and not source.compression
    first = source.size + 1 if is_small else HEAD_BYTES
    with closing(open_stream(source, file=file)) as stream:
        text = read_exactly(stream, first)
        if why_no_text(text[:HEAD_BYTES]) == ARCHIVE:
            members = PeekableStream(stream, text)
            reading = _Reading(source, keys, limits, columns, are_documents=True)
            yield from reading.batches(members)
            return
        if len(text) == first:  # there may be more
            most = limits.max_document_bytes + len(BOM) + 1
            text += read_exactly(stream, max(most - first, 0))
        stored, length = stream.stored, len(text)
        text = text.removeprefix(BOM)
        if len(text) > limits.max_document_bytes:
            reason = f"a document of more than {limits.max_document_bytes} bytes"
            batch = only_bad(keys, BadRecord(0, reason, text[:RAW_BYTES_KEPT]))
        else:
            path = {PATH: of_objects([source.name])} if PATH in columns else None
            one = documents_of([text], np.zeros(1, np.int64), path)
            batch = batch_of_texts(keys[0], one)
        batch.bytes_read, batch.text_bytes = stored, length
        yield batch
        sums = file.block_checksums()
        if tell_sums is not None and sums is not None:
            tell_sums(sums)
