"""Files of a disk and objects of stores behind one interface, by their paths or URLs.

What must be safe writes by ``Storage`` alone: ``put`` and ``delete`` of whole contents, each where
nothing is there, or one version. ``Objects`` has the same methods for stores.
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
from tokpack.storage.objects.access import objects, open_object
from tokpack.storage.objects.urls import StoredObject, is_url, shown

if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]


Identity = disk.Identity | StoredObject  # both have a size
Version = Identity | None  # of a file or an object; None where nothing is there


class ListedFile(NamedTuple):
    """A file as a listing has it: bytes, and when it was written, in seconds since the epoch by the
    clock of the disk or store; 0 where that is not known.
    """

    size: int
    written: float


class Storage(Protocol):
    """Contents with names. InputError where something cannot be read, OutputError else."""

    def stats(self, paths: Sequence[str]) -> Sequence[Version]:
        """The version of each that is there now."""

    def contents(self, paths: Sequence[str], most: int) -> list[bytes | None]:
        """Small ones as they are now, ``most`` bytes at most of each; None where none is."""

    def listed(self, begin: str) -> dict[str, ListedFile]:
        """Those whose paths begin so, in the folder that this names."""

    def put(self, path: str, content: bytes, mode: Any) -> Version:
        """Write one whole, in place of what ``mode`` allows: "overwrite", "create", or a version.

        Gives the version that is there then; None where something else is there. The same bytes
        are nothing else where there may be nothing.
        """

    def delete(self, path: str, version: Any = None) -> bool:
        """Remove one, which may be gone; False where it is not ``version``."""


class Disk:
    """Storage of files. A link is not followed: what is put takes its place."""

    def stats(self, paths: Sequence[str]) -> list[disk.Identity | None]:
        return [disk.identity(path, follow_links=False) for path in paths]

    def contents(self, paths: Sequence[str], most: int) -> list[bytes | None]:
        return [self._content(path, most) for path in paths]

    def listed(self, begin: str) -> dict[str, ListedFile]:
        folder = begin[: len(begin) - len(os.path.basename(begin))]
        files = {}
        try:
            with os.scandir(folder or os.curdir) as entries:
                for entry in entries:
                    path = folder + entry.name
                    if path.startswith(begin):
                        with suppress(FileNotFoundError):
                            files[path] = ListedFile(entry.stat().st_size, entry.stat().st_mtime)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
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
    """Where a path or a URL lies."""
    return cast("Storage", objects) if is_url(path) else _disk


def small_files(paths: Sequence[str]) -> list[bytes | None]:
    """Files of one place, whole, many at a time; None for one that is not there. InputError."""
    # Whoever parses more than MAX_BYTES says so.
    return storage_of(paths[0]).contents(paths, MAX_BYTES + 1) if paths else []


def paths_of(inputs: PathLike | Iterable[PathLike], name: str = "inputs") -> tuple[str, ...]:
    """A path, or each of several, as a string. UsageError for what is neither."""
    paths = (inputs,) if isinstance(inputs, str | os.PathLike) else inputs
    if not isinstance(paths, Iterable) or isinstance(paths, bytes) or hasattr(paths, "read"):
        raise UsageError(f"{name} is {brief(paths)}: give a path, or a list of them")
    return tuple(os.fspath(path) for path in paths)


def exists(path: str) -> bool:
    """Whether there is such a file or object. InputError where a store does not tell."""
    return objects.stat(path) is not None if is_url(path) else os.path.exists(path)


def is_file(path: str) -> bool:
    """Whether there is such a regular file or object. InputError where a store does not tell."""
    return objects.stat(path) is not None if is_url(path) else os.path.isfile(path)


def identity(path: str) -> Version:
    """What tells a file or object from another that takes its place; None where there is none."""
    return objects.stat(path) if is_url(path) else disk.identity(path)


def head(path: str, size: int) -> bytes:
    """The first bytes, ``size`` at most; none where no regular file of that name can be read.

    InputError where a store does not tell.
    """
    try:
        return storage_of(path).contents([path], size)[0] or b""
    except InputError:
        if is_url(path):
            raise
        return b""


def open_file(path: str) -> BinaryIO:
    """Open a regular file or an object to read. OSError; InputError where a store fails."""
    return open_object(located(path)) if is_url(path) else open_regular(path)


def near(path: str) -> str:
    """The path of a file on this machine: for a URL that of a copy, which is to be opened at once.

    FileNotFoundError where there is no such object, InputError where the store fails.
    """
    return objects.copies([located(path)])[0] if is_url(path) else path


def located(url: str) -> StoredObject:
    """The object of a URL; FileNotFoundError where there is none, InputError."""
    stored = objects.stat(url)
    if stored is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(url))
    return stored


def joined(folder: str, name: str) -> str:
    """What a file in ``folder`` means by a name: one that is relative lies there."""
    return name if is_url(name) else os.path.join(folder, name)


def refuse(paths: Iterable[str], what: str) -> None:
    """UsageError for a URL where ``what`` is done with files of a disk alone."""
    for path in filter(is_url, paths):
        raise UsageError(
            f"{shown(path)}: {what} works on files of a disk: copy them from the store, or to it"
        )
