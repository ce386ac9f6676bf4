"""The journal of a run, journal.jsonl: what is stored where, a line each; only ever appended to.

A line begins with the xxh3_64 of its JSON. A crash may leave a line that is cut off, and a power
loss one that is damaged: from there on nothing is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ujson
import xxhash

from tokpack.encoding.folder import open_own
from tokpack.errors import OutputError
from tokpack.files.durable import cannot_write

if TYPE_CHECKING:
    from collections.abc import Generator

    from tokpack.encoding.folder import WorkFolder

NAME = "journal.jsonl"
_DIGITS = 16


class Journal:
    """The journal of a work folder, open to read what is there, and then to append."""

    def __init__(self, folder: WorkFolder) -> None:
        self.path = folder(NAME)
        with cannot_write(self.path):
            self.file = open_own(self.path, os.O_RDWR | os.O_CREAT)

    def read(self) -> Generator[dict[str, Any]]:
        """The entries up to the first that is not whole, or to where the iterator is closed.

        What follows goes, and the journal goes on from there. Raises OutputError.
        """
        end = 0
        try:
            with open(self.file, "rb", closefd=False) as file:
                for line in file:
                    entry = _entry(line)
                    if entry is None:
                        break
                    yield entry
                    end += len(line)
        except GeneratorExit:
            pass
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(f"{self.path}: cannot be read: {reason}") from error
        with cannot_write(self.path):
            os.ftruncate(self.file, end)
            os.lseek(self.file, 0, os.SEEK_END)

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry. Raises OutputError."""
        text = ujson.dumps(entry, escape_forward_slashes=False).encode()
        line = memoryview(xxhash.xxh3_64_hexdigest(text).encode() + text + b"\n")
        with cannot_write(self.path):
            while line:
                line = line[os.write(self.file, line) :]

    def clear(self) -> None:
        """Begin anew. Raises OutputError."""
        with cannot_write(self.path):
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


def _entry(line: bytes) -> dict[str, Any] | None:
    text = line[_DIGITS:-1]
    if not line.endswith(b"\n") or xxhash.xxh3_64_hexdigest(text).encode() != line[:_DIGITS]:
        return None
    value = ujson.loads(text)
    return value if isinstance(value, dict) else None
