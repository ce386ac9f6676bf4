"""Runs that are stopped at a chosen place, and what lies there then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import tokpack
from support.encoding_tools import dataset, documents, drive, twin, write_jsonl
from support.faults import PLANT
from support.small_parts import in_small_parts, small_parts
from tokpack.dataset.verify import verify
from tokpack.sources import discover

# A small file has several parts.
PART_BYTES = 48 << 10
SMALL = small_parts(PART_BYTES)
# The run ends when all pieces are joined, before it writes the index and the manifest.
STOP_AT_END = f"{SMALL}{PLANT}from tokpack.encoding import run; plant(run, 'stage', kill)\n"


def stop_at_part(number: int) -> str:
    """The run ends at a chosen part, when the journal has all parts before it."""
    return f"""{SMALL}{PLANT}
from tokpack.encoding.worker import Worker
plant(Worker, "_encode", kill, when=lambda _, task: task.number == {number})
"""


def stop_at_rename(done: int) -> str:
    """The run ends at one of the renames that give the files their final names."""
    return f"""{SMALL}{PLANT}
import os
def names(source, target):
    return ".unfinished" in source and ".unfinished" not in target
plant(os, "replace", kill, at={done} + 1, when=names)
"""


class Place:
    """A folder with one input of many lines, which is cut into several parts.

    ``kept`` is where runs that were stopped are kept: the same one is not made again.
    """

    def __init__(self, folder: Path, tokenizer: Path, kept: Path) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.kept = kept
        self.texts = documents(600, words=100)
        self.source = write_jsonl(folder / "a.jsonl", self.texts)
        os.utime(self.source, (1_700_000_000, 1_700_000_000))
        self.output = folder / "out"
        self.work = Path(f"{self.output}.unfinished")

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "inputs": str(self.source),
            "output": str(self.output),
            "tokenizer": str(self.tokenizer),
            "workers": 1,
            **more,
        }

    def encode(self, **more: Any) -> tokpack.Manifest:
        with in_small_parts(PART_BYTES):
            return tokpack.encode(**self.options(**more))

    def verify(self) -> None:
        """Compare the dataset with its manifest."""
        with in_small_parts(PART_BYTES):
            verify(str(self.output))

    def stop(self, script: str, **more: Any) -> None:
        """Start a run that kills itself; one that begins with nothing is kept for other tests."""
        state = [script, more, hashlib.sha256(self.source.read_bytes()).hexdigest()]
        kept = self.kept / hashlib.sha256(json.dumps(state).encode()).hexdigest()
        begins_anew = not any(self.folder.glob("out*"))
        if begins_anew and kept.exists():
            shutil.copytree(kept, self.folder, dirs_exist_ok=True)
            return
        done = drive(self.options(**more), script)
        assert done.returncode == -signal.SIGKILL, done.stderr
        if begins_anew:
            kept.mkdir()
            for path in self.folder.glob("out*"):
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, kept / path.name)

    def stop_at_part(self, number: int = 4, **more: Any) -> None:
        self.stop(stop_at_part(number), **more)

    @property
    def edited(self) -> list[str]:
        """The texts of the input as it is now."""
        return [json.loads(line)["text"] for line in self.source.read_bytes().splitlines()]

    def right(self) -> None:
        """Check that the dataset is that of the input as it is now; verify must find no fault."""
        assert dataset(self.output) == twin(self.tokenizer, self.edited)
        self.verify()
        assert not self.work.exists()

    def edit(self, begin: float, end: float, the: bytes = b"and") -> None:
        """Change letters in a part of the input, in place, that is in no sample of its fingerprint.

        The time is a new one.
        """
        status = self.source.stat()
        before = discover([str(self.source)])[0].fingerprint()
        data = bytearray(self.source.read_bytes())
        first, last = int(len(data) * begin), int(len(data) * end)
        data[first:last] = data[first:last].replace(b"the", the).replace(b"was", b"for")
        assert bytes(data) != self.source.read_bytes()
        with self.source.open("r+b") as file:
            file.write(data)
        os.utime(self.source, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
        assert self.source.stat().st_size == status.st_size
        assert discover([str(self.source)])[0].fingerprint() == before

    def touch(self) -> None:
        status = self.source.stat()
        os.utime(self.source, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def finish_script(place: Place, script: str, **more: Any) -> None:
    done = drive(place.options(**more), script)
    assert done.returncode == 0, done.stderr
