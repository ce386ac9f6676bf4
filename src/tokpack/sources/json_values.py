"""JSON values that do not end at line ends, as a stream of JSON lines."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tokpack._core import JsonValues
from tokpack.errors import InputError, option
from tokpack.sources.base import BOM
from tokpack.sources.streams import DerivedStream, fill

if TYPE_CHECKING:
    from tokpack.sources.streams import Stream

_CHUNK_BYTES = 256 << 10


class JsonValuesStream(DerivedStream):
    """The records in ``stream``, each on a line of its own.

    They are the elements of an array, or values that follow each other over any number of lines, or
    with ``path``, a key ``a.b``, the elements of the array under it.
    """

    def __init__(self, stream: Stream, name: str, path: str = "") -> None:
        super().__init__(stream)
        self._name, self._path = name, path
        self._values = JsonValues(path.split(".") if path else [])
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._lines = memoryview(b"")
        self._taken = 0

    def readinto(self, view: memoryview) -> int:
        while not self._lines:
            count = fill(self._stream, self._chunk)
            if count == 0:
                if not self._values.finished:
                    raise InputError(f"{self._name}: the JSON is cut off after {self._taken} bytes")
                return 0
            chunk = self._chunk[:count]
            if self._taken == 0 and chunk[: len(BOM)] == BOM:
                chunk = chunk[len(BOM) :]
            try:
                self._lines = memoryview(self._values.feed(chunk))
            except ValueError as error:
                what = f"{option('json_path', self._path)}: " if self._path else "not JSON: "
                raise InputError(f"{self._name}: {what}{error}") from error
            self._taken += count
        count = min(len(view), len(self._lines))
        view[:count] = self._lines[:count]
        self._lines = self._lines[count:]
        return count


_decoder = json.JSONDecoder(parse_int=str, parse_float=str)
_CUT = 8  # last characters of a text that may be an incomplete value
_GAP = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


def ends_where_lines_do(text: bytes, *, is_whole: bool) -> bool:
    """Whether a text that begins with ``{`` looks like JSON lines.

    ``is_whole``: it is the whole text. JSON lines may have a damaged first line, or a line with
    several values, if another line follows.
    """
    decoded = text.decode("utf-8", "replace")
    try:
        _, end = _decoder.raw_decode(decoded)
    except json.JSONDecodeError as error:  # or the text ends inside the value
        seen = len(decoded) if is_whole else len(decoded) - _CUT
        return (
            error.pos < seen and not error.msg.startswith("Unterminated")
        ) or "\n" not in decoded
    except RecursionError:
        return True
    rest = decoded[end:].lstrip(" \t\r")
    return "\n" not in decoded[:end] and (rest[:1] not in ("{", ",") or "\n" in rest)


def separate_values(line: bytes) -> list[bytes] | None:
    """The objects that follow each other on a line, or None if the line has anything else."""
    try:
        text = line.decode().strip()
        found, end = [], 0
        while end < len(text):
            begin = end
            _, end = _decoder.raw_decode(text, begin)
            found.append(text[begin:end].encode())
            end = _GAP.match(text, end).end()  # type: ignore[union-attr]  # of any text
    except (ValueError, RecursionError):
        return None
    return found if all(one.startswith(b"{") for one in found) else None
