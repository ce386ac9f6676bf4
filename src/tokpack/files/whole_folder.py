"""A folder that appears whole or not at all: made as NAME.unfinished, then renamed.

One that goes away is NAME.old first, so that no part of it is taken for the whole.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tokpack.files.durable import cannot_write, sync_file, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED_FOLDER = ".unfinished"  # behind the name of a folder in the making


def unfinished(target: Path) -> Path:
    """Where ``target`` is made."""
    return target.with_name(target.name + UNFINISHED_FOLDER)


def begin(target: Path) -> Path:
    """The empty folder in which ``target`` is made; what a crash left there goes. OutputError."""
    work = unfinished(target)
    shutil.rmtree(work, ignore_errors=True)
    with cannot_write(work):
        work.mkdir(parents=True)
    return work


def finish(target: Path) -> None:
    """Give what was made its name, durably; another folder of the name is replaced. OutputError."""
    work = unfinished(target)
    for path in work.iterdir():
        sync_file(str(path))
    with cannot_write(target):
        sync_folder(str(work))
        if target.exists():
            discard(target)
        work.rename(target)
        sync_folder(str(target.parent))


def discard(path: Path) -> None:
    """Remove a folder. Raises OSError."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)
