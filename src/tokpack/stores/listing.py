"""What a URL names: an object, the objects below a folder, or those that match a pattern."""

from __future__ import annotations

import fnmatch
import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import StoreError
from tokpack.stores.urls import place_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.stores.backends import Backend
    from tokpack.stores.urls import StoredObject

_MAGIC = re.compile(r"[*?[]")
_DEEP = "**"


class ListedObjects(NamedTuple):
    """Objects that a URL led to; ``folder`` is the one that they are below, "" for none."""

    folder: str
    objects: list[StoredObject]


def find(store: Backend, url: str) -> list[ListedObjects]:
    """What a URL names, by name. StoreError where that is nothing.

    ``**`` stands for any number of folders. No wildcard stands for a dot at the beginning of a
    name, and what is below a folder leaves such names out. An https server lists nothing.
    """
    lists = place_of(url).kind != "http"
    if lists and _MAGIC.search(url):
        names = url.split("/")
        first = next(i for i, name in enumerate(names) if _MAGIC.search(name))
        matches = list(_walk(store, "/".join(names[:first]), names[first:]))
        if not matches:
            raise StoreError(f"{shown(url)}: no object matches this pattern")
        matches.sort(key=lambda one: _order(one.folder or one.objects[0].url))
        # Objects that follow each other are given together, so that they are looked at together.
        return [
            ListedObjects(folder, [one for listed in some for one in listed.objects])
            for folder, some in groupby(matches, key=lambda listed: listed.folder)
        ]
    one = None if url.endswith("/") else store.stat(url)
    if one is not None:
        return [ListedObjects("", [one])]
    objects = _visible_below(store, url.rstrip("/")) if lists else []
    if not objects:
        raise StoreError(f"{shown(url)}: no such object{' or folder' if lists else ''}")
    return [ListedObjects(url.rstrip("/"), objects)]


def _walk(store: Backend, base: str, rest: Sequence[str]) -> Iterator[ListedObjects]:
    """What matches ``rest`` in the folder ``base``."""
    name, more = rest[0], rest[1:]
    if name == _DEEP:
        for one in store.below(base):
            if _fits(_names(base, one), rest):
                yield ListedObjects("", [one])
        return
    if not _MAGIC.search(name) and more:
        yield from _walk(store, f"{base}/{name}", more)
        return
    folders, objects = store.level(base)
    for folder in folders:
        if _name_fits(folder.rpartition("/")[2], name):
            if more:
                yield from _walk(store, folder, more)
            elif below := _visible_below(store, folder):
                yield ListedObjects(folder, below)
    if not more:
        for one in objects:
            if _name_fits(one.url.rpartition("/")[2], name):
                yield ListedObjects("", [one])


def _visible_below(store: Backend, folder: str) -> list[StoredObject]:
    return in_order(one for one in store.below(folder) if _fits(_names(folder, one), [_DEEP]))


def _names(base: str, one: StoredObject) -> list[str]:
    return one.url[len(base) + 1 :].split("/")


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the names of folders and of a file are as the components of a pattern say."""
    if not pattern:
        return not names
    if pattern[0] == _DEEP:
        if len(pattern) == 1:
            return all(map(_is_visible, names))
        return _fits(names, pattern[1:]) or (
            bool(names) and _is_visible(names[0]) and _fits(names[1:], pattern)
        )
    return bool(names) and _name_fits(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _name_fits(name: str, pattern: str) -> bool:
    if name.startswith(".") and not pattern.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, pattern)


def _is_visible(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not name.endswith(".unfinished")


def in_order(objects: Iterable[StoredObject]) -> list[StoredObject]:
    """By the names of the folders first, and then by those of the objects in them."""
    return sorted(objects, key=lambda one: _order(one.url))


def _order(url: str) -> list[bytes]:
    return url.encode().split(b"/")
