"""The journal of a run, journal.jsonl: what is stored where, a line each.

A line begins with the xxh3_64 of its JSON. A crash may leave a line that is cut off, and a power
loss one that is damaged: from there on nothing is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import ujson
import xxhash

from tokpack.encoding.folder import open_own
from tokpack.files.durable import cannot_write, replace_file

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from tokpack.encoding.folder import WorkFolder

NAME = "journal.jsonl"
_DIGITS = 16


class Journal:
    """The journal of a work folder, begun anew with ``entries``, to append more. OutputError."""

    def __init__(self, folder: WorkFolder, entries: Iterable[dict[str, Any]]) -> None:
        self.path = folder(NAME)
        replace_file(self.path, map(_line, entries))
        with cannot_write(self.path):
            self.file = open_own(self.path, os.O_RDWR | os.O_APPEND)

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry. Raises OutputError."""
        line = memoryview(_line(entry))
        with cannot_write(self.path):
            while line:
                line = line[os.write(self.file, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self.file)


def read_journal(folder: WorkFolder) -> Generator[dict[str, Any]]:
    """The entries of the journal that is there, up to the first that is not whole. OutputError."""
    path = folder(NAME)
    with cannot_write(path):
        try:
            file = open_own(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with open(file, "rb") as lines:
            for line in lines:
                text = line[_DIGITS:-1]
                if _digest(text) != line[:_DIGITS]:
                    return
                yield ujson.loads(text)


def _line(entry: dict[str, Any]) -> bytes:
    text = ujson.dumps(entry, escape_forward_slashes=False).encode()
    return _digest(text) + text + b"\n"


def _digest(text: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(text).encode()
