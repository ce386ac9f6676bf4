"""Files below a folder and files that match a pattern, each folder entered once."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack.errors import InputError, StoreError
from tokpack.quantities import counted
from tokpack.sources.base import printable
from tokpack.sources.compression import bare_name
from tokpack.sources.detect import ARCHIVE, DOCUMENT_SUFFIXES, NoTextError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tokpack.sources.base import Source

_log = logging.getLogger(__name__)
_DEEP = "**"
_SIDECAR = re.compile(
    r"(readme|license|licence|changelog|sha\d+sums?|md5sums?|_success)\b.*"
    r"|.*\.(md|rst|log|ya?ml|toml|sha\d+(sum)?|md5(sum)?|sig|asc|rejects\.jsonl)"
    r"|dataset_(infos?|dict)\.json|state\.json|_(common_)?metadata",
    re.IGNORECASE,
)
# What programs call a file that they have not fetched to its end, and one that they keep as it was.
_LEFTOVERS = {
    "that are unfinished downloads": re.compile(
        r".*\.(part|partial|filepart|incomplete|(cr|op)?download|tmp|temp|aria2(__temp)?|!ut|!qb)",
        re.IGNORECASE,
    ),
    "that are backups": re.compile(
        r".*(\.(bak|backup|old|orig|sav|swp|swo)|~)|#.*#", re.IGNORECASE
    ),
}
_TABLES = (".feather", ".ipc")  # that are read by their content
_NO_DOCUMENTS = "without documents"
_OTHER_TEXT = "text that is not named .txt"
_EMPTY = "that are empty"
has_magic = glob.has_magic


def has_document_name(path: str) -> bool:
    """Whether the name of a file alone says that it holds documents."""
    return bare_name(path).endswith(DOCUMENT_SUFFIXES)


def _has_open_name(path: str) -> bool:
    """Whether a name leaves open what the file has, but for a compression."""
    return "." not in os.path.basename(bare_name(path)) or path.lower().endswith(_TABLES)


def why_leftover(path: str, pattern: str = "") -> str:
    """Why a file is passed over that a program has left; "" for none, and where that is asked for.

    ``pattern`` has led to it: one that ends as names of these do asks for them.
    """
    whys = (
        next((why for why, names in _LEFTOVERS.items() if names.fullmatch(name)), "")
        for name in map(os.path.basename, (path, pattern))
    )
    why, asked = whys
    return "" if why == asked else why


def why_sidecar(path: str, input_format: str, exists: Callable[[str], bool]) -> str:
    """Why a file of a folder is passed over for its name; "" where it is not.

    It is about the files beside it, unless a file is a document; or it is a dataset's manifest, or
    what a program has left.
    """
    stem, suffix = os.path.splitext(path)
    if suffix == ".json" and exists(stem + ".idx"):
        return "that are a dataset's manifest"
    is_sidecar = input_format != "file" and _SIDECAR.fullmatch(os.path.basename(path))
    return "about other files" if is_sidecar else why_leftover(path)


def source_or_reason(
    path: str, input_format: str, source_of: Callable[[str], Source]
) -> Source | str:
    """``source_of(format)`` of a file in a folder; or why it is passed over, in words.

    Its name may say that it has documents, or else its content, where that is not just text. Where
    a file is a document, all text is. InputError where a file has something else than its name
    says, or stands for another, and may have had documents.
    """
    is_file = input_format == "file"
    is_sure = is_file or has_document_name(path)
    try:
        source = source_of(input_format if is_sure else "auto")
    except StoreError:
        raise
    except NoTextError as error:
        if not is_file and (is_sure or (error.kind.lost and _has_open_name(path))):
            raise
        return error.kind.reason
    except InputError:
        if is_sure:
            raise
        return _NO_DOCUMENTS
    if is_sure:
        return source
    if source.format == "text" or not source.size:
        return _OTHER_TEXT if source.size else _EMPTY
    return source if input_format == "auto" else replace(source, format=input_format)


def log_passed_over(where: str, reasons: Iterable[tuple[str, str]], input_format: str) -> None:
    """Say how many files were passed over for which reason: pairs of a reason and a name."""
    reasons = list(reasons)
    if not reasons:
        return
    there = {reason for reason, _ in reasons}
    advice = ""
    if ARCHIVE.reason in there:
        advice = "; an archive is read where it is named itself, or by a pattern"
    elif _OTHER_TEXT in there and input_format == "auto":
        advice = "; --input-format file reads all text, a file a document"
    _log.warning("%s: %s%s", where, _passed_over(where, reasons), advice)


def _passed_over(where: str, reasons: Sequence[tuple[str, str]]) -> str:
    names: dict[str, list[str]] = {}
    for reason, name in reasons:
        names.setdefault(reason, []).append(name)
    below = where.rstrip("/") + "/"
    counts = [
        f"{len(of_reason)} {reason} (such as {of_reason[0].removeprefix(below)})"
        for reason, of_reason in names.items()
    ]
    return f"{counted(len(reasons), 'file')} passed over: {', '.join(counts)}"


def no_documents(folder: str, reasons: Sequence[tuple[str, str]]) -> InputError:
    """The error of a folder in which there are only other files, which are passed over."""
    seen = ""
    if reasons:
        seen = (
            f"; {_passed_over(folder, reasons)}: name them one by one if they hold documents, or "
            "make each a document with --input-format file"
        )
    return InputError(f"{folder}: no document files in this folder{seen}")


def files_below(folder: str, passed_over: list[str] | None = None) -> list[str]:
    """Files below a folder, by name; not hidden ones, nor what unfinished runs left. InputError.

    The paths of these, hidden folders among them, are added to ``passed_over``.
    """
    return _sorted(path for _, files in _folders(folder, passed_over) for path in files)


def matching(pattern: str) -> list[str]:
    """What matches a pattern, by name; ``**`` stands for any number of folders. InputError."""
    components = pattern.split("/")
    if _DEEP not in components:
        return sorted(glob.glob(pattern), key=os.fsencode)
    at = components.index(_DEEP)
    base, rest = "/".join(components[:at]), "/".join(components[at + 1 :])
    if at == 1 and not base:  # below the root
        base = "/"
    paths: set[str] = set()
    for folder in [base] if not has_magic(base) else matching(base):
        if os.path.isdir(folder or "."):
            paths.update(_matching_below(folder, rest))
    return sorted(paths, key=os.fsencode)


def _matching_below(folder: str, rest: str) -> list[str]:
    if rest in ("", _DEEP):
        return files_below(folder)
    paths = []
    for below, _ in _folders(folder):
        paths += matching(os.path.join(glob.escape(below), rest))
    return [path for path in paths if not os.path.isdir(path)]


def _folders(root: str, passed_over: list[str] | None = None) -> list[tuple[str, list[str]]]:
    """Folders from ``root`` down, each with the paths of its files.

    Links to folders are followed, but a folder is entered once: by its own name if it is below
    ``root``, else by that of the first link; a warning names the links that lead to it again.
    """
    entered: dict[tuple[int, int], str] = {}
    listing = []
    again = []
    to_enter, links = deque([root]), deque[str]()
    while to_enter or links:
        folder = to_enter.popleft() if to_enter else links.popleft()
        try:
            status = os.stat(folder or ".")
            identity = status.st_dev, status.st_ino
            if identity in entered:
                again.append((folder, entered[identity]))
                continue
            entered[identity] = folder
            files = []
            for entry in sorted(os.scandir(folder or "."), key=lambda entry: entry.name):
                path = os.path.join(folder, entry.name)
                if entry.name.startswith(".") or entry.name.endswith(".unfinished"):
                    if passed_over is not None:
                        passed_over.append(path)
                    continue
                if not _is_folder(entry):
                    files.append(path)
                elif entry.is_symlink():
                    links.append(path)
                else:
                    to_enter.append(path)
        except OSError as error:
            raise InputError(f"{printable(folder)}: {error.strerror}") from error
        listing.append((folder, files))
    if again:
        link, other = again[0]
        more = f", and so do {len(again) - 1} more" if len(again) > 1 else ""
        _log.warning(
            "%s leads to the folder %s, whose files are read once%s",
            *(printable(link), printable(other or "."), more),
        )
    return listing


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: an error when it is opened
        return False


def _sorted(paths: Iterable[str]) -> list[str]:
    """By the names of the folders first, and then by those of the files in them."""
    return sorted(paths, key=lambda path: os.fsencode(path).split(os.fsencode(os.sep)))
