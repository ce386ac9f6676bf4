"""Tasks on a Ray cluster: one for each shard, with a tokpack process inside."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, WorkerError, option
from tokpack.shards.drive import CPUS, SAID, CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONNECT_SECONDS = 10.0
_GRACE = 20.0  # seconds from SIGTERM to SIGKILL
_MAIN = """
import sys
from tokpack.machine import end_with
end_with(int(sys.argv[1]))
from tokpack.cli import main
sys.exit(main(sys.argv[2:]))
"""


class RayEngine:
    """An engine over Ray core; ``cpus`` are what each task takes, None: 8, or a whole small node.

    ``address`` is as for ``ray.init``; the default is RAY_ADDRESS, else a cluster running on this
    machine, else a new one. UsageError without ray, WorkerError if there is no such cluster.
    """

    def __init__(self, address: str | None, cpus: int | None) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise UsageError(
                f"{option('engine', 'ray')} needs a package: pip install 'tokpack[ray]'"
            ) from error
        if address:
            _check_answers(address)
        self._ray = ray
        self._began = not ray.is_initialized()
        try:
            if self._began:
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        except Exception as error:  # of many classes; a node that is slow to start has none
            reason = " ".join(str(error).split())
            raise WorkerError(f"{option('ray_address', address or 'auto')}: {reason}") from error
        smallest = int(min((count for count in nodes if count), default=1))
        self.cpus = cpus or max(1, min(CPUS, smallest))
        if self.cpus > max(nodes, default=0):
            self.close()
            raise UsageError(
                f"{option('workers', self.cpus)}: the largest node of the cluster has "
                f"{max(nodes, default=0):.0f} CPUs, so no task could begin"
            )
        # No retries by Ray: `drive` does them, because it knows why a task failed.
        self._task = ray.remote(num_cpus=self.cpus, max_retries=0)(run_command)

    def start(self, arguments: Sequence[str]) -> Any:
        return self._task.remote(list(arguments))

    def ended(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, CommandResult]]:
        ready, _ = self._ray.wait(list(handles), num_returns=1, timeout=seconds)
        return [(handle, self._outcome(handle)) for handle in ready]

    def _outcome(self, handle: Any) -> CommandResult:
        try:
            return CommandResult(*self._ray.get(handle))
        except self._ray.exceptions.RayError as error:
            return CommandResult(None, " ".join(str(error).split())[-SAID:])

    def cancel(self, handle: Any) -> None:
        self._ray.cancel(handle, force=False)

    def close(self) -> None:
        if self._began:
            self._ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise WorkerError if nothing listens at HOST:PORT, where Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():  # auto, ray://...
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise WorkerError(f"{option('ray_address', address)}: {error.strerror or error}") from error


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Run ``tokpack ARGUMENTS``. Returns its exit code and the end of its output.

    It gets its own process, because it forks workers and this process has threads. It ends with
    this process, even if that is killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, output = process.communicate()
    except BaseException:  # cancelled
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        process.kill()
        raise
    return process.returncode, output[-SAID:]
