"""Small files beside a dataset, on a disk or on a store: read, written whole, listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.files.foreign import MAX_BYTES
from tokpack.stores.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.stores.storage import ListedFile

_MOST = MAX_BYTES + 1  # whoever parses more than MAX_BYTES says so


def read(path: str) -> bytes | None:
    """A file, whole; None where there is none. InputError where it cannot be read."""
    return read_all([path])[0]


def read_all(paths: Sequence[str]) -> list[bytes | None]:
    """Several files, many at a time; None for one that is not there. InputError."""
    return storage_of(paths[0]).contents(paths, _MOST) if paths else []


def write(path: str, content: bytes) -> None:
    """Write a file whole, in place of any that is there. Raises OutputError."""
    storage_of(path).put(path, content, "overwrite")


def create(path: str, content: bytes) -> bool:
    """Write a file whole if there is none. False where one of other content is. OutputError."""
    return storage_of(path).put(path, content, "create") is not None


def listed(begin: str) -> dict[str, ListedFile]:
    """The files whose paths begin so, in the folder that this names. InputError."""
    return storage_of(begin).listed(begin)
