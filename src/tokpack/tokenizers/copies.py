"""Copies of the files of tokenizers, by their checksums, and what a manifest says of such files.

A manifest may be anybody's. So a file that it names is used only where its content is the recorded
one, and is looked for in tokpack's cache, in folders that the caller knows, and last at the
absolute path that is recorded, which is opened only where a regular file of the recorded size is.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.errors import InputError, OutputError, TokenizerError
from tokpack.files.cache_root import cache_root
from tokpack.files.durable import open_regular, replace_file
from tokpack.files.foreign import MAX_BYTES
from tokpack.stores import is_url, joined, located, near
from tokpack.tokenizers.spec_cache import OFF, keep_newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_COPIES = 256


@dataclass(frozen=True)
class FileRecord:
    """A file of a tokenizer: its absolute path, or of a file on a store its name; its content."""

    path: str
    bytes: int
    sha256: str

    @property
    def copy(self) -> str | None:
        """Where its copy lies; the suffix, which says what a file of ranks is, stays."""
        if os.environ.get(OFF) == "0":
            return None
        name = self.sha256 + os.path.splitext(self.path)[1]
        try:
            return str(cache_root() / "tokenizers" / "copies" / name)
        except RuntimeError:  # a user without a home
            return None

    def matches_file(self, path: str) -> bool:
        """Whether a regular file has this content. OSError."""
        if os.stat(path).st_size != self.bytes:
            return False
        with open_regular(path) as file:
            return hashlib.sha256(file.read(self.bytes)).hexdigest() == self.sha256


def records_of(files: Mapping[str, Path], *, on_store: bool) -> list[FileRecord]:
    """What a manifest says of files by their names: nothing where one is not there any more."""
    records = []
    for name, file in files.items():
        try:
            raw = file.read_bytes()
        except OSError:
            return []
        # A copy in the cache, or of an object on a store, is known by its name alone.
        path = name if on_store or file.name != name else os.path.abspath(file)
        records.append(FileRecord(path, len(raw), hashlib.sha256(raw).hexdigest()))
    return records


def keep_copies(files: Mapping[str, Path], records: Iterable[FileRecord]) -> None:
    """Copy files into the cache, where that can be written; the newest stay there."""
    for file, record in zip(files.values(), records, strict=False):
        path = record.copy
        if path is None:
            return
        with suppress(OSError):
            if record.matches_file(path):
                os.utime(path)  # it is among the newest
                continue
        with suppress(OSError, OutputError):
            raw = file.read_bytes()
            if hashlib.sha256(raw).hexdigest() != record.sha256:
                return  # it was replaced meanwhile
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(path, [raw], fsync=False)  # what a power loss leaves has another checksum
            keep_newest(os.path.dirname(path), _MOST_COPIES)


def find_copies(entries: object, folders: Sequence[str]) -> dict[str, str]:
    """The paths of files on this machine that have the recorded content, by their recorded names.

    ``folders`` may be on a store, and may have files of the recorded names. TokenizerError where
    there is none.
    """
    records = [*map(_record, entries)] if isinstance(entries, list) else []
    if not records:
        raise TokenizerError("its files are not recorded")
    return {os.path.basename(record.path): _find(record, folders) for record in records}


def _find(record: FileRecord, folders: Sequence[str]) -> str:
    others = False
    for place in _places(record, folders):
        # A dataset can be looked at without its tokenizer, so a store may fail here.
        with suppress(OSError, InputError, ValueError):
            if is_url(place) and located(place).size != record.bytes:
                others = True
                continue
            path = near(place)
            if record.matches_file(path):
                return path
            others = True
    if others:
        raise TokenizerError("what is there now is another one (its sha256 differs)")
    raise TokenizerError(f"{record.path} is not there, and no copy of it is on this machine")


def _places(record: FileRecord, folders: Sequence[str]) -> Iterator[str]:
    if record.copy:
        yield record.copy
    yield from (joined(folder, os.path.basename(record.path)) for folder in folders)
    if os.path.isabs(record.path):
        yield record.path


def _record(entry: Any) -> FileRecord:
    """An entry of a manifest. TokenizerError for what is none."""
    values = entry if isinstance(entry, dict) else {}
    path, size, digest = (values.get(key) for key in ("path", "bytes", "sha256"))
    if (
        isinstance(path, str)
        and os.path.basename(path) not in ("", ".", "..")
        and type(size) is int
        and 0 < size <= MAX_BYTES
        and isinstance(digest, str)
        and _SHA256.fullmatch(digest)
    ):
        return FileRecord(path, size, digest)
    raise TokenizerError("its files are not recorded as files")
