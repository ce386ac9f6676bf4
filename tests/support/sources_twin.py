"""What the tests of sources share: files in every compression, and a slow, plain reader."""

from __future__ import annotations

import bz2
import gzip
import lzma
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from tokpack.sources import LineStream, Part, block_checksums, discover, line_base, parse, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tokpack.sources import DocumentBatch, Source

WHOLE = Part(0, "whole", 0, 0, 0)
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x05\0\0\0extra"

COMPRESS = {
    "": bytes,
    "zst": zstandard.ZstdCompressor(level=3).compress,
    "gz": lambda raw: gzip.compress(raw, mtime=0),  # the same in every process of the tests
    "xz": lambda raw: lzma.compress(raw, preset=0),
    "bz2": bz2.compress,
}


@dataclass
class Got:
    """All that some parts of a source gave, in the order of the source."""

    records: list[tuple[int, bytes | str]]  # absolute line number from 0; text, or reason
    text_bytes: int
    bytes_read: int
    lines: int

    @property
    def texts(self) -> list[bytes]:
        return [what for _, what in self.records if isinstance(what, bytes)]

    @property
    def reasons(self) -> list[tuple[int, str]]:
        return [(line, what) for line, what in self.records if isinstance(what, str)]


def read_parts(source: Source, parts: Iterable[Part], key: str = "text", **options: int) -> Got:
    """Read parts of one source in order; checks what each batch promises."""
    got = Got([], 0, 0, 0)
    for part in parts:
        base = line_base(source, part)
        lines = 0
        for first, batch in _batches(source, part, key, **options):
            found: list[tuple[int, bytes | str]] = []
            docs = batch.documents[key]
            found += [(int(line), docs.text(i)) for i, line in enumerate(docs.lines)]
            assert batch.records == len(found) + len(batch.bad)
            found += [(bad.line, bad.reason) for bad in batch.bad]
            got.records += [(base + first + line, what) for line, what in sorted(found, key=_line)]
            got.text_bytes += batch.text_bytes
            got.bytes_read += batch.bytes_read
            lines += batch.lines
        if lines:
            assert base == got.lines
        got.lines += lines
    return got


def _line(found: tuple[int, bytes | str]) -> int:
    return found[0]


def _batches(
    source: Source, part: Part, key: str, max_document_bytes: int = 1 << 30, **options: int
) -> Iterator[tuple[int, DocumentBatch]]:
    """Batches, and the lines of the part before those from which theirs are counted."""
    if part.kind != "stream":
        for batch in read(source, part, [key], max_document_bytes=max_document_bytes, **options):
            yield 0, batch
        return
    lines = 0
    with closing(LineStream(source, part.end, max_document_bytes, **options)) as stream:
        for blocks in stream:
            before = lines
            for batch in parse(source, [key], blocks, max_document_bytes):
                yield before, batch
                lines += batch.lines
        assert stream.block_checksums() == block_checksums(source, 0, source.size)


def in_segments(segment_bytes: int) -> list[Part]:
    """A whole source as a part that is read segment by segment."""
    return [Part(0, "stream", 0, segment_bytes, 0)]


def write(folder: Path, name: str, raw: bytes) -> str:
    path = folder / name
    path.write_bytes(raw)
    return str(path)


def one_source(path: str, input_format: str = "auto") -> Source:
    (source,) = discover([path], input_format=input_format)
    return source


def read_whole(path: str, input_format: str = "auto", **options: int) -> Got:
    return read_parts(one_source(path, input_format), [WHOLE], **options)
