"""What a file is, by its first bytes; its name decides only where they do not."""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from tokpack.errors import InputError, option
from tokpack.files.mistaken import is_dataset, is_tokenizer
from tokpack.sources.base import BOM
from tokpack.sources.compression import bare_name, compression_of
from tokpack.sources.streams import FileStream, decompressed, fill

if TYPE_CHECKING:
    from tokpack.sources.base import Source
    from tokpack.sources.streams import RawStream

HEAD_BYTES = 64 << 10

_BINARY = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # the continuation mark that begins a stream
    b"PK\x03\x04": "archive",
    b"PK\x05\x06": "archive",
}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_REFUSED = {
    **dict.fromkeys(_UTF16_MARKS, "UTF-16 text; convert it to UTF-8"),
    b"\x04\x22\x4d\x18": "lz4; recompress it with zstd",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"Rar!": "a rar archive; unpack it",
    b"\x80\x04\x95": "a pickle, which is never loaded",
}
TEXT_SUFFIXES = (".txt", ".text")
_TABLES = {".csv": "csv", ".tsv": "tsv"}
_BLEND = b"\ntokpack_blend: "  # the second line of a blend file
_JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
DOCUMENT_SUFFIXES = (
    *TEXT_SUFFIXES,
    *_JSON_LINES_SUFFIXES,
    *_TABLES,
    *(".parquet", ".arrow", ".zip", ".tar", ".tgz", ".txz", ".dat"),
)
UTF16 = "with UTF-16 text"
BINARY = "with binary data"
ARCHIVE = "with an archive"
_FEW_LINES = 8
_LINES_OF_PARAGRAPH = 20  # at most: one with more is no paragraph of a book
DAT_HEADER = re.compile(rb"\d{16}")


def format_of(head: bytes, name: str) -> str:
    """The format of decompressed bytes that begin with ``head``; InputError for what is none.

    ``{`` begins JSON lines, ``[`` one JSON array, anything else is plain text, unless the name
    says that it is CSV, that the first line is broken JSON, or a line of text that looks like JSON.
    """
    for magic, what in _REFUSED.items():
        if head.startswith(magic):
            raise InputError(f"{name}: this is {what}")
    if is_tokenizer(name, head):
        raise InputError(
            f"{name}: this is a tokenizer, and no input; {option('tokenizer')} names one, and "
            f"{option('tokenizers')} names several, each for a dataset of its own"
        )
    bare = bare_name(name)
    if is_tar(head) or (bare.endswith(".dat") and DAT_HEADER.match(head)):
        return "archive"
    if _is_utf16(head):
        raise InputError(f"{name}: this is {_REFUSED[_UTF16_MARKS[0]]}")
    for magic, format_ in _BINARY.items():
        if head.startswith(magic):
            return format_
    return _text_format(head, name, bare)


def _text_format(head: bytes, name: str, bare: str) -> str:
    if _BLEND in head:
        raise InputError(
            f"{name}: this is a blend of datasets, whose documents are tokens already: "
            f"tokpack blend or train {name}"
        )
    if bare.endswith(TEXT_SUFFIXES):
        return "text"
    for suffix, format_ in _TABLES.items():
        if bare.endswith(suffix) and b"\0" not in head:
            return format_
    text = head.removeprefix(BOM).lstrip(b" \t\r\n")
    if text.startswith(b"["):
        return "jsonl" if _is_line_of_several(text) else "json"
    if text.startswith(b"{") or not text or bare.endswith(_JSON_LINES_SUFFIXES):
        return "jsonl"
    if b"\0" in head:
        if is_dataset(name):
            raise InputError(f"{name}: is of a dataset, whose documents are tokens already")
        raise InputError(
            f"{name}: this looks like binary data; --input-format text reads it as plain text"
        )
    return "text"


def why_no_text(head: bytes) -> str:
    """Why a file that begins so, decompressed, is not text; "" if it is, or may be."""
    if head.startswith(_UTF16_MARKS) or _is_utf16(head):
        return UTF16
    if is_tar(head) or head.startswith(b"PK\x03\x04"):
        return ARCHIVE
    return BINARY if b"\0" in head else ""


