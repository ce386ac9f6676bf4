"""This machine: clock and name, resources of this process, the cache, and the end of children."""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PROCESS, CONTROL_GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"


class Clock:
    """Time, random numbers and the name of this machine.

    Code for cooperating machines takes these from ``clock``, so that tests can simulate it.
    """

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, by the clock of this machine."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def uniform(self, least: float, most: float) -> float:
        return random.uniform(least, most)

    def host(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()

    def is_alive(self, pid: int) -> bool:
        """Whether a process with this number exists, even another user's."""
        return is_alive(pid)


clock = Clock()


def usable_cores() -> int:
    """The cores that this process may use, within the limit of its control group."""
    limit = cpu_limit()
    return max(1, min(affine_cores(), math.ceil(limit) if limit else affine_cores()))


def affine_cores() -> int:
    """The cores that this process may run on, without time limits."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_limit(process: str = PROCESS, groups: str = CONTROL_GROUPS) -> float | None:
    """The cores' worth of time that control groups (v1, v2) allow; None: no limit.

    ``process`` lists the process's groups, folders below ``groups``. A container may see outside
    names of its groups, but only its own folders.
    """
    limits = [_limit(folder) for folder in _groups("cpu", process, groups)]
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory(
    process: str = PROCESS, groups: str = CONTROL_GROUPS, system: str = "/proc/meminfo"
) -> int | None:
    """The memory that this process may still use, without swap, or None if unknown.

    It is limited by the system and by control groups.
    """
    texts = [line for line in _lines(Path(system)) if line.startswith("MemAvailable:")]
    bytes_ = [1024 * int(text.split()[1]) for text in texts]
    for folder in _groups("memory", process, groups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            bytes_ += [int(line) for line in _lines(folder / name) if line.isdecimal()]
    return min(bytes_, default=None)


def _groups(controller: str, process: str, groups: str) -> Iterator[Path]:
    """The folders of the control groups (v1, v2) in which this process is, with those around."""
    for line in _lines(Path(process)):
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            mounts = [Path(groups), Path(groups) / "unified"]
        elif controller in controllers.split(","):
            mounts = [Path(groups) / controllers, Path(groups) / controller]
        else:
            continue
        for mount in mounts:
            group = mount / name.strip("/")
            inside = [group, *group.parents]
            yield from inside[: inside.index(mount) + 1]


def _limit(folder: Path) -> float | None:
    """The limit in the folder of one group, or None."""
    words = " ".join(_lines(folder / "cpu.max")).split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [line for name in names for line in _lines(folder / name)]
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None  # "max", -1, or no such file
    quota, period = map(int, words)
    return quota / period if quota and period else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def ending_with(
    launcher: int, number: signal.Signals = signal.SIGKILL
) -> Callable[[], None] | None:
    """A function for a child, so that it gets a signal when ``launcher`` dies, even by SIGKILL.

    None if the system is not Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a new fork should do as little as possible

    def end_with_launcher() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != launcher:  # it died before the line above
            os._exit(1)

    return end_with_launcher


ONE_INTERRUPT = 1.0  # seconds


def interrupts() -> Callable[[], bool]:
    """A function to call at each SIGINT: is it really a second one?

    A terminal sends Ctrl-C to all processes, and a launcher forwards it to its own: signals within
    a second count as one.
    """
    first = math.inf

    def is_again() -> bool:
        nonlocal first
        now = time.monotonic()
        first = min(first, now)
        return now - first > ONE_INTERRUPT

    return is_again


def is_alive(pid: int) -> bool:
    """Whether a process with this number exists, even another user's."""
    if pid <= 0:  # such a number stands for a group of processes
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def end_with(launcher: int) -> None:
    """Let the system send SIGTERM when this process's parent ``launcher`` dies, if it can."""
    act = ending_with(launcher, signal.SIGTERM)
    if act is not None:
        act()


def cache_root() -> Path:
    """The folder of the cache: $TOKPACK_CACHE, else ~/.cache/tokpack."""
    root = os.environ.get("TOKPACK_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokpack"
    return Path(root) if root else default
