"""A folder that appears whole or not at all: it is made under another name, then renamed.

A folder that is replaced or removed is renamed first, so that nobody takes its remains for the
whole. Only folders with our marker are replaced or removed, and only without foreign files in them.
The marker names the kind of folder, and lists its files.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tokpack.errors import OutputError
from tokpack.storage.disk.durable import UNFINISHED, cannot_write, rename, replace_json, sync_file

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED_FOLDER = ".unfinished"  # added to a dataset's prefix: the work folder of its run


OLD = ".tokpack.old"  # added to the name of a folder to be removed


MARKER = ".tokpack-folder.json"


_MARKER_BYTES = 1 << 24


def unfinished(target: Path) -> Path:
    """The folder in which ``target`` is made before it gets its name."""
    return target.with_name(target.name + UNFINISHED)


def is_ours(path: Path, kind: str) -> bool:
    """Whether ``path`` is a folder of this kind that tokpack made, without files of others."""
    files = _files_of_ours(path, kind)
    return files is not None and set(os.listdir(path)) <= {MARKER, *files}


def begin(target: Path, kind: str) -> Path:
    """A new, empty folder in which to make ``target``; leftovers of a crash are removed.

    OutputError if it cannot be written, or if a foreign folder is in the way.
    """
    _check(target, kind)
    work = unfinished(target)
    for left in (work, target.with_name(target.name + OLD)):
        if os.path.lexists(left):
            if _files_of_ours(left, kind) is None and not _is_empty(left):
                raise OutputError(f"{left} exists and was not made by tokpack: move it away")
            with cannot_write(left):
                _remove(left)
    with cannot_write(work):
        work.mkdir(parents=True)
    replace_json(work / MARKER, {"tokpack": kind}, fsync=False)
    return work


def finish(target: Path, kind: str) -> None:
    """Rename the finished folder to ``target``, durably; an old folder of that name is replaced.

    After an OutputError there is the old folder, or none.
    """
    # The files and the marker that lists them are durable before the rename, so a folder with this
    # name is complete, even after a power loss.
    work = unfinished(target)
    names = sorted(path.name for path in work.iterdir() if path.name != MARKER)
    for name in names:
        sync_file(str(work / name))
    replace_json(work / MARKER, {"tokpack": kind, "files": names})
    _check(target, kind)
    old = target.with_name(target.name + OLD)
    with cannot_write(target):
        replaced = target.exists()
        if replaced:
            rename(target, old, fsync=False)
        try:
            rename(work, target)
        except OSError:
            with suppress(OSError):
                if not work.exists():  # renamed already: only the sync has failed
                    rename(target, work, fsync=False)
                if replaced:
                    rename(old, target, fsync=False)
            raise
    _remove_if_possible(old)


def abandon(target: Path, kind: str) -> None:
    """Remove a folder that was begun and cannot be finished, to free its space."""
    work = unfinished(target)
    if _files_of_ours(work, kind) is not None:
        _remove_if_possible(work)


def discard(path: Path) -> None:
    """Remove a folder that tokpack made. OutputError."""
    old = path.with_name(path.name + OLD)
    with cannot_write(path):
        rename(path, old, fsync=False)
    _remove_if_possible(old)


def discard_leftovers(folder: Path, pattern: str, kind: str) -> None:
    """Remove what crashes have left of folders whose names match ``pattern``."""
    for ending in (UNFINISHED, OLD):
        for path in folder.glob(pattern + ending):
            if _files_of_ours(path, kind) is not None or _is_empty(path):
                _remove_if_possible(path)


def _check(target: Path, kind: str) -> None:
    if not os.path.lexists(target):
        return
    files = _files_of_ours(target, kind)
    if files is None:
        raise OutputError(
            f"{target} exists and is not a folder that tokpack made ({kind}), so it is not "
            "overwritten: choose another output"
        )
    if others := sorted(set(os.listdir(target)) - {MARKER, *files}):
        raise OutputError(
            f"{target} holds {others[0]!r}, which tokpack did not put there, so it is not "
            "overwritten: move that away, or choose another output"
        )


def _files_of_ours(path: Path, kind: str) -> list[str] | None:
    """The files that the marker of a folder lists, or None for a link or a folder of others."""
    if path.is_symlink() or not path.is_dir():
        return None
    values: Any = None
    with suppress(OSError, ValueError, RecursionError), open(path / MARKER, "rb") as file:
        values = json.loads(file.read(_MARKER_BYTES))
    if not isinstance(values, dict) or values.get("tokpack") != kind:
        return None
    files = values.get("files", [])
    return files if isinstance(files, list) and all(isinstance(f, str) for f in files) else None


def _is_empty(path: Path) -> bool:
    """Whether a folder has nothing in it except an unfinished marker."""
    return (
        path.is_dir() and not path.is_symlink() and set(os.listdir(path)) <= {MARKER + UNFINISHED}
    )


def _remove(folder: Path) -> None:
    """Remove the files of a folder, the marker last, and then the folder. Raises OSError."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name == MARKER):
        os.unlink(entry.path)
    os.rmdir(folder)


def _remove_if_possible(folder: Path) -> None:
    # Under this name nobody reads what stays, and the next run removes it.
    with suppress(OSError):
        _remove(folder)
