"""Definitions that were read from large files, kept in the user's cache folder.

An entry is named by the sha256 of the tokenizer's file and of the code that reads it, with the
library that is asked how it changes characters (``spec_normalizer``). It lies in a folder that only
its owner may write to, and carries its own checksum. Whatever cannot be trusted is read as if it
were not there, and what cannot be written is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import OutputError
from tokpack.files.cache_root import cache_root
from tokpack.files.durable import open_regular, replace_file
from tokpack.tokenizers.spec import (
    AddedToken,
    ByteLevelSpec,
    MetaspaceSpec,
    UnigramSpec,
    WordPieceSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.tokenizers.spec import BpeSpec

OFF = "TOKPACK_TOKENIZER_CACHE"  # 0 switches it off
LEAST_BYTES = 1 << 20  # of a file; a smaller one is read as fast
_MOST_ENTRIES = 16  # the newest stay
_MOST_HEAD = 1 << 26
_MOST_BYTES = 1 << 30  # of an entry


def kept(raw: bytes, build: Callable[[], BpeSpec]) -> BpeSpec:
    """What ``build`` makes of a tokenizer's file, taken from the cache where it is there."""
    path = _entry(raw)
    if path is None:
        return build()
    spec = _read(path)
    if spec is None:
        spec = build()
        _write(path, spec)
    return spec


def _entry(raw: bytes) -> Path | None:
    """Where the definition of a file is kept; None where it is not to be."""
    if len(raw) < LEAST_BYTES or os.environ.get(OFF) == "0" or not hasattr(os, "geteuid"):
        return None
    try:
        digest = hashlib.sha256(raw)
        digest.update(_code())
        return cache_root() / "definitions" / digest.hexdigest()
    except (OSError, RuntimeError):  # no source files, or a user without a home
        return None


@cache
def _code() -> bytes:
    """sha256 of what reads a file: Python's version, the library's file, those of this room."""
    digest = hashlib.sha256(sys.version.encode())
    library = find_spec("tokenizers")  # is not loaded by that, and its version would take longer
    if library and library.origin:
        status = os.stat(library.origin)
        digest.update(f"{library.origin} {status.st_size} {status.st_mtime_ns}".encode())
    digest.update(Path(__file__).read_bytes())  # OSError without source files
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _read(path: Path) -> BpeSpec | None:
    try:
        if not _is_safe(os.lstat(path.parent)):
            return None
        with open_regular(str(path)) as file:
            status = os.fstat(file.fileno())
            if not _is_safe(status):
                return None
            head = json.loads(file.readline(_MOST_HEAD))
            sizes = (head["head"], 4 * head["ids"], head["bytes"], 12 * head["merges"])
            if head["entry"] != path.name or file.tell() + sum(sizes) != status.st_size:
                return None
            if min(sizes) < 0 or sum(sizes) > _MOST_BYTES:
                return None
            chunks = [file.read(size) for size in sizes]
            expected = head["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return _spec(expected, *chunks) if digest.hexdigest() == expected else None


def _is_safe(status: os.stat_result) -> bool:
    """Whether only this user may write there."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _spec(digest: str, head: bytes, lengths: bytes, text: bytes, merges: bytes) -> BpeSpec:
    settings: dict[str, Any] = json.loads(head)
    added = tuple(AddedToken(*token) for token in settings.pop("added"))
    sizes = np.frombuffer(lengths, "<i4")
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64).tolist()
    vocab: list[bytes | None] = [text[begin:end] for begin, end in pairwise([0, *ends])]
    for id_ in np.flatnonzero(sizes < 0).tolist():
        vocab[id_] = None
    pairs = np.frombuffer(merges, "<i4").astype(np.int32, copy=False).reshape(-1, 3)
    kind: type[BpeSpec] = MetaspaceSpec
    if "pattern" in settings:
        kind = ByteLevelSpec
        nfc = settings.pop("nfc")
        settings.setdefault("form", "NFC" if nfc else "")
    elif "scores" in settings:
        kind = UnigramSpec
    elif "longest_word" in settings:
        kind = WordPieceSpec
    spec = kind(vocab=vocab, merges=pairs, added=added, **settings)
    spec.__dict__["digest"] = digest  # which would be computed from the same bytes again
    return spec


def _write(path: Path, spec: BpeSpec) -> None:
    chunks = spec.chunks()
    head = {
        "entry": path.name,
        "sha256": spec.digest,
        "head": len(chunks[0]),
        "ids": len(spec.vocab),
        "bytes": len(chunks[2]),
        "merges": len(spec.merges),
    }
    with suppress(OSError, OutputError):
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_safe(os.lstat(path.parent)):
            # Not synced: what a power loss leaves of it has another checksum.
            replace_file(path, [json.dumps(head).encode() + b"\n", *chunks], fsync=False)
            path.chmod(0o600)
            keep_newest(path.parent, _MOST_ENTRIES)


def keep_newest(folder: str | os.PathLike[str], count: int) -> None:
    """Remove the files of a folder but the newest. Raises OSError."""
    entries = [entry for entry in os.scandir(folder) if entry.is_file()]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[count:]:
        os.unlink(entry)
