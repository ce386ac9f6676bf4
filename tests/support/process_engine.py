"""An engine that runs tasks as processes of this machine, a few at a time, and can lose them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support import forked
from tokpack.shards.drive import CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False)
class Running:
    arguments: list[str]
    process: subprocess.Popen[str] | None = None


@dataclass
class ProcessEngine:
    """Runs ``slots`` tasks at once, and kills the first ``lose`` when they begin."""

    slots: int = 2
    lose: int = 0
    begun: list[list[str]] = field(default_factory=list)
    tasks: list[Running] = field(default_factory=list)

    def start(self, arguments: Sequence[str]) -> Running:
        self.tasks.append(Running(list(arguments)))
        self._fill()
        return self.tasks[-1]

    def ended(
        self, handles: Sequence[Running], seconds: float
    ) -> list[tuple[Running, CommandResult]]:
        until = time.monotonic() + seconds
        while True:
            self._fill()
            for task in handles:
                if task.process and task.process.poll() is not None:
                    said = task.process.communicate()[1]
                    self.tasks.remove(task)
                    code = task.process.returncode
                    return [(task, CommandResult(None if code < 0 else code, said))]
            if time.monotonic() > until:
                return []
            time.sleep(0.02)

    def cancel(self, handle: Running) -> None:
        if handle.process:
            handle.process.terminate()
            handle.process.send_signal(signal.SIGCONT)
            handle.process.communicate()
        if handle in self.tasks:
            self.tasks.remove(handle)

    def close(self) -> None:
        for task in list(self.tasks):
            self.cancel(task)

    def _fill(self) -> None:
        for task in self.tasks:
            busy = sum(task.process is not None for task in self.tasks)
            if task.process is None and busy < self.slots:
                self.begun.append(task.arguments)
                task.process = forked.Process(
                    ["-m", "tokpack", *task.arguments],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                if self.lose:
                    self.lose -= 1
                    os.kill(task.process.pid, signal.SIGKILL)
