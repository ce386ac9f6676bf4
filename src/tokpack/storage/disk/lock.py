"""Locks: one run at a time in a folder, and one process at a time for what many need."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from tokpack.errors import BusyError
from tokpack.machine import is_alive
from tokpack.storage.disk.durable import Identity, cannot_write, same_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

HEARTBEAT_SECONDS = 10.0
FOREIGN_SECONDS = 60.0  # after this silence an owner on another host counts as dead
ORPHAN_SECONDS = 10.0  # how long the workers of a killed run may live on
_POLL_SECONDS = 0.05
_REMOVED = 100  # tries, if others remove the folder before the lock file is made in it
_CLOSED, _CLOSED_SECONDS = 20, 0.005  # how often removing a folder is tried, and the pause
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0)
_RECORD_BYTES = 1 << 16
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class Lock:
    """The file ``lock`` in the work folder, held while a run lasts.

    On one host flock decides. The system releases it when the last process that inherited it ends,
    so a dead run never blocks, and a killed one only while one of its workers lives. On a shared
    file system flock may not reach other hosts: then the age of the file decides, which ``beat``
    keeps low. Raises BusyError if another run holds the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.fspath(folder)
        self._path = os.path.join(self._folder, "lock")
        self._file = -1
        self._record: dict[str, Any] = {}
        self._beaten = 0.0

    def __enter__(self) -> Lock:
        deadline = time.monotonic() + ORPHAN_SECONDS
        while not self._try():
            owner = self._owner()
            if _is_alive(owner) or time.monotonic() > deadline:
                raise self._held(owner)
            time.sleep(_POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        # Erase the record, so that a run on another host need not wait until the file is old.
        with contextlib.suppress(OSError):
            if self._owner() == self._record:
                os.ftruncate(self._file, 0)
        is_removed = not os.path.lexists(self._path)
        os.close(self._file)
        if is_removed:
            _remove_folder(self._folder)

    def leave(self) -> None:
        """Let the folder go with the lock if nothing else is in it."""
        with contextlib.suppress(OSError):
            if os.listdir(self._folder) == ["lock"]:
                os.unlink(self._path)

    def beat(self) -> None:
        """Show that the run is alive; it may be called often.

        BusyError if another host has taken over the lock, because this run seemed dead.
        """
        now = time.monotonic()
        if now - self._beaten > HEARTBEAT_SECONDS:
            self._beaten = now
            owner = self._owner()
            if owner not in ({}, self._record):
                raise self._held(owner)
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def _try(self) -> bool:
        with cannot_write(self._path):
            os.makedirs(self._folder, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NOT_A_LINK, 0o666)
        try:
            locked = try_flock(file)
            # The last holder may have removed the file after it was opened here. Then this lock is
            # on a file that nobody else can find, and locks nothing: try again.
            if locked is False or not self._is_ours(file):
                os.close(file)
                return False
            # flock may succeed although a run on another host is active, see the class.
            owner = self._owner()
            if owner and owner.get("host") != socket.gethostname():
                self._refuse_living_stranger(file, owner)
            elif locked is None and _is_alive(owner):
                raise self._held(owner)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(file)
            raise
        self._file = file
        self._record = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        with cannot_write(self._path):
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(self._record).encode(), 0)
        return True

    def _is_ours(self, file: int) -> bool:
        """Whether the locked file still has its name: a run that ends removes it."""
        return same_file(self._path) == Identity.of(os.fstat(file))[:2]

    def _owner(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                value = json.loads(file.read(_RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def _refuse_living_stranger(self, file: int, owner: dict[str, Any]) -> None:
        written = os.fstat(file).st_mtime
        probe = self._path + ".probe"
        # The clocks of two hosts may differ by more than a minute, so both times below come from
        # the file system.
        with cannot_write(probe):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(probe)
            open(probe, "xb").close()
            age = os.stat(probe).st_mtime - written
            os.unlink(probe)
        if age < FOREIGN_SECONDS:
            raise self._held(owner)

    def _held(self, owner: dict[str, Any]) -> BusyError:
        who = "another run"
        if owner:
            who = f"process {owner.get('pid')} on {owner.get('host')}, {_since(owner)}"
        hint = "wait for it, or choose another output"
        if owner and owner.get("host") != socket.gethostname():
            hint += f"; if it is dead, try again in {FOREIGN_SECONDS:.0f} seconds"
        return BusyError(f"{who} is writing to {self._folder}: {hint}")


@contextlib.contextmanager
def held(folder: str) -> Iterator[None]:
    """Lock ``folder`` in a with statement, with a thread that beats. BusyError as for Lock."""
    with Lock(folder) as lock:
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(BusyError):  # a thread cannot raise it to the caller
                while not ended.wait(HEARTBEAT_SECONDS):
                    lock.beat()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


# The locks that this process holds until it ends, by folder.
_held: dict[str, contextlib.AbstractContextManager[None]] = {}


def hold(folder: Path) -> None:
    """Lock ``folder`` until this process ends. BusyError if another run holds it.

    A process that ends by os._exit, and not by Python's own exit, has to call ``release``.
    """
    name = str(folder.resolve())
    if name not in _held:
        lock = held(name)
        lock.__enter__()
        _held[name] = lock


@atexit.register
def release() -> None:
    """Release all locks that ``hold`` took."""
    while _held:
        _held.popitem()[1].__exit__(None, None, None)


def _remove_folder(folder: str) -> None:
    """Remove a folder after its last file was removed and closed.

    NFS and FUSE keep a removed file in the folder while it is open, and FUSE may notice the close a
    moment later, so several tries are made.
    """
    for _ in range(_CLOSED):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_CLOSED_SECONDS)


def _since(owner: dict[str, Any]) -> str:
    try:
        since = time.localtime(owner.get("since", 0))
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
    return time.strftime("since %Y-%m-%d %H:%M:%S,", since)


def try_flock(file: int) -> bool | None:
    """Whether an open file was locked; None if the system or its file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


@contextlib.contextmanager
def turn(path: str, seconds: float = math.inf) -> Iterator[bool]:
    """Hold the lock file ``path`` in a with statement. Yields whether another process had it first.

    It saves work when many processes need the same file: the first makes it while the others wait.
    It protects nothing: if there are no locks, or after ``seconds``, the caller continues without
    it. The file is created if missing; the holder may remove it, or its folder. Raises OSError if
    it cannot be created.
    """
    deadline = time.monotonic() + seconds
    waited, failed = False, 0
    while True:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        try:
            file = open(path, "ab")  # noqa: SIM115
        except FileNotFoundError:  # the folder was removed, or no files can be made in it
            failed += 1
            if failed > _REMOVED:
                raise
            continue
        with file:
            while try_flock(file.fileno()) is False and time.monotonic() < deadline:
                waited = True
                time.sleep(_POLL_SECONDS)
            # The lock counts only if the file still has its name: the last holder may have removed
            # it while this process waited.
            ours = Identity.of(os.fstat(file.fileno()))
            if same_file(path) == ours[:2] or time.monotonic() >= deadline:
                holder = os.getpid()
                try:
                    yield waited
                finally:
                    # Unlock explicitly: a process forked meanwhile has the file open too, so
                    # closing it here would not release the lock. And only the locking process may
                    # do so, not its forks.
                    if fcntl is not None and os.getpid() == holder:
                        with contextlib.suppress(OSError):
                            fcntl.flock(file, fcntl.LOCK_UN)
                return
            waited = True


def _is_alive(owner: dict[str, Any]) -> bool:
    """Whether the process of a record is alive; assumed for other hosts."""
    if owner.get("host") != socket.gethostname() or not isinstance(owner.get("pid"), int):
        return bool(owner)
    return is_alive(owner["pid"])
