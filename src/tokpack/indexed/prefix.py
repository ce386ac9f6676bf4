"""The prefix of a dataset, from what people name it by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.stores import exists, is_url, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIXES = (
    ".bin",
    ".idx",
    ".json",
    ".selection",
    ".docs.parquet",
    ".dropped.parquet",
    ".mask",
    ".weights",
    ".labels",
)


def prefix_of(name: str | os.PathLike[str]) -> str:
    """The prefix of a dataset, from itself or from the name of one of its files.

    UsageError for a URL with a password or a query, which no other object has and no message shows.
    """
    prefix = os.fsdecode(name)
    if is_url(prefix) and shown(prefix) != prefix:
        raise UsageError(
            f"{shown(prefix)}: a dataset is several objects: its URL takes no password and no query"
        )
    suffix = next((suffix for suffix in SUFFIXES if prefix.endswith(suffix)), "")
    stem = prefix.removesuffix(suffix)
    if not suffix or not os.path.basename(stem) or _has(prefix, ".bin", ".idx"):
        return prefix
    virtual = _has(prefix, ".json") and not _has(stem, ".bin", ".idx", ".json")
    return prefix if virtual else stem


def prefixes_of(names: Sequence[str]) -> list[str]:
    """Prefixes from names: a dataset given by several of its files, as globs do, counts once."""
    suffixes: dict[str, str] = {}
    prefixes = []
    for name in names:
        prefix = prefix_of(name)
        suffix = name.removeprefix(prefix)
        if suffixes.setdefault(prefix, suffix) == suffix:  # what is given twice is meant twice
            prefixes.append(prefix)
    return prefixes


def _has(prefix: str, *suffixes: str) -> bool:
    return any(exists(prefix + suffix) for suffix in suffixes)
