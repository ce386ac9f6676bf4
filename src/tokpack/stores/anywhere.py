"""The same questions to a file on a disk and to an object on a store: a path may be a URL."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from tokpack.errors import UsageError
from tokpack.files import durable
from tokpack.files.durable import open_regular
from tokpack.stores.access import copies, heads, open_object, stat
from tokpack.stores.urls import StoredObject, is_url, shown

if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]

Identity = durable.Identity | StoredObject  # both have a size


def paths_of(inputs: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """A path, or each of several, as a string. UsageError for what is neither."""
    given = (inputs,) if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(given, Iterable) or isinstance(given, bytes) or hasattr(given, "read"):
        raise UsageError(f"inputs is {given!r}: give a path, or a list of them")
    return tuple(os.fspath(path) for path in given)


def exists(path: str) -> bool:
    """Whether there is such a file or object. InputError where a store does not tell."""
    return stat(path) is not None if is_url(path) else os.path.exists(path)


def is_file(path: str) -> bool:
    """Whether there is such a regular file or object. InputError where a store does not tell."""
    return stat(path) is not None if is_url(path) else os.path.isfile(path)


def identity(path: str) -> Identity | None:
    """What tells a file or object from another that takes its place; None where there is none."""
    return stat(path) if is_url(path) else durable.identity(path)


def head(path: str, size: int) -> bytes:
    """The first bytes, ``size`` at most; none where no regular file of that name can be read.

    InputError where a store does not tell.
    """
    if is_url(path):
        found = stat(path)
        return heads([found], size)[0] if found else b""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


def open_file(path: str) -> BinaryIO:
    """Open a regular file or an object to read. OSError; InputError where a store fails."""
    return open_object(located(path)) if is_url(path) else open_regular(path)


def near(path: str) -> str:
    """The path of a file on this machine: for a URL that of a copy, which is to be opened at once.

    FileNotFoundError where there is no such object, InputError where the store fails.
    """
    if not is_url(path):
        return path
    return copies([located(path)])[0]


def located(url: str) -> StoredObject:
    """The object of a URL; FileNotFoundError where there is none, InputError."""
    found = stat(url)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(url))
    return found


def joined(folder: str, name: str) -> str:
    """What a file in ``folder`` means by a name: one that is relative lies there."""
    return name if is_url(name) else os.path.join(folder, name)


def refuse(paths: Iterable[str], what: str) -> None:
    """UsageError for a URL where ``what`` is done with files of a disk alone."""
    for path in filter(is_url, paths):
        raise UsageError(
            f"{shown(path)}: {what} works on files of a disk: copy them from the store, or to it"
        )
