"""Documents from tar, zip, .dat and WET files; nothing is extracted to disk.

A member with JSON gives its records, any other member is one document, and an
archive inside of an archive is read like the outer one. lm-dataformat, which has written many of
these, takes a file that was cut off for a whole one and holds whole members in memory: so none of
them is read through it.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokpack.errors import InputError, UsageError
from tokpack.sources.base import BOM, PATH, RAW_BYTES_KEPT, BadRecord, DocumentBatch, printable
from tokpack.sources.compression import MOST_LAYERS, compression_of
from tokpack.sources.detect import DAT_HEADER, format_of, is_tar, no_text, warc_kind, why_no_text
from tokpack.sources.folders import log_passed_over
from tokpack.sources.json_values import JsonValuesStream
from tokpack.sources.lines import LineReader
from tokpack.sources.members import (
    Member,
    drain,
    tar_members,
    zip_members,
)
from tokpack.sources.peekable import PeekableStream, read_exactly
from tokpack.sources.records import joined, not_utf8, only_bad, without
from tokpack.sources.rows import WholeRecords, json_parser, with_text_rows
from tokpack.sources.streams import BoundedStream, decompressed, open_stream
from tokpack.sources.values import of_objects
from tokpack.sources.warc import warc_records

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from tokpack.sources.base import Limits, Source
    from tokpack.sources.rows import Columns
    from tokpack.sources.streams import Stream

_log = logging.getLogger(__name__)
_DEEPEST = 3
_SAMPLES = 3  # of so many members one that has the name of the one before is no chance
_DAT_HEADER_BYTES = 16
# Values beside the text of a page, and the fields of its header that they come from.
_PAGE = {
    "id": "warc-record-id",
    "url": "warc-target-uri",
    "date": "warc-date",
    "language": "warc-identified-content-language",
}


def read_archive(
    source: Source, keys: Sequence[str], limits: Limits, columns: Columns = ()
) -> Generator[DocumentBatch]:
    """Yield the documents of an archive, member by member; their record numbers run through."""
    with closing(PeekableStream(open_stream(source))) as stream:
        yield from read_members(source, stream, keys, limits, columns)


def read_members(
    source: Source,
    stream: PeekableStream,
    keys: Sequence[str],
    limits: Limits,
    columns: Columns,
    *,
    are_documents: bool = False,
) -> Iterator[DocumentBatch]:
    """As ``read_archive``, of a stream that is open.

    With ``are_documents`` each member is one, whatever text it has; others are passed over, and a
    warning says how many.
    """
    reading = _Reading(source.name, keys, limits, columns, are_documents=are_documents)
    stored = 0
    for batch in reading.batches(source, stream):
        now = max(stored, reading.stored or stream.stored)
        batch.bytes_read, stored = now - stored, now
        yield batch
    log_passed_over(source.name, reading.passed_over, source.format)
    if not are_documents and _SAMPLES * reading.shared >= reading.members > 1:
        _log.warning(
            "%s: members have names in common, such as %s, as those of a sample of a WebDataset: "
            "each is read alone; where one of each has the text, unpack it and encode these files, "
            "'FOLDER/*.txt'",
            *(source.name, reading.sample),
        )


class _Reading:
    """One pass over an archive; counts its records."""

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        limits: Limits,
        columns: Columns,
        *,
        are_documents: bool,
    ) -> None:
        self.passed_over: list[tuple[str, str]] = []  # why, and the member
        self._are_documents = are_documents
        self._wanted = {PATH, *_PAGE} if isinstance(columns, WholeRecords) else {*columns}
        self.members = self.shared = 0  # of which so many have the name of the one before
        self.sample = ""  # the names of two that share one
        self._last = ""
        self.stored = 0  # compressed bytes of the members read, for a zip
        self._name = name
        self._keys = keys
        self._limits = limits
        self._columns = columns
        self._parser = json_parser(keys, columns)
        self._plain: list[bytes] = []  # documents that come one at a time, up to ``_line``
        self._beside: list[dict[str, str]] = []  # their columns, such as the name of the member
        self._plain_bytes = 0
        self._line = 0

    def batches(self, source: Source, stream: PeekableStream) -> Iterator[DocumentBatch]:
        if stream.head.startswith(b"PK"):
            if source.is_pipe:
                raise InputError(f"{source.name}: a zip cannot be read from a pipe; give the file")
            with source.open() as file:
                yield from self._members(zip_members(file, self._name, self.passed_over), 1)
        elif is_tar(stream.head):
            yield from self._members(tar_members(stream, self._name, self.passed_over), 1)
        elif source.format == "wet":
            yield from self._wet(stream, self._name)
        else:
            yield from self._dat(stream)
        yield from self._flush()

    def _members(self, members: Iterator[Member], depth: int) -> Iterator[DocumentBatch]:
        for member in members:
            self._compare(printable(member.name))
            yield from self._member(member, depth)
            self.stored += member.stored

    def _compare(self, name: str) -> None:
        """Look whether a member has the name of the one before, but for what is behind a dot."""
        self.members += 1
        last, self._last = self._last, name
        if last and _stem(last) == _stem(name):
            self.shared += 1
            self.sample = self.sample or f"{last} and {name}"

    def _member(self, member: Member, depth: int) -> Iterator[DocumentBatch]:
        name = f"{self._name}/{printable(member.name)}"
        stream = PeekableStream(member.stream)
        layers = 0
        while layers < MOST_LAYERS and (layer := compression_of(stream.head)):
            stream = PeekableStream(decompressed(stream, layer, name))
            layers += 1
        if self._are_documents:
            kind = why_no_text(stream.head)
            if kind is not None:
                self.passed_over.append((kind.reason, printable(member.name)))
            else:
                text = read_exactly(stream, self._limits.max_document_bytes + 1)
                yield from self._document(text.removeprefix(BOM), {PATH: printable(member.name)})
            drain(stream)
            return
        format_ = format_of(stream.head, name, is_packed=layers > 0)
        if is_tar(stream.head) and depth < _DEEPEST:
            yield from self._members(tar_members(stream, name, self.passed_over), depth + 1)
        elif format_ == "json":
            yield from self._records(JsonValuesStream(stream, name), name)
        elif format_ == "jsonl":
            yield from self._records(stream, name)
        elif format_ == "wet":
            yield from self._wet(stream, name)
        elif format_ == "text":
            text = read_exactly(stream, self._limits.max_document_bytes + 1)
            yield from self._document(text, {PATH: printable(member.name)})
        else:
            raise InputError(f"{name}: {format_} inside of an archive; unpack it")
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
        """Documents behind their length in 16 digits, as lm-dataformat's DatArchive writes."""
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
        """The texts of pages, as Common Crawl's WET files have them."""
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
            raise UsageError(f"{self._name}: its documents are plain text without the keys {keys}")
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
            documents = {self._keys[0]: joined(self._plain, lines)}
            there = dict.fromkeys(name for values in self._beside for name in values)
            documents[self._keys[0]].columns = {
                name: of_objects([values.get(name) for values in self._beside])
                for name in there
                if name in self._wanted
            }
            bad = not_utf8(documents[self._keys[0]])
            for index, record in bad.items():
                record.reason += _named(self._beside[index])
            size, self._plain, self._plain_bytes, self._beside = self._plain_bytes, [], 0, []
            good = without(documents, bad)
            batch = DocumentBatch(good, list(bad.values()), count, count, text_bytes=size)
            yield with_text_rows(batch, self._columns)

    @property
    def _too_long(self) -> str:
        return f"a document of more than {self._limits.max_document_bytes} bytes"


def _stem(name: str) -> str:
    """The name of a member up to the first dot, as WebDataset takes it for that of a sample."""
    folder, _, name = name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _named(beside: dict[str, str]) -> str:
    """The member, or the page, that a document is, for a message; "" where it has no name."""
    name = beside.get(PATH) or beside.get("url")
    return f" ({name})" if name else ""
