"""The folder of a run's checkpoints: which are complete, which to load or remove. No torch.

SAVE/step_00000100/  a checkpoint: complete once it has state.json, which is written last
SAVE/latest          the name of the checkpoint to continue from
SAVE/lock            held by the run that saves here
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.storage.disk import cannot_write, hold, rename, replace_file, whole_folder
from tokpack.storage.disk.whole_folder import unfinished

STATE = "state.json"


KIND = "checkpoint"


_LONGEST = 200  # characters of a checkpoint's name


LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")  # GPT-NeoX's


def check_own(folder: str, load: str | None) -> None:
    """Raise UsageError if a run that loads from ``load`` would mix its checkpoints with another
    run's in ``folder``.
    """
    loaded = os.path.realpath(load) if load else ""
    if os.path.realpath(folder) in (loaded, os.path.dirname(loaded)):
        return
    if other := find(folder):
        raise UsageError(
            f"{option('save')}: {folder} holds {other.name} of another run: go on from it with "
            f"{option('load')} {folder}, or save to another folder"
        )


def foreign_folders(folder: Path) -> list[Path]:
    """The folders in which another program may have its files: ``folder``, and the one that its
    latest names.
    """
    folders = [folder, _latest(folder)]
    try:
        number = (folder / "latest_checkpointed_iteration.txt").read_text().strip()
    except (OSError, ValueError):
        number = ""
    if number.isdecimal() and len(number) < _LONGEST:
        folders.append(folder / f"iter_{int(number):07d}")
    elif number == "release":
        folders.append(folder / number)
    return [path for path in folders if path.is_dir()]


def find(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint that ``folder`` is, or the latest one in it, or None if there is no checkpoint
    yet.

    InputError for a folder that holds something else, FormatError if the latest checkpoint is
    missing.
    """
    root = Path(folder)
    latest = _latest(root)
    for path in (root, latest, unfinished(latest)):
        if (path / STATE).exists():
            return path
        names = os.listdir(path) if path.is_dir() else []
        if any(map(LAYER_FILE.fullmatch, names)):
            raise InputError(
                f"{path}: layer files of GPT-NeoX: make a checkpoint of them, with `tokpack model "
                f"import {path} --config FILE.yml -o BASE`"
            )
        if "config.json" in names:
            raise InputError(
                f"{path}: a model of transformers: make a checkpoint of it, with `tokpack model "
                f"import {path} -o BASE`"
            )
    whole = checkpoints(root)
    if name := _named(root):
        there = ", ".join(path.name for path in whole) or "no other"
        raise FormatError(
            f"{root}/latest names {name}, which is no checkpoint; there is {there}: load "
            "one by its own path"
        )
    # A run that died before its first checkpoint leaves its lock, and perhaps a log.
    used = root.is_file() or (root.is_dir() and any(root.iterdir()))
    if used and not whole and not (root / "lock").exists():
        raise InputError(f"{root}: neither a checkpoint nor empty: it has no {STATE}, no latest")
    return whole[-1] if whole else None


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, ordered by step."""
    paths = folder.glob("step_" + 8 * "[0-9]")
    return sorted(path for path in paths if (path / STATE).exists())


def earlier(path: Path) -> list[Path]:
    """The complete checkpoints in the same folder from before ``path``, ordered by step."""
    return [other for other in checkpoints(path.parent) if other.name < path.name]


def _named(folder: Path) -> str:
    """The name in the file ``latest``; "" if there is none."""
    try:
        # A name with a NUL or with bytes that are not UTF-8 is shown escaped; no file can have it.
        return (folder / "latest").read_text("utf-8", "backslashreplace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _latest(folder: Path) -> Path:
    """The path of the checkpoint that ``latest`` names, existing or not; never outside the
    folder.
    """
    name = _named(folder)
    is_name = name not in ("", "..") and name == Path(name).name and "\0" not in name
    is_name = is_name and len(name.encode()) < _LONGEST
    return folder / (name if is_name else "?")


def begin(target: Path) -> Path:
    """The empty folder in which the files of the checkpoint ``target`` are written first.
    OutputError.
    """
    with cannot_write(str(target)):
        hold(target.parent)
        latest = _latest(target.parent)
        if not latest.exists() and (unfinished(latest) / STATE).exists():  # killed in ``commit``
            rename(unfinished(latest), latest)
        return whole_folder.begin(target, KIND)


def abandon(target: Path) -> None:
    """Remove what was written of a checkpoint that could not be completed."""
    if target.exists() or _latest(target.parent) != target:  # else it is complete, and the latest
        whole_folder.abandon(target, KIND)


def commit(target: Path, state: str, keep: int) -> None:
    """Complete a checkpoint, make it the latest, and remove all but the last ``keep``.

    With ``keep`` 0 none is removed. A folder with any file that does not belong to a checkpoint is
    never removed; nor are checkpoints of later steps, which another run has left. OutputError.
    """
    with cannot_write(str(target)):
        replace_file(unfinished(target) / STATE, [state.encode()])
        whole_folder.finish(target, KIND)
        replace_file(target.parent / "latest", [f"{target.name}\n".encode()])
        before = earlier(target)
        for path in before[: max(len(before) + 1 - keep, 0)] if keep else []:
            if whole_folder.is_ours(path, KIND):
                whole_folder.discard(path)
        whole_folder.discard_leftovers(target.parent, "step_" + 8 * "[0-9]", KIND)
