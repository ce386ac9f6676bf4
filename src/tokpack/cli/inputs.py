"""Inputs that commands are given: datasets by a pattern, texts in a format."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from tokpack.cli.parser import flag
from tokpack.errors import InputError
from tokpack.stores import find, is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

INPUT_FORMAT = flag(
    "--input-format",
    choices=("auto", "jsonl", "json", "text", "parquet", "arrow", "archive"),
    metavar="FORMAT",
    help="auto, jsonl, json, text, parquet, arrow or archive (auto)",
)
_FILES = (".bin", ".idx", ".json")


def matching_datasets(names: Iterable[str]) -> list[str]:
    """The names; a pattern that the shell did not expand becomes the datasets that match it.

    InputError where none does.
    """
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.indexed.prefix import prefixes_of

    found = []
    for name in names:
        if not glob.has_magic(name) or any(os.path.exists(name + end) for end in ("", *_FILES)):
            found.append(name)
            continue
        stem, suffix = os.path.splitext(name)
        stem = stem if suffix in _FILES else name
        if is_url(name):
            listed = [one.url for some in find(f"{stem}.*") for one in some.objects]
            paths = [path for path in listed if path.endswith(_FILES)]
        else:
            paths = [path for end in _FILES for path in glob.glob(stem + end, recursive=True)]
        prefixes = sorted(set(prefixes_of(paths)))
        prefixes = [one for one in prefixes if MMapIndexedDataset.exists(one)]
        if not prefixes:
            raise InputError(f"{name}: no dataset matches this pattern")
        found += prefixes
    return found
