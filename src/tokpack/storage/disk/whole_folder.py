"""A folder that appears whole or not at all: made under another name, then renamed.

One that is replaced or goes away gets another name first, so that no part of it is taken for the
whole. Only folders with our marker are replaced or removed, and only where nobody put anything in
them; the marker also says what kind of folder it is, and lists its files.
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

UNFINISHED_FOLDER = ".unfinished"  # behind a dataset's prefix: the work folder of its run


OLD = ".tokpack.old"  # behind the name of a folder that goes away


MARKER = ".tokpack-folder.json"


_MARKER_BYTES = 1 << 24


def unfinished(target: Path) -> Path:
    """Where ``target`` is made."""
    return target.with_name(target.name + UNFINISHED)


def is_ours(path: Path, kind: str) -> bool:
    """Whether ``path`` is a folder of this kind that we made, with no file but ours in it."""
    files = _files_of_ours(path, kind)
    return files is not None and set(os.listdir(path)) <= {MARKER, *files}


def begin(target: Path, kind: str) -> Path:
    """The empty folder in which ``target`` is made; what a crash left there goes.

    OutputError where it cannot be written, or where a folder that has to go is not ours.
    """
    _check(target, kind)
    work = unfinished(target)
    for left in (work, target.with_name(target.name + OLD)):
        if os.path.lexists(left):
            if _files_of_ours(left, kind) is None and not _is_empty(left):
                raise OutputError(f"{left} exists and is none of ours: move it away")
            with cannot_write(left):
                _remove(left)
    with cannot_write(work):
        work.mkdir(parents=True)
    replace_json(work / MARKER, {"tokpack": kind}, fsync=False)
    return work


def finish(target: Path, kind: str) -> None:
    """Give what was made its name, durably; another folder of the name is replaced.

    OutputError, and then the old folder is there, or none.
    """
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
                if not work.exists():  # it was the sync that failed
                    rename(target, work, fsync=False)
                if replaced:
                    rename(old, target, fsync=False)
            raise
    _remove_if_possible(old)


def abandon(target: Path, kind: str) -> None:
    """Give back the space of a folder that was begun and cannot be finished."""
    work = unfinished(target)
    if _files_of_ours(work, kind) is not None:
        _remove_if_possible(work)


def discard(path: Path) -> None:
    """Remove a folder that is ours. OutputError."""
    old = path.with_name(path.name + OLD)
    with cannot_write(path):
        rename(path, old, fsync=False)
    _remove_if_possible(old)


def discard_leftovers(folder: Path, pattern: str, kind: str) -> None:
    """Remove what crashes left of the folders named like ``pattern``."""
    for ending in (UNFINISHED, OLD):
        for path in folder.glob(pattern + ending):
            if _files_of_ours(path, kind) is not None or _is_empty(path):
                _remove_if_possible(path)


def _check(target: Path, kind: str) -> None:
    if not os.path.lexists(target) or is_ours(target, kind):
        return
    files = _files_of_ours(target, kind)
    if files is None:
        raise OutputError(
            f"{target} exists and is no folder that tokpack made ({kind}), so it is not "
            "overwritten: choose another output"
        )
    others = sorted(set(os.listdir(target)) - {MARKER, *files})
    raise OutputError(
        f"{target} holds {others[0]!r}, which tokpack did not put there, so it is not overwritten: "
        "move that away, or choose another output"
    )


def _files_of_ours(path: Path, kind: str) -> list[str] | None:
    """The files that a folder of ours has or had; None for any other folder, or for a link."""
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
    """Whether a folder has nothing in it, or no more than a marker that was not finished."""
    return (
        path.is_dir() and not path.is_symlink() and set(os.listdir(path)) <= {MARKER + UNFINISHED}
    )


def _remove(folder: Path) -> None:
    """Remove the files of a folder, the marker last, and then the folder. Raises OSError."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name == MARKER):
        os.unlink(entry.path)
    os.rmdir(folder)


def _remove_if_possible(folder: Path) -> None:
    # What stays has a name that nobody reads, and goes the next time.
    with suppress(OSError):
        _remove(folder)
