"""``tokpack shards task``: what a command with ``--engine`` starts on other machines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tokpack.cli import shards, terminal
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import FormatError

if TYPE_CHECKING:
    import argparse

    from tokpack.dataset.results import Task
    from tokpack.progress import Show

_OF_DOCUMENTS = ("keys", "alike", "phrases")

PAGE = Page(
    "shards task",
    "Make results that a command with --engine waits for; engines start it.",
    (
        Group(
            "flags",
            flags(
                """
                --shard N|N,N-N|auto|next  which ones, as for encode --plan (next)
                --threads, --workers N  threads that read (all cores)
            """,
                shard={"default": "next"},
            ),
        ),
    ),
    """\
PREFIX is in the engine's log. A task leaves its result in a file beside the shard that it has read.
Start it by hand on any machine that sees the shards to help a waiting command.

examples:
  tokpack shards task s3://tokens/clean.keys-3b1f2a9c0d4e5f67
""",
    "PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack shards task``."""
    from tokpack.shards import TaskList, make_result

    (prefix,) = arguments.inputs
    work = TaskList.load(prefix)
    make = partial(answer, work.stage, arguments.threads or 0)
    for number, _, _ in shards.each_made(
        work, prefix, arguments.shard, partial(make_result, work, prefix, make=make)
    ):
        terminal.say(f"{work.tasks[number].result}: made")
    return 0


def answer(kind: str, threads: int, task: Task, progress: Show) -> None:
    """Make the result of a task of any kind."""
    if kind == "verify":
        from tokpack.dataset.verify import verify_task

        verify_task(task, progress)
    elif kind == "stats":
        from tokpack.look import stats_task

        stats_task(task, threads, progress)
    elif kind in _OF_DOCUMENTS:
        from tokpack import documents

        getattr(documents, f"{kind}_task")(task, threads, progress)
    else:
        raise FormatError(f"a task {kind!r}, which this version does not know")
