"""Files of a disk and objects of stores behind one interface, by their paths or URLs.

Small files that must not overwrite the work of others are written only by ``Storage``. Its ``put``
and ``delete`` handle whole files, and act only if nothing exists, or a given version. ``Objects``
has the same methods for stores.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from tokpack.display import brief
from tokpack.errors import InputError, UsageError
from tokpack.storage import disk
from tokpack.storage.disk import MAX_BYTES, open_regular
from tokpack.storage.objects import StoredObject, is_url, objects, open_object, shown

if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]


Identity = disk.Identity | StoredObject  # both have a size
Version = Identity | None  # of a file or an object; None if there is none


class ListedFile(NamedTuple):
    """A file in a listing: its bytes, and when it was written, in seconds since the epoch.

    The time is by the clock of the disk or store, and 0 if it is not known.
    """

    size: int
    written: float


class Storage(Protocol):
    """Files or objects by name. InputError if unreadable, OutputError if not writable."""

    def stats(self, paths: Sequence[str]) -> Sequence[Version]:
        """The current version of each, or None if there is none."""

    def contents(self, paths: Sequence[str], most: int) -> list[bytes | None]:
        """The current content of small files, at most ``most`` bytes; None if there is none."""

    def listed(self, *begins: str) -> dict[str, ListedFile]:
        """The files whose paths begin with one of ``begins``, by path; none in folders below."""

    def put(self, path: str, content: bytes, mode: Any) -> Version:
        """Write a file as a whole, and return its version; None if ``mode`` forbids it.

        ``mode`` is "overwrite", "create" for a name that must be free, or the only version that may
        be replaced. With "create", an existing file with the same bytes counts as just written:
        this may be a second try whose first answer was lost.
        """

    def delete(self, path: str, version: Any = None) -> bool:
        """Remove a file, if it exists. Returns False if it is not ``version``."""


class Disk:
    """Files on disks. A link is not followed: a file that is put replaces it."""

    def stats(self, paths: Sequence[str]) -> list[disk.Identity | None]:
        return [disk.identity(path, follow_links=False) for path in paths]

    def contents(self, paths: Sequence[str], most: int) -> list[bytes | None]:
        return [self._content(path, most) for path in paths]

    def listed(self, *begins: str) -> dict[str, ListedFile]:
        files = {}
        for folder in {one[: len(one) - len(os.path.basename(one))] for one in begins}:
            try:
                with os.scandir(folder or os.curdir) as entries:
                    for entry in entries:
                        path = folder + entry.name
                        if path.startswith(begins):
                            with suppress(FileNotFoundError):
                                told = entry.stat()
                                files[path] = ListedFile(told.st_size, told.st_mtime)
            except FileNotFoundError:
                continue
            except OSError as error:
                where = error.filename or folder
                raise InputError(f"{where}: {error.strerror or error}") from error
        return files

    def put(self, path: str, content: bytes, mode: Any) -> disk.Identity | None:
        disk.make_parent(path)
        if mode == "create":
            if not disk.create_file(path, content) and self.contents([path], -1) != [content]:
                return None
        elif mode == "overwrite" or self.stats([path]) == [mode]:
            disk.replace_file(path, [content])
        else:
            return None
        return disk.identity(path)

    def delete(self, path: str, version: Any = None) -> bool:
        now = disk.identity(path, follow_links=False)
        if now and version and now != version:
            return False
        disk.remove_file(path)
        return True

    def _content(self, path: str, most: int) -> bytes | None:
        try:
            with open_regular(path) as file:
                return file.read(most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error


_disk = Disk()


def storage_of(path: str) -> Storage:
    """The storage in which a path or URL lies."""
    return cast("Storage", objects) if is_url(path) else _disk


def listed_files(begins: Iterable[str]) -> dict[str, ListedFile]:
    """The files on disks and stores whose paths begin with one of ``begins``, by path."""
    found: dict[str, ListedFile] = {}
    for storage in (_disk, cast("Storage", objects)):
        some = [begin for begin in begins if storage_of(begin) is storage]
        found |= storage.listed(*some) if some else {}
    return found


def small_files(paths: Sequence[str]) -> list[bytes | None]:
    """The contents of small files, all on disks or all on stores; None for a missing one.

    InputError if one cannot be read.
    """
    # One byte more than parsers accept, so that they can report a file as too large.
    return storage_of(paths[0]).contents(paths, MAX_BYTES + 1) if paths else []


def paths_of(inputs: PathLike | Iterable[PathLike], name: str = "inputs") -> tuple[str, ...]:
    """The paths of an argument that is one path or several, as strings. UsageError for others."""
    paths = (inputs,) if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(paths, Iterable) or isinstance(paths, bytes) or hasattr(paths, "read"):
        raise UsageError(f"{name} is {brief(paths)}: give a path, or a list of them")
    return tuple(os.fspath(path) for path in paths)


def exists(path: str) -> bool:
    """Whether a file or object exists. InputError if a store does not tell."""
    return objects.stat(path) is not None if is_url(path) else os.path.exists(path)


def is_file(path: str) -> bool:
    """Whether a regular file or an object exists. InputError if a store does not tell."""
    return objects.stat(path) is not None if is_url(path) else os.path.isfile(path)


def identity(path: str) -> Version:
    """The identity of a file or object, which changes with its content, or None."""
    return objects.stat(path) if is_url(path) else disk.identity(path)


def head(path: str, size: int) -> bytes:
    """The first bytes of a file, at most ``size``; b"" if it cannot be read.

    InputError if a store does not tell.
    """
    try:
        return storage_of(path).contents([path], size)[0] or b""
    except InputError:
        if is_url(path):
            raise
        return b""


def open_file(path: str) -> BinaryIO:
    """Open a regular file or an object to read. OSError, or InputError if a store fails."""
    return open_object(located(path)) if is_url(path) else open_regular(path)


def near(path: str) -> str:
    """The path itself, or for a URL a local copy, which must be opened at once.

    FileNotFoundError if there is no such object, InputError if the store fails.
    """
    return objects.copies([located(path)])[0] if is_url(path) else path


def located(url: str) -> StoredObject:
    """The object of a URL. FileNotFoundError if there is none, InputError if the store fails."""
    stored = objects.stat(url)
    if stored is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(url))
    return stored


def joined(folder: str, name: str) -> str:
    """The path or URL for a name that may be relative to ``folder``."""
    return name if is_url(name) else os.path.join(folder, name)


def refuse(paths: Iterable[str], what: str) -> None:
    """Raise UsageError for a URL, because ``what`` works only on disks."""
    for path in filter(is_url, paths):
        raise UsageError(
            f"{shown(path)}: {what} works only on disks: copy files from the store, or to it"
        )
