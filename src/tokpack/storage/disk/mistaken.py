"""Hints for a file that was given as a dataset, but is something else."""

from __future__ import annotations

import os
import re
from itertools import islice

from tokpack.display import nearest
from tokpack.errors import NoDatasetError, option

_TEXT = (".txt", ".text", ".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz")
_TOKENIZERS = (".tiktoken", ".model")
_KEYS_BYTES = 1024  # at the beginning of a tokenizer.json, enough for its first keys
_YAML = (".yaml", ".yml")
_CHECKPOINT = b'"checkpoint"'
_HEAD_BYTES = 4096
_LISTED = 10_000  # entries of a folder that are read
_SHOWN = 4
# The beginning of pointer files, which stand for large files in repositories cloned without them.
# The address of Git LFS is shortened, because a caller may have read only the header of an index.
_POINTERS = {
    "a Git LFS pointer instead of the file: git lfs pull fetches it": re.compile(
        rb"(\xef\xbb\xbf)?\s*version https://(git-lfs|hawser)\.github\.com"
    ),
    "a git-annex pointer instead of the file: git annex get fetches it": re.compile(
        rb"(\xef\xbb\xbf)?\s*/annex/objects/[A-Z]"
    ),
}


def pointer_in(head: bytes) -> str:
    """What to do about a pointer file, recognized by its first bytes; "" for other files."""
    return next((what for what, begins in _POINTERS.items() if begins.match(head)), "")


def is_dataset(name: str) -> bool:
    """Whether this is the prefix of a dataset, or one of its two files."""
    stem, suffix = os.path.splitext(name)
    prefix = stem if suffix in (".bin", ".idx") else name
    return os.path.isfile(prefix + ".idx")


def is_tokenizer(name: str, head: bytes) -> bool:
    """Whether a file with this beginning belongs to a tokenizer, by its name or keys."""
    if name.endswith(_TOKENIZERS):
        return True
    begin = head[:_KEYS_BYTES].lstrip()
    return begin.startswith(b"{") and b'"added_tokens"' in begin and b'"version"' in begin


def not_a_dataset(name: str) -> str:
    """What a file or folder is instead of a dataset, and what to do; "" if unknown."""
    suffixes = os.path.basename(name).lower().split(".")[1:]
    last = f".{suffixes[-1]}" if suffixes else ""
    if os.path.isdir(name):
        return _folder(name)
    for file in (name, f"{name}.json"):  # a prefix has no .json
        if file.endswith(".json") and is_tokenizer(file, _head(file)):
            return f"{file} is a tokenizer, not a dataset"
    if not os.path.isfile(name):
        return ""
    if last in _PACKED or last in _TEXT:
        return f"{name} has documents, not tokens: encode it first with tokpack encode {name}"
    if last in _YAML:
        return (
            f"{name} is not a dataset; blend and settings files are for tokpack blend, tokpack "
            "train and tokpack view"
        )
    return f"{name} is a file, but not of a dataset"


def no_dataset(prefix: str, text: str) -> NoDatasetError:
    """The error for a name without a dataset: what it really is, or ``text`` and a hint."""
    error = NoDatasetError(not_a_dataset(prefix) or text + did_you_mean(prefix, ".idx"))
    error.prefix = prefix
    return error


def did_you_mean(path: str, end: str = "") -> str:
    """A hint at the existing name that was probably meant instead of a missing file.

    Candidates are names with this ``end``, which is cut off; for "" all but .bin files.
    """
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder or ".") as entries:
            names = [
                one.name.removesuffix(end)
                for one in islice(entries, _LISTED)
                if one.name.endswith(end) and (end or not one.name.endswith((".bin", ".idx")))
            ]
    except (OSError, ValueError):
        return f"; there is no folder {folder}" if folder and not os.path.isdir(folder) else ""
    # Compared up to the first dot: endings make any two names similar.
    stems = {one: one.partition(".")[0] for one in names}
    stem = nearest(name.partition(".")[0], stems.values())
    alike = sorted(one for one in names if stems[one] == stem)
    near = nearest(name, alike) or (alike[0] if len(alike) == 1 else None)
    return f"; did you mean {os.path.join(folder, near)}?" if near else ""


def not_settings(name: str) -> str:
    """What a file given as settings really is, and its flag; "" if it may be settings."""
    stem, suffix = os.path.splitext(name)
    prefix = stem if suffix in (".bin", ".idx", ".json") else name
    if os.path.isdir(name) and _is_run(name):
        return f"{name} is the folder of a run: continue it with {option('load')} {name}"
    if is_dataset(prefix):
        return f"{name} is a dataset, not a settings file: give {option('data_path')} {prefix}"
    if name.lower().endswith((*_PACKED, *(one for one in _TEXT if one != ".json"))):
        return (
            f"{name} has documents, not settings: run tokpack encode {name}, and give the new "
            f"dataset as {option('data_path')}"
        )
    return ""


def _head(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return file.read(_HEAD_BYTES)
    except (OSError, ValueError):  # ValueError: an impossible name
        return b""


def _is_run(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "latest"))


def _folder(name: str) -> str:
    try:
        with os.scandir(name) as entries:
            names = [one.name for one in islice(entries, _LISTED)]
    except OSError:
        return ""
    stems = sorted(one[:-4] for one in names if one.endswith(".idx"))
    if not stems and _is_run(name):
        return f"{name} is the folder of a training run, not a dataset: see tokpack view {name}"
    if not stems and _CHECKPOINT in _head(os.path.join(name, ".tokpack-folder.json")):
        return f"{name} is a training checkpoint, not a dataset: see tokpack view on its folder"
    if not stems:
        return f"{name} is a folder without a dataset"
    shown = ", ".join(os.path.join(name, stem) for stem in stems[:_SHOWN])
    more = f" and {len(stems) - _SHOWN} more" if len(stems) > _SHOWN else ""
    return f"{name} is a folder; the datasets in it are {shown}{more}"
