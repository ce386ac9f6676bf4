"""The work folder of an unfinished run, PREFIX.unfinished: names, and how files come into it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tokpack.files.durable import cannot_write, remove_file, replace_json
from tokpack.files.whole_folder import UNFINISHED_FOLDER

SUFFIX = UNFINISHED_FOLDER


@dataclass(frozen=True)
class WorkFolder:
    """Paths inside the work folder of one run."""

    path: str

    def __call__(self, name: str) -> str:
        """The path of ``name`` in the folder."""
        return os.path.join(self.path, name)

    @staticmethod
    def track(key: str, kind: str) -> str:
        """The name of a raw stream of a key: ``text.ids``."""
        return f"{quote(key, safe='')}.{kind}"

    def piece(self, number: int, track: str) -> str:
        """The path of a file of a piece."""
        return self(f"{number:06d}.{track}")

    def joined(self, track: str) -> str:
        """The path of the file in which the pieces of a track are joined."""
        return self(f"joined.{track}")

    def make(self) -> None:
        """Create the folder and those above it. Raises OutputError."""
        with cannot_write(self.path):
            os.makedirs(self.path, exist_ok=True)

    def write_json(self, name: str, value: Any, *, sync: bool = True) -> None:
        """Write a JSON file, whole or not at all."""
        replace_json(self(name), value, fsync=sync)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file; None where it is missing or damaged."""
        try:
            with open(self(name), encoding="utf-8") as file:
                return json.load(file)
        except (FileNotFoundError, ValueError):
            return None

    def remove_file(self, name: str) -> None:
        """Remove a file that may be gone already."""
        remove_file(self(name))

    def clear(self, *, keep: tuple[str, ...] = ()) -> None:
        """Remove everything in the folder but ``keep``.

        What says that something is complete goes first and the plan last: whatever a crash leaves
        is an unfinished run, and no more than that.
        """
        first, last = ("commit.json", "journal.json"), "plan.json"
        with cannot_write(self.path):
            for entry in sorted(
                os.scandir(self.path),
                key=lambda entry: (entry.name == last, entry.name not in first),
            ):
                if entry.name in keep:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def remove(self) -> None:
        """Remove the folder; the lock goes last."""
        self.clear(keep=("lock",))
        self.remove_file("lock")
        with cannot_write(self.path):
            os.rmdir(self.path)
