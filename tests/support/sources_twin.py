"""What the tests of sources share: files in every compression, and a slow, plain reader."""

from __future__ import annotations

import bz2
import gzip
import lzma
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from tokpack.sources import Part, discover, line_base, read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tokpack.sources import Source

WHOLE = Part(0, "whole", 0, 0, 0)
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x05\0\0\0extra"

COMPRESS = {
    "": bytes,
    "zst": zstandard.ZstdCompressor(level=3).compress,
    "gz": gzip.compress,
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
    """Read parts and put their segments into order; checks what each batch promises."""
    segments: dict[tuple[int, int], list[tuple[int, bytes | str]]] = {}
    got = Got([], 0, 0, 0)
    for number, part in enumerate(parts):
        striped = part.kind == "stripes"
        base = line_base(source, part)
        last_segment = lines = 0
        for batch in read(source, part, [key], **options):
            assert batch.segment >= last_segment
            assert striped or batch.segment == 0
            last_segment = batch.segment
            found: list[tuple[int, bytes | str]] = []
            docs = batch.documents[key]
            found += [(int(line), docs.text(i)) for i, line in enumerate(docs.lines)]
            assert batch.records == len(found) + len(batch.bad)
            found += [(bad.line, bad.reason) for bad in batch.bad]
            place = (batch.segment, 0) if striped else (0, number)
            segments.setdefault(place, []).extend(
                (line + base, what) for line, what in sorted(found, key=lambda item: item[0])
            )
            got.text_bytes += batch.text_bytes
            got.bytes_read += batch.bytes_read
            lines += batch.lines
        if not striped and lines:
            assert base == got.lines
        got.lines += lines
    got.records = [record for place in sorted(segments) for record in segments[place]]
    return got


def write(folder: Path, name: str, raw: bytes) -> str:
    path = folder / name
    path.write_bytes(raw)
    return str(path)


def one_source(path: str, input_format: str = "auto") -> Source:
    (source,) = discover([path], input_format=input_format)
    return source


def read_whole(path: str, input_format: str = "auto", **options: int) -> Got:
    return read_parts(one_source(path, input_format), [WHOLE], **options)
