"""Small files beside a dataset, on a disk or on a store: read, written whole, listed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tokpack import stores
from tokpack.errors import InputError
from tokpack.files.durable import (
    create_file,
    make_folder_of,
    open_regular,
    replace_file,
)
from tokpack.files.foreign import MAX_BYTES
from tokpack.stores import is_url, upload

if TYPE_CHECKING:
    from collections.abc import Sequence


class ListedFile(NamedTuple):
    """A file as a listing has it: bytes, and when it was written, in seconds since the epoch by the
    clock of the disk or store; 0 where that is not known.
    """

    size: int
    written: float


def read(path: str) -> bytes | None:
    """A file, whole; None where there is none. InputError where it cannot be read."""
    return read_all([path])[0]


def read_all(paths: Sequence[str]) -> list[bytes | None]:
    """Several files, many at a time; None for one that is not there. InputError."""
    if paths and is_url(paths[0]):
        return stores.contents(paths, MAX_BYTES)
    return [_read(path) for path in paths]


def write(path: str, content: bytes) -> None:
    """Write a file whole, in place of any that is there. Raises OutputError."""
    if is_url(path):
        upload.write(content, path)
    else:
        make_folder_of(path)
        replace_file(path, [content])


def create(path: str, content: bytes) -> bool:
    """Write a file whole if there is none. False where one of other content is. OutputError."""
    if is_url(path):
        return upload.create(content, path)
    make_folder_of(path)
    return create_file(path, content) or _read(path) == content


def listed(begin: str) -> dict[str, ListedFile]:
    """The files whose paths begin so, in the folder that this names. InputError."""
    if is_url(begin):
        objects = stores.objects_in(begin.rpartition("/")[0])
        found = {one.url: ListedFile(one.size, one.written) for one in objects}
        return {url: one for url, one in found.items() if url.startswith(begin)}
    folder = begin[: len(begin) - len(os.path.basename(begin))]
    there = {}
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                path = folder + entry.name
                if path.startswith(begin):
                    with suppress(FileNotFoundError):
                        there[path] = ListedFile(entry.stat().st_size, entry.stat().st_mtime)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    return there


def _read(path: str) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read(MAX_BYTES + 1)  # whoever parses more than MAX_BYTES says so
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
