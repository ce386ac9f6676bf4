"""Tasks of commands on an engine of this machine, or in this process, in any order, with deaths."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.cli.commands.shards_task import answer
from tokpack.cli.main import main
from tokpack.dataset.results import everywhere
from tokpack.shards.drive import CommandResult, ShardRunner
from tokpack.shards.tasks import TaskList, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.dataset.results import RunTasks, Task
    from tokpack.shards.drive import ShardEngine


def on(engine: ShardEngine, beside: str | os.PathLike[str], *, takers: int = 0) -> RunTasks:
    """What runs the tasks of a command on ``engine``; their list lies beside a dataset."""

    def drive(work: TaskList, prefix: str) -> None:
        ShardRunner(work, prefix, engine, ["-q"], takers=min(takers, work.shards)).run()

    def run(kind: str, tasks: Sequence[Task]) -> None:
        run_tasks(everywhere(os.fspath(beside)), kind, tasks, drive)

    return run


@dataclass(eq=False)
class Waiting:
    arguments: list[str]


class Here:
    """An engine that runs a task in this process when it is asked what has ended.

    ``choose`` says which of so many is next, ``lost`` whether its machine is lost before it begins.
    """

    def __init__(
        self, choose: Callable[[int], int] = lambda count: 0, lost: Callable[[], bool] = bool
    ) -> None:
        self.begun: list[list[str]] = []
        self._choose, self._lost = choose, lost
        self._waiting: list[Waiting] = []

    def start(self, arguments: Sequence[str]) -> Waiting:
        self._waiting.append(Waiting([*arguments]))
        return self._waiting[-1]

    def ended(
        self, handles: Sequence[Waiting], seconds: float
    ) -> list[tuple[Waiting, CommandResult]]:
        task = self._waiting.pop(self._choose(len(self._waiting)))
        self.begun.append(task.arguments)
        code = None if self._lost() else main(task.arguments)
        return [(task, CommandResult(code, "lost" if code is None else ""))]

    def cancel(self, handle: Waiting) -> None:
        self._waiting = [one for one in self._waiting if one is not handle]

    def close(self) -> None:
        self._waiting.clear()


def directly(kind: str, tasks: Sequence[Task]) -> None:
    """Make the results of tasks in this process, the last one first."""
    for task in reversed(tasks):
        answer(kind, 1, task, lambda progress: None)
