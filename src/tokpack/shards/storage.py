"""Small files beside a dataset, on a disk or on a store: read, written whole, listed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tokpack import stores
from tokpack.errors import InputError
from tokpack.files.durable import (
    create_file,
    make_folder_of,
    open_regular,
    remove_file,
    replace_file,
)
from tokpack.files.foreign import MAX_BYTES
from tokpack.stores import is_url, upload

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def remove(path: str) -> None:
    """Remove a file, which may be gone. Raises OutputError."""
    if is_url(path):
        upload.remove(path)
    else:
        remove_file(path)


def sizes(prefix: str) -> dict[str, int]:
    """The files that begin with ``prefix`` and a dash, by their paths. InputError."""
    if is_url(prefix):
        folder = prefix.rpartition("/")[0]
        objects = stores.objects_in(folder)
        return {one.url: one.size for one in objects if one.url.startswith(prefix + "-")}
    folder = prefix[: len(prefix) - len(os.path.basename(prefix))]
    there = {}
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                path = folder + entry.name
                if path.startswith(prefix + "-"):
                    with suppress(FileNotFoundError):
                        there[path] = entry.stat().st_size
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