def _is_utf16(head: bytes) -> bool:
    """Whether bytes without a mark are UTF-16 of mostly ASCII: NULs on one side of most pairs."""
    sides = head[::2], head[1::2]
    return len(head) % 2 == 0 and any(
        2 * zeros.count(0) > len(zeros) and min(text) >= ord("\t")
        for text, zeros in (sides, sides[::-1])
    )


class NoTextError(InputError):
    """A file that was to be one document has no text; ``reason`` says what it has."""

    def __init__(self, name: str, reason: str) -> None:
        what = reason.removeprefix("with ")
        advice = "convert it to UTF-8" if reason == UTF16 else "a document is text"
        super().__init__(f"{name}: this is {what}; {advice}")
        self.reason = reason


def first_bytes(source: Source) -> bytes:
    """The first HEAD_BYTES of a file as they are stored, or all that there are. InputError."""
    return _head(FileStream(source), "", source.name)


def decompressed_head(source: Source) -> bytes:
    """The first HEAD_BYTES of a source, decompressed. InputError."""
    return _decompressed_head(source, source.compression, None)


def is_running_text(head: bytes) -> bool:
    """Whether a text that begins so has paragraphs, with blank lines between them."""
    blank = head.replace(b"\r", b"").count(b"\n\n")
    return head.count(b"\n") >= _FEW_LINES and blank * _LINES_OF_PARAGRAPH >= head.count(b"\n")


def detect(
    source: Source,
    input_format: str = "auto",
    stored: bytes | None = None,
    *,
    opens_archives: bool = True,
) -> tuple[str, str]:
    """Format and compression of a file; the format is ``input_format`` if that is not ``auto``.

    ``stored`` are its first bytes, HEAD_BYTES at most, where somebody has them. InputError for what
    cannot be read; NoTextError where a file is to be one document, and is neither text nor, with
    ``opens_archives``, an archive of such files.
    """
    head = first_bytes(source) if stored is None else stored
    compression = compression_of(head)
    if input_format not in ("auto", "file"):
        return input_format, compression
    if compression:
        head = _decompressed_head(source, compression, stored)
    if input_format == "file":
        reason = why_no_text(head)
        if reason and not (opens_archives and reason == ARCHIVE):
            raise NoTextError(source.name, reason)
        return input_format, compression
    format_ = format_of(head, source.name)
    if compression and (format_ in ("parquet", "arrow") or head.startswith(b"PK")):
        raise InputError(f"{source.name}: decompress it first: {format_} inside of {compression}")
    return format_, compression


def is_tar(head: bytes) -> bool:
    """Whether a block of 512 bytes is a tar header: its checksum says so."""
    if len(head) < 512:
        return False
    stored = head[148:156].strip(b" \0")
    if not stored.isdigit() or not re.fullmatch(rb"[0-7]+", stored):
        return False
    return sum(head[:148]) + 8 * ord(" ") + sum(head[156:512]) == int(stored, 8)


class _HeadStream(io.BytesIO):
    """The first bytes of a file, which somebody has read, as a stream."""

    stored = property(io.BytesIO.tell)


def _decompressed_head(source: Source, compression: str, stored: bytes | None) -> bytes:
    """The first decompressed bytes: of what is ``stored``, if that suffices, else of the file."""
    if stored is not None:
        with suppress(InputError):  # it may be cut anywhere
            return _head(_HeadStream(stored), compression, source.name)
    return _head(FileStream(source, until=0), compression, source.name)


def _head(raw: RawStream, compression: str, name: str) -> bytes:
    stream = decompressed(raw, compression, name)
    buffer = bytearray(HEAD_BYTES)
    try:
        return bytes(buffer[: fill(stream, memoryview(buffer))])
    finally:
        stream.close()


def _is_line_of_several(text: bytes) -> bool:
    """Whether the first line is a whole array and more follows: JSON lines of the wrong kind."""
    line, _, rest = text.partition(b"\n")
    if not rest.strip():
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
