"""What something is that was taken for a dataset, or for the name of one: the end of a message."""

from __future__ import annotations

import os
from itertools import islice

_TEXT = (".txt", ".text", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz")
_YAML = (".yaml", ".yml")
_LISTED = 10_000  # entries of a folder that are read
_SHOWN = 4


def is_dataset(name: str) -> bool:
    """Whether a dataset has this prefix, or this is one of its two files."""
    stem, suffix = os.path.splitext(name)
    prefix = stem if suffix in (".bin", ".idx") else name
    return os.path.isfile(prefix + ".idx")


def not_a_dataset(name: str) -> str:
    """What a file or folder is that is no dataset, and what to do with it; "" for anything else."""
    suffixes = os.path.basename(name).lower().split(".")[1:]
    last = f".{suffixes[-1]}" if suffixes else ""
    if os.path.isdir(name):
        return _folder(name)
    if not os.path.isfile(name):
        return ""
    if last in _PACKED or last in _TEXT:
        return f"{name} has documents, not tokens: encode it first, tokpack encode {name}"
    if last in _YAML:
        return f"{name} is no dataset; a blend file is for tokpack blend and tokpack train"
    return f"{name} is a file, but none of a dataset"


def _folder(name: str) -> str:
    try:
        with os.scandir(name) as entries:
            names = [one.name for one in islice(entries, _LISTED)]
    except OSError:
        return ""
    stems = sorted(one[:-4] for one in names if one.endswith(".idx"))
    if not stems:
        return f"{name} is a folder, and no dataset lies in it"
    shown = ", ".join(os.path.join(name, stem) for stem in stems[:_SHOWN])
    more = f" and {len(stems) - _SHOWN} more" if len(stems) > _SHOWN else ""
    return f"{name} is a folder; the datasets in it are {shown}{more}"
