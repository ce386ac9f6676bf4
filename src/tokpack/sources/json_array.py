"""One JSON array as a stream of JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack._core import JsonArray
from tokpack.errors import InputError
from tokpack.sources.base import BOM
from tokpack.sources.streams import DerivedStream, fill

if TYPE_CHECKING:
    from tokpack.sources.streams import Stream

_CHUNK_BYTES = 256 << 10


class JsonArrayStream(DerivedStream):
    """The elements of the array in ``stream``, one a line."""

    def __init__(self, stream: Stream, name: str) -> None:
        super().__init__(stream)
        self._name = name
        self._array = JsonArray()
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._lines = memoryview(b"")
        self._taken = 0

    def readinto(self, view: memoryview) -> int:
        while not self._lines:
            count = fill(self._stream, self._chunk)
            if count == 0:
                if not self._array.finished:
                    raise InputError(
                        f"{self._name}: the JSON array is cut off after {self._taken} bytes"
                    )
                return 0
            chunk = self._chunk[:count]
            if self._taken == 0 and chunk[: len(BOM)] == BOM:
                chunk = chunk[len(BOM) :]
            try:
                self._lines = memoryview(self._array.feed(chunk))
            except ValueError as error:
                raise InputError(f"{self._name}: no JSON array: {error}") from error
            self._taken += count
        count = min(len(view), len(self._lines))
        view[:count] = self._lines[:count]
        self._lines = self._lines[count:]
        return count
