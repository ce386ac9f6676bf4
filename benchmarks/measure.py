"""Run a command and measure all of it: time, processor time, memory.

Memory is that of the process and all below it. PSS counts a page that n processes share as 1/n in
each, so that the sum over the processes is what the command takes from the machine.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

SAMPLE_SECONDS = 0.05
SAMPLE_SHARE = 20  # many processes take long to look at: no more than this part of the time
_LOG_TAIL = 2000
# Compiled modules are kept, as on users' machines: or each run would compile them again.
_ENVIRONMENT = {key: v for key, v in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Measured:
    """One run of a command. Seconds and bytes."""

    wall: float
    cpu: float  # user and system, of all processes; those that nobody waited for: as sampled
    memory: int  # most PSS of all processes together, sampled
    worker_memory: int  # most resident memory that any one worker (or a lone process) ever had


def run(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
    timeout: float = 3600.0,
) -> Measured:
    """Run ``command`` with its output in ``log``, perhaps on as many processors as ``cores``.

    Raises CommandError with the log's end when it fails or takes longer than ``timeout``.
    """
    with open(log, "wb") as output:
        with on_cores(cores):
            began = time.perf_counter()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**_ENVIRONMENT, **(environment or {})},
                start_new_session=True,
            )
        ended = os.pidfd_open(process.pid)
        try:
            watched = _watch(process.pid, ended, began, timeout)
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            os.killpg(process.pid, 9)
            process.wait()
            raise
        finally:
            os.close(ended)
    if process.returncode:
        tail = log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
        raise CommandError(f"exit code {process.returncode}; the end of its output:\n{tail}")
    cpu = max(usage.ru_utime + usage.ru_stime, sum(watched.cpu.values()))
    return Measured(round(wall, 4), round(cpu, 4), watched.memory, watched.worker_memory)


@contextlib.contextmanager
def on_cores(number: int | None) -> Iterator[None]:
    """What is started meanwhile has so many processors, of as many cores as there are; None: all.

    Ends the benchmark where there are fewer.
    """
    everywhere = os.sched_getaffinity(0)
    chosen = _spread(everywhere)[:number]
    if number is not None and len(chosen) < number:
        raise SystemExit(f"{number} processors are asked for, and there are {len(chosen)}")
    os.sched_setaffinity(0, chosen)  # a new process inherits it
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)


def _spread(processors: set[int]) -> list[int]:
    """One processor of each core, then the second ones, and so on."""
    seen: dict[str, int] = {}
    turns = []
    for processor in sorted(processors):
        core = _siblings(processor)
        turns.append((seen.get(core, 0), processor))
        seen[core] = seen.get(core, 0) + 1
    return [processor for _, processor in sorted(turns)]


def _siblings(processor: int) -> str:
    """The processors that are threads of the same core, as the system names them."""
    path = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    return _read(path).strip() or str(processor)


class CommandError(Exception):
    """A measured command failed or took too long."""


@dataclass
class _Watched:
    """What samples of a running command show."""

    memory: int = 0
    worker_memory: int = 0
    cpu: dict[int, float] = field(default_factory=dict)  # of each process, by number

    def sample(self, pid: int) -> None:
        processes = list(_tree(pid))
        pss = (_kilobytes(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in processes)
        self.memory = max(self.memory, sum(pss))
        most = (_kilobytes(f"/proc/{pid}/status", "VmHWM:") for pid in processes[1:] or processes)
        self.worker_memory = max(self.worker_memory, *most)
        for process in processes:
            self.cpu[process] = max(self.cpu.get(process, 0.0), _cpu(process))


def _watch(pid: int, ended: int, began: float, timeout: float) -> _Watched:
    """Sample until the process ends."""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    watched = _Watched()
    next_sample = 0.0
    while True:
        if poll.poll(1000 * SAMPLE_SECONDS):
            return watched
        now = time.perf_counter()
        if now >= next_sample:
            watched.sample(pid)
            took = time.perf_counter() - now
            next_sample = now + max(SAMPLE_SECONDS, SAMPLE_SHARE * took)
        if now - began > timeout:
            raise CommandError(f"not finished after {timeout:.0f} s")


def _tree(pid: int) -> Iterator[int]:
    """A process and all processes below it."""
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        for child in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield from _tree(int(child))


def _cpu(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _kilobytes(path: str, field: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # it has ended
        return ""


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def best(work: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """The least processor time of some runs, and what the last one gave."""
    seconds, made = float("inf"), None
    for _ in range(runs):
        begin = processor_seconds()
        made = work()
        seconds = min(seconds, processor_seconds() - begin)
    return seconds, made
