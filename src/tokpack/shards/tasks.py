"""The passes of other commands over shards, as tasks of the same engines: each makes one file.

The list of tasks lies where a plan of shards would, with the same leases and reports beside it, in
a folder that goes when all results are there. Its name has a checksum of the list: two commands
that want the same share it, and a command that was stopped goes on with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack import __version__
from tokpack.dataset.results import Task, begins_of, listed, result_path
from tokpack.errors import FormatError, InputError, ResumeError
from tokpack.shards.cut import reported, tell_done
from tokpack.shards.plan import plan_folder, plan_path, report_path
from tokpack.shards.take import Lease
from tokpack.storage import exists, head, shown, small_files, storage_of
from tokpack.storage.disk import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokpack.progress import Show
    from tokpack.storage import ListedFile


@dataclass(frozen=True)
class TaskList:
    """Tasks of one kind, in their order: the ``Work`` of engines."""

    stage: str
    tasks: tuple[Task, ...]
    version: str = __version__

    @classmethod
    def load(cls, prefix: str) -> TaskList:
        """The tasks of a command that runs. InputError without one, ResumeError, FormatError."""
        path = plan_path(prefix)
        (content,) = small_files([path])
        if content is None:
            raise InputError(f"{shown(path)}: no command waits for these tasks any more")
        values = parse_json(content, shown(path))
        try:
            tasks = tuple(Task(*one) for one in values["tasks"])
            found = cls(str(values["stage"]), tasks, str(values["version"]))
        except (KeyError, TypeError):
            raise FormatError(f"{shown(path)}: not a list of tasks") from None
        if found.version != __version__:
            raise ResumeError(
                f"{shown(path)} is of a command of tokpack {found.version}, this is {__version__}: "
                "all machines need one version"
            )
        return found

    @property
    def shards(self) -> int:
        return len(self.tasks)

    @property
    def sizes(self) -> list[int]:
        return [task.size for task in self.tasks]

    def is_current(self, prefix: str) -> bool:
        content = self.content()
        return head(plan_path(prefix), len(content)) == content

    def begins(self, prefix: str) -> list[str]:
        return begins_of([task.result for task in self.tasks])

    def made(self, prefix: str, files: Mapping[str, ListedFile]) -> list[int | None]:
        return [0 if task.result in files else None for task in self.tasks]

    @staticmethod
    def command(prefix: str, which: str) -> list[str]:
        return ["shards", "task", prefix, "--shard", which]

    def content(self) -> bytes:
        """The content of its file."""
        return json.dumps(self.__dict__).encode()


def run_tasks(
    beside: str, kind: str, tasks: Sequence[Task], drive: Callable[[TaskList, str], None]
) -> None:
    """Make those results of tasks that are missing; their list lies beside the dataset ``beside``.

    ``drive`` makes the shards of a list that lies where a prefix says.
    """
    work = TaskList(kind, tuple(tasks))
    if None not in listed([task.result for task in tasks]):
        return
    prefix = result_path(beside, kind, work.__dict__)
    storage_of(prefix).put(plan_path(prefix), work.content(), "create")
    drive(work, prefix)
    folder = plan_folder(prefix) + "/"
    for path in storage_of(prefix).listed(folder):
        storage_of(prefix).delete(path)
    if os.path.isdir(folder):
        os.rmdir(folder)


def make_result(
    work: TaskList,
    prefix: str,
    number: int,
    make: Callable[[Task, Show], None],
    *,
    lease: Callable[[bytes], None] | None,
    progress: Show,
) -> None:
    """Make the result of one task, unless it exists. Raises as ``encode_shard``, and ``make``.

    Without a ``lease`` it takes one, also from who makes it: reports never come after the end.
    """
    path = report_path(prefix, number)
    lease = lease or Lease(prefix, number, storage_of(path).stats([path])[0])
    with reported(prefix, number, lease, progress) as reporter:
        if not exists(work.tasks[number].result):
            make(work.tasks[number], reporter)
    tell_done(reporter)
