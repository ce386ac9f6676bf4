"""The format of a file, by its first bytes, or if these do not show it, by its name."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from tokpack.display import brief
from tokpack.errors import InputError, option
from tokpack.sources.base import BOM
from tokpack.sources.compression import LAYER, MOST_LAYERS, bare_name, compression_of
from tokpack.sources.json_values import ends_where_lines_do
from tokpack.sources.streams import DerivedStream, FileStream, decompressed, fill
from tokpack.storage.disk import is_dataset, is_tokenizer, pointer_in

if TYPE_CHECKING:
    from tokpack.sources.base import Source
    from tokpack.sources.streams import RawStream, Stream


HEAD_BYTES = 64 << 10

_BINARY = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream begins with this continuation mark
    b"PK\x03\x04": "archive",
    b"PK\x05\x06": "archive",
}


class Kind(NamedTuple):
    """The kind of a file without text to read, and the advice about it."""

    what: str
    advice: str
    lost: str = ""  # if it stands for a file with documents: the reason to skip it

    @property
    def reason(self) -> str:
        """The reason why it is skipped."""
        return self.lost or f"with {self.what}"


_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_NO_TEXT = "a document is text"
_EXTRACT = "extract its text first"
_ROWS = "write its rows as parquet or JSON lines"
UTF16 = Kind("UTF-16 text", "convert it to UTF-8")
BINARY = Kind("binary data", _NO_TEXT)
ARCHIVE = Kind("an archive", _NO_TEXT)
_SPACE = rb"(?:\xef\xbb\xbf)?\s*"
_ZIP = rb"PK\x03\x04.{26}"  # up to the name of its first member
_KINDS = [
    (Kind("a PDF", _EXTRACT), _SPACE + rb"%PDF-\d"),
    (Kind("a PostScript document", _EXTRACT), _SPACE + rb"%!PS-Adobe"),
    (Kind("an RTF document", _EXTRACT), _SPACE + rb"\{\\rtf\d"),
    (Kind("an EPUB book", _EXTRACT), _ZIP + rb"mimetypeapplication/epub"),
    (
        Kind("an Office document", _EXTRACT),
        rb"\xd0\xcf\x11\xe0\xa1\xb1|"
        + _ZIP
        + rb"(?:mimetypeapplication/vnd\.oasis|\[Content_Types\]\.xml|_rels/\.rels|docProps/|"
        rb"(?:word|xl|ppt)/[\w/.]+\.(?:xml|rels))",
    ),
    (
        Kind("a pickle", "pickles are never loaded"),
        rb"\x80[\x02-\x05]|" + _ZIP + rb"[^/\0]+/data\.pkl",
    ),
    (Kind("a file of numpy arrays", _ROWS), rb"\x93NUMPY|" + _ZIP + rb"[\w./-]+\.npy"),
    (
        Kind("the manifest of a dataset", "give what the dataset was made from"),
        _SPACE + rb"\{\s*\"tokpack\":\s*\{\s*\"manifest\"",
    ),
    (Kind("a file of weights", _NO_TEXT), rb".{5}\0\0\0\{\"|GGUF.\0\0\0"),
    (
        Kind("an image", _NO_TEXT),
        rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\0|MM\0\*|BM.{4}\0{4}|RIFF.{4}WEBP",
    ),
    (
        Kind("a sound or film", _NO_TEXT),
        rb"ID3[\2-\4]\0|OggS\0|fLaC[\0\x80]\0|RIFF.{4}(?:WAVE|AVI )|\0.{3}ftyp|\x1aE\xdf\xa3",
    ),
    (
        Kind("a table in a format that is not read", _ROWS),
        rb"\x89HDF|SQLite format 3\0|Obj\1|ORC[\0-\x1f\x80-\xff]|FEA1\0",
    ),
    (Kind("lz4", "recompress it with zstd"), rb"\x04\x22\x4d\x18"),
    (Kind("a 7z archive", "unpack it"), rb"7z\xbc\xaf"),
    (Kind("a rar archive", "unpack it"), rb"Rar!\x1a"),
]
_KIND = re.compile(b"|".join(b"(%b)" % begins for _, begins in _KINDS), re.DOTALL)
TEXT_SUFFIXES = (".txt", ".text")
_TABLES = {".csv": "csv", ".tsv": "tsv"}
_BLEND = b"\ntokpack_blend: "  # the second line of a blend file
_JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
DOCUMENT_SUFFIXES = (
    *TEXT_SUFFIXES,
    *_JSON_LINES_SUFFIXES,
    *_TABLES,
    *(".parquet", ".arrow", ".zip", ".tar", ".tgz", ".txz", ".dat", ".wet"),
)
# Suffixes of binary files, besides those of compressions.
_BINARY_SUFFIXES = (
    *(".parquet", ".arrow", ".feather", ".ipc", ".zip", ".tar", ".tgz", ".txz", ".tbz2", ".tzst"),
    *(".wet", ".warc", ".7z", ".rar", ".lz4", ".orc", ".avro", ".npy", ".npz", ".safetensors"),
    *(".pdf", ".docx", ".epub", ".png", ".jpg", ".jpeg"),
)
_OF_TEXT = ("text", "jsonl", "json", "csv", "tsv")
_FEW_LINES = 8
_LINES_OF_PARAGRAPH = 20  # the most lines of a paragraph of a book
DAT_HEADER = re.compile(rb"\d{16}")
_COMMENTS = rb"(?>(?:<!--.*?-->\s*)*)"
_PAGE = re.compile(_SPACE + _COMMENTS + rb"<(!doctype html|html|head|body)\b", re.I | re.S)
_XML = re.compile(_SPACE + rb"<(\?xml\b|Error>)")
_JSON = re.compile(_SPACE + rb"(\{\s*[\"}]|\[\s*[\[{\]])")
_RECORD = re.compile(_SPACE + rb"(?:\[\s*)?\{\s*\"[^\"\n]*\"\s*:")
_OF_AN_ERROR = frozenset(["error", "errors", "message", "detail"])  # keys in answers of servers
_WARC = re.compile(rb"^WARC-Type:[ \t]*(\w+)", re.I | re.M)


class NoTextError(InputError):
    """A file has no text; ``kind`` says what it has instead."""

    kind = BINARY


def no_text(name: str, kind: Kind) -> NoTextError:
    """The error for a file ``name`` that has no text."""
    error = NoTextError(f"{name}: this is {kind.what}; {kind.advice}")
    error.kind = kind
    return error


def format_of(head: bytes, name: str, *, is_packed: bool) -> str:
    """The format of decompressed bytes that begin with ``head``. InputError if it has none.

    ``{`` and ``[`` begin JSON. Anything else is plain text, unless it is named as CSV, or as JSON,
    which is damaged then. ``is_packed``: the bytes were compressed.
    """
    if is_tar(head):
        return "archive"
    if kind := kind_of(head):
        raise no_text(name, kind)
    if is_tokenizer(name, head):
        raise InputError(
            f"{name}: this is a tokenizer, not an input: give it with {option('tokenizer')}"
        )
    bare = bare_name(name)
    if bare.endswith(".dat") and DAT_HEADER.match(head):
        return "archive"
    if head.startswith(b"WARC/"):
        # The first record after those about the file itself decides.
        kinds = [kind.lower().decode() for kind in _WARC.findall(head)]
        warc = next((kind for kind in kinds if kind != "warcinfo"), "conversion")
        if warc != "conversion":
            raise no_text(name, warc_kind(warc))
        return "wet"
    for magic, format_ in _BINARY.items():
        if head.startswith(magic):
            return format_
    if suffix := _broken_promise(head, name, bare, is_packed=is_packed):
        what = f"{_described(head)}, though its name ends in {suffix}"
        says = option("input_format", "FORMAT")
        advice = f"fetch it again, or say what it is with {says}"
        raise no_text(name, Kind(what, advice, "not what their names say"))
    if _is_utf16(head):
        raise no_text(name, UTF16)
    return _text_format(head, name, bare)


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file that begins with these decompressed bytes, or None if it may be text."""
    if pointer := pointer_in(head):
        what, _, advice = pointer.partition(": ")
        return Kind(what, advice, "pointers of Git to files")
    match = _KIND.match(head)
    return _KINDS[match.lastindex - 1][0] if match and match.lastindex else None


def warc_kind(kind: str) -> Kind:
    """The kind of a WARC file whose records, of this type, have no text."""
    return Kind(
        f"a WARC file of {kind} records",
        "extract the text first, with datatrove or trafilatura, or take WET files, which have it",
    )


def promised(name: str, *, is_packed: bool) -> str:
    """The suffix of a name if it belongs to a binary format, else "".

    ``is_packed``: the file is compressed, so its name may still have that suffix.
    """
    bare = bare_name(name)
    of_bare = next((one for one in _BINARY_SUFFIXES if bare.endswith(one)), "")
    return of_bare or ("" if is_packed else name.lower()[len(bare) :])


def _broken_promise(head: bytes, name: str, bare: str, *, is_packed: bool) -> str:
    """The suffix of a name if it does not fit this text, else "".

    JSON is always accepted: browsers decompress a .jsonl.gz, and keep its name.
    """
    suffix = promised(name, is_packed=is_packed)
    if suffix and (not _JSON.match(head) or _is_error(head)):
        return suffix
    has_rows = next((one for one in (*_JSON_LINES_SUFFIXES, *_TABLES) if bare.endswith(one)), "")
    return has_rows if has_rows and is_markup(head) else ""


def is_markup(head: bytes) -> bool:
    """Whether a text that begins like this is an HTML page, or XML."""
    return bool(_PAGE.match(head) or _XML.match(head))


def is_json(head: bytes) -> bool:
    """Whether a text with this beginning is an object of JSON, or a list of them."""
    return bool(_RECORD.match(head))


def _is_error(head: bytes) -> bool:
    """Whether this is an error in JSON that a server sent instead of a file."""
    try:
        value = json.loads(head.removeprefix(BOM))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not _OF_AN_ERROR.isdisjoint(value)


def _described(head: bytes) -> str:
    """What a text with this beginning is, in words."""
    if _PAGE.match(head):
        return "an HTML page"
    if not head:
        return "an empty file"
    if b"\0" in head:
        return "data of no known format"
    return f"a text that begins {brief(head[:60].decode('utf-8', 'replace'))}"


def _text_format(head: bytes, name: str, bare: str) -> str:
    if _BLEND in head:
        raise InputError(
            f"{name}: this is a blend of datasets, which are tokens already: "
            f"tokpack blend or train {name}"
        )
    if bare.endswith(TEXT_SUFFIXES):
        return "text"
    for suffix, format_ in _TABLES.items():
        if bare.endswith(suffix) and b"\0" not in head:
            return format_
    text = head.removeprefix(BOM).lstrip(b" \t\r\n")
    if text.startswith(b"["):
        return "json"
    if text.startswith(b"{"):
        is_whole = len(head) < HEAD_BYTES
        return "jsonl" if ends_where_lines_do(text, is_whole=is_whole) else "json"
    if not text or bare.endswith(_JSON_LINES_SUFFIXES):
        return "jsonl"
    if b"\0" in head:
        if is_dataset(name):
            raise InputError(f"{name}: this belongs to a dataset, which is tokens already")
        raise InputError(
            f"{name}: this looks like binary data; {option('input_format', 'text')} reads it as "
            "plain text"
        )
    return "text"


def why_no_text(head: bytes) -> Kind | None:
    """The kind of a file that is not text, by its first decompressed bytes, or None if it may
    be.
    """
    if is_tar(head):
        return ARCHIVE
    if head.startswith(b"WARC/"):
        return Kind("a WARC file", f"{option('input_format', 'wet')} reads the texts of WET files")
    if kind := kind_of(head):
        return kind
    if head.startswith(b"PK\x03\x04"):
        return ARCHIVE
    if _is_utf16(head):
        return UTF16
    return BINARY if b"\0" in head else None


def _is_utf16(head: bytes) -> bool:
    """Whether bytes are UTF-16, by a mark or because most pairs have a NUL on the same side."""
    sides = head[::2], head[1::2]
    return head.startswith(_UTF16_MARKS) or (
        len(head) % 2 == 0
        and any(
            2 * zeros.count(0) > len(zeros) and min(text) >= ord("\t")
            for text, zeros in (sides, sides[::-1])
        )
    )


def head_of(source: Source, compression: str, stored: bytes | None = None) -> bytes:
    """The first HEAD_BYTES of a file, decompressed, or all of a smaller one. InputError.

    They come from ``stored``, bytes read already, if these suffice.
    """
    if stored is not None:
        with suppress(InputError):  # the first bytes may end anywhere
            return _head(_HeadStream(stored), compression, source.name)
    return _head(FileStream(source, until=0), compression, source.name)


class _HeadStream(io.BytesIO):
    """The first bytes of a file, which were read already, as a stream."""

    stored = property(io.BytesIO.tell)


def _head(raw: RawStream, compression: str, name: str) -> bytes:
    with closing(decompressed(raw, compression, name)) as stream:
        buffer = bytearray(HEAD_BYTES)
        return bytes(buffer[: fill(stream, memoryview(buffer))])


def is_running_text(head: bytes) -> bool:
    """Whether a text with this beginning has paragraphs, with blank lines between them."""
    blank = head.replace(b"\r", b"").count(b"\n\n")
    return head.count(b"\n") >= _FEW_LINES and blank * _LINES_OF_PARAGRAPH >= head.count(b"\n")


def detect(
    source: Source,
    input_format: str = "auto",
    stored: bytes | None = None,
    *,
    opens_archives: bool = True,
) -> tuple[str, str]:
    """The format and the compression of a file; a format other than ``auto`` is taken as given.

    ``stored`` are its first HEAD_BYTES, if the caller has read them. InputError if it cannot be
    read; NoTextError if it has no text; with ``opens_archives`` each member of an archive is a
    document instead.
    """
    head = head_of(source, "") if stored is None else stored
    layers: list[str] = []
    while layer := compression_of(head):
        if len(layers) == MOST_LAYERS:
            raise InputError(f"{source.name}: compressed more than {MOST_LAYERS} times; unpack it")
        layers.append(layer)
        head = head_of(source, LAYER.join(layers), stored)
    compression = LAYER.join(layers)
    if input_format == "file":
        kind = why_no_text(head)
        if kind is not None and not (opens_archives and kind == ARCHIVE):
            raise no_text(source.name, kind)
        return input_format, compression
    if input_format != "auto":
        if (kind := kind_of(head)) and (kind.lost or input_format in _OF_TEXT):
            raise no_text(source.name, kind)
        return input_format, compression
    format_ = format_of(head, source.name, is_packed=bool(layers))
    if compression and (format_ in ("parquet", "arrow") or head.startswith(b"PK")):
        raise InputError(f"{source.name}: {format_} inside {compression}: decompress it first")
    if source.json_path and format_ not in ("jsonl", "json"):
        asked = option("json_path", source.json_path)
        raise InputError(f"{source.name}: this is {format_}, and {asked} is for JSON")
    return "json" if source.json_path else format_, compression


def is_tar(head: bytes) -> bool:
    """Whether a block of 512 bytes is the header of a tar, by its checksum."""
    if len(head) < 512:
        return False
    stored = head[148:156].strip(b" \0")
    if not stored.isdigit() or not re.fullmatch(rb"[0-7]+", stored):
        return False
    return sum(head[:148]) + 8 * ord(" ") + sum(head[156:512]) == int(stored, 8)


READ_BYTES = 256 << 10


class PeekableStream(DerivedStream):
    """A stream with its first bytes as ``head``, before they are read."""

    def __init__(self, stream: Stream, head: bytes | None = None) -> None:
        super().__init__(stream)
        self.head = read_exactly(stream, HEAD_BYTES) if head is None else head
        self._rest = memoryview(self.head)

    def readinto(self, view: memoryview) -> int:
        if not self._rest:
            return self._stream.readinto(view)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def read_exactly(stream: Stream, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the stream's end, and without trusting ``size``."""
    text = bytearray()
    while len(text) < size:
        buffer = bytearray(min(size - len(text), READ_BYTES))
        count = fill(stream, memoryview(buffer))
        text += buffer[:count]
        if count < len(buffer):
            break
    return bytes(text)
