"""Faults that tests plant: what fails, at which call, in which process.

``plant`` makes calls of a function fail in the process that calls it: this one, its forks, or one
whose script begins with ``PLANT``. ``limited`` and ``small_disk`` let the system refuse, ``flip``
damages a file. Requests to a store fail by ``support.stores.Fault``, every system call of a command
by ``torture.faults``.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLANT = "from support.faults import failure, kill, limited, plant\n"


def failure(number: int) -> OSError:
    """The error of a system call, by its number in ``errno``."""
    return OSError(number, os.strerror(number))


def kill(*_: Any, **__: Any) -> None:
    """End this process at once, without time to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


def plant(
    owner: Any,
    name: str,
    fault: BaseException | Callable[..., object],
    *,
    at: int = 1,
    times: int | None = None,
    when: Callable[..., object] | None = None,
    patch: pytest.MonkeyPatch | None = None,
) -> None:
    """Let calls of ``owner.name`` meet a fault: an error to raise, or a function called instead.

    Counted are those for whose arguments ``when`` is true. The ``at``-th meets it, and those
    behind it, ``times`` in all if it is given. It stays until ``patch`` is undone, else to the end
    of the process.
    """
    real = getattr(owner, name)
    count = 0

    def planted(*args: Any, **more: Any) -> Any:
        nonlocal count
        if when is None or when(*args, **more):
            count += 1
            if count >= at and (times is None or count < at + times):
                if isinstance(fault, BaseException):
                    raise fault
                return fault(*args, **more)
        return real(*args, **more)

    (patch or pytest.MonkeyPatch()).setattr(owner, name, planted)


@contextmanager
def limited(what: int, limit: int, process: int = 0) -> Iterator[None]:
    """A limit of ``resource`` for a process, by default this one, and its children to come."""
    before = resource.prlimit(process, what)
    resource.prlimit(process, what, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, what, before)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes; PermissionError where it cannot be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PermissionError("no mount command here") from None
    if made.returncode:
        raise PermissionError(f"cannot mount a small file system here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        # Somebody who looks at all disks may have it open for a moment, which must not matter.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(disk: Path, option: str) -> None:
    """Give a small disk another size, or make it read-only."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit of a file: of byte ``at``, or of the one at this part of its length."""
    data = bytearray(path.read_bytes())
    data[at if isinstance(at, int) else int((len(data) - 1) * at)] ^= 4
    path.write_bytes(data)
