"""A folder that appears whole or not at all: made as NAME.unfinished, then renamed.

One that goes away is NAME.old first, so that no part of it is taken for the whole.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tokpack.encoding.folder import SUFFIX, sync_file, sync_folder

if TYPE_CHECKING:
    from pathlib import Path


def unfinished(target: Path) -> Path:
    """Where ``target`` is made."""
    return target.with_name(target.name + SUFFIX)


def begin(target: Path) -> Path:
    """The empty folder in which ``target`` is made; what a crash left there goes."""
    work = unfinished(target)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work


def finish(target: Path) -> None:
    """Give what was made its name, durably; another folder of the name is replaced."""
    work = unfinished(target)
    for path in work.iterdir():
        sync_file(str(path))
    sync_folder(str(work))
    if target.exists():
        discard(target)
    work.rename(target)
    sync_folder(str(target.parent))


def discard(path: Path) -> None:
    """Remove a folder."""
    old = path.with_name(path.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)
