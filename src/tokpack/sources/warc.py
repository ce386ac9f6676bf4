"""Records of WARC files (ISO 28500); those of WET files have the texts of pages."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import InputError
from tokpack.sources.members import drain
from tokpack.sources.peekable import READ_BYTES, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.sources.streams import Stream

_BETWEEN = re.compile(rb"[\r\n]*")
_END = re.compile(rb"\r?\n\r?\n")  # of the header of a record
_FOLDED = re.compile(r"\r?\n[ \t]+")
_MOST_HEADER = 1 << 20


class WarcRecord(NamedTuple):
    """The type of a record, its header, with names in small letters, and its content."""

    kind: str
    header: dict[str, str]
    content: bytes


def warc_records(stream: Stream, name: str, most: int) -> Iterator[WarcRecord]:
    """The records of a file, with up to ``most`` bytes of each. InputError where it is broken."""
    ahead, at = b"", 0  # what is read, and where in it the next record begins
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
            raise InputError(f"{name}: where WARC record {number} is to begin there is none")
        if end is None:
            raise InputError(f"{name}: WARC record {number} is cut off in its header")
        header = _header(ahead[at : end.start()])
        digits = header.get("content-length", "none")
        if not (digits.isascii() and digits.isdigit()):
            raise InputError(f"{name}: WARC record {number} has the Content-Length {digits}")
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
