"""The work folder of an unfinished run, PREFIX.unfinished: the names in it, and how it is written.

Files there may be damaged, or put there by somebody else. So links are not followed, folders of
other users are not used, and each JSON file has a checksum of its content.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import ujson
import xxhash

from tokpack.errors import OutputError
from tokpack.storage.disk import MAX_BYTES, cannot_write, remove_file, replace_file
from tokpack.storage.disk.whole_folder import UNFINISHED_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNFINISHED_SUFFIX = UNFINISHED_FOLDER
_SEAL = "xxh3_128"  # the key of a JSON file's checksum
_STILL_OPEN = (".nfs", ".fuse_hidden")  # how NFS and FUSE name a removed file that is still open
_ENTRIES = 1000  # of a long list, made into text at once
# O_NONBLOCK: opening a pipe that somebody has put there must not block. Windows has neither.
_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def open_own(path: str, flags: int) -> int:
    """Open a file of a work folder. Raises OSError, and OutputError for a link."""
    try:
        return os.open(path, flags | _FLAGS, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError(
            f"{path} is a symbolic link that no run made: find out who did, and remove it"
        ) from error


def create_own(path: str) -> int:
    """Create a file in a work folder; an existing one is removed first. Raises OutputError."""
    with cannot_write(path):
        remove_file(path)
        return open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


@dataclass(frozen=True)
class WorkFolder:
    """Paths inside the work folder of one run."""

    path: str

    def __call__(self, name: str) -> str:
        """The path of ``name`` in the folder."""
        return os.path.join(self.path, name)

    @staticmethod
    def track(key: str, kind: str) -> str:
        """The name of a raw stream of a key, such as ``text.ids``."""
        return f"{quote(key, safe='')}.{kind}"

    def make(self) -> None:
        """Create the folder and those above it, if it does not exist.

        Raises OutputError, also for a link of this name and for a folder of another user.
        """
        above = os.path.dirname(os.path.abspath(self.path))
        with cannot_write(self.path):
            os.makedirs(above, exist_ok=True)
            try:
                os.mkdir(self.path)
            except FileExistsError:
                self._check_owner(above)

    def _check_owner(self, above: str) -> None:
        status = os.lstat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise OutputError(
                f"{self.path} is a link or a file, not the work folder of a run: move it away, or "
                "choose another output"
            )
        user = os.geteuid() if hasattr(os, "geteuid") else status.st_uid
        if status.st_uid != user and status.st_uid != _owner_in(above):
            raise OutputError(
                f"{self.path} belongs to another user (number {status.st_uid}), so it is not "
                "trusted: move it away, or choose another output"
            )

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write an object, as ``sorted_json`` takes it, with its checksum, whole or not at all."""
        replace_file(self(name), _sealed(value))

    def read_json(
        self, name: str, made_of: Callable[[dict[str, Any]], Any] | None = None
    ) -> dict[str, Any] | None:
        """The object that ``write_json`` wrote, or None if it is missing or damaged.

        ``made_of`` replaces every object inside it, so that the objects of a long list are never
        all in memory. Raises OutputError if the file cannot be read, and what ``made_of`` raises.
        """
        try:
            with open(open_own(self(name), os.O_RDONLY), "rb") as file:
                raw = file.read(MAX_BYTES)
            seal = _seal(raw[-2 - 32 : -2].decode())
            state = xxhash.xxh3_128(memoryview(raw)[: -len(seal)])
            state.update(b"}")
            if not raw.endswith(seal) or seal != _seal(state.hexdigest()):
                return None
        except (FileNotFoundError, ValueError):  # also if its end is not UTF-8
            return None
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(f"{self(name)}: cannot be read: {reason}") from error
        text = raw.decode()
        del raw
        # ujson accepts more than JSON, but the checksum shows that tokpack wrote this text.
        value = ujson.loads(text) if made_of is None else json.loads(text, object_hook=made_of)
        del value[_SEAL]
        entries: dict[str, Any] = value
        return entries

    def remove_file(self, name: str) -> None:
        """Remove a file if it exists."""
        remove_file(self(name))

    def clear(self) -> None:
        """Remove everything in the folder except the lock.

        commit.json and the journal go first: after a crash they must not name removed files. The
        plan goes last: without it, the remaining files could not be recognized as a run's.
        """
        first, last = ("commit.json", "journal.jsonl"), "plan.json"
        with cannot_write(self.path):
            for entry in sorted(
                os.scandir(self.path),
                key=lambda entry: (entry.name == last, entry.name not in first),
            ):
                if entry.name == "lock" or entry.name.startswith(_STILL_OPEN):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)

    def remove(self) -> None:
        """Remove the folder, the lock last.

        NFS and FUSE keep a removed file while it is open; then ``Lock`` removes the folder.
        """
        self.clear()
        self.remove_file("lock")
        with cannot_write(self.path):
            try:
                os.rmdir(self.path)
            except OSError:
                if not all(name.startswith(_STILL_OPEN) for name in os.listdir(self.path)):
                    raise


def sorted_json(value: Mapping[str, Any]) -> Iterator[bytes]:
    """The JSON of an object that is not empty, in pieces, as ``json.dumps(value, sort_keys=True)``.

    An iterator in it is written as a list, which may be long.
    """
    for number, (key, item) in enumerate(sorted(value.items())):
        yield f"{', ' if number else '{'}{json.dumps(key)}: ".encode()
        if not isinstance(item, Iterator):
            yield json.dumps(item, sort_keys=True).encode()
            continue
        before = b"["
        while entries := list(itertools.islice(item, _ENTRIES)):
            yield before + json.dumps(entries, sort_keys=True)[1:-1].encode()
            before = b", "
        yield b"]" if before == b", " else b"[]"
    yield b"}"


def _sealed(value: Mapping[str, Any]) -> Iterator[bytes]:
    """The text of an object with one more entry: the checksum of the text before."""
    state = xxhash.xxh3_128()
    last = b""
    for text in sorted_json(value):
        state.update(text)
        yield last
        last = text
    yield last[:-1] + _seal(state.hexdigest())


def _seal(checksum: str) -> bytes:
    return f', "{_SEAL}": "{checksum}"}}'.encode()


def _owner_in(folder: str) -> int:
    """The owner of new files in a folder; on some file systems not the user of this process."""
    with tempfile.TemporaryDirectory(prefix=".tokpack-", dir=folder) as probe:
        return os.lstat(probe).st_uid
