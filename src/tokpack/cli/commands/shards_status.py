"""``tokpack shards status``: how far a run or a plan is, and what makes the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack import machine
from tokpack.cli import shards, terminal
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import InputError, UsageError
from tokpack.storage import exists, is_url

if TYPE_CHECKING:
    import argparse

    from tokpack.shards import ShardStatus

_WATCH_SECONDS = 10.0

PAGE = Page(
    "shards status",
    "Say how far a run is, and which shards of a plan are done, being made, failed or lost.",
    (
        Group(
            "flags",
            flags("""
                --all    a line for every shard, done ones too
                --watch  look again every 10 s until all are done: how fast, how long, what is slow
                --json   print all of it as JSON
            """),
        ),
    ),
    """\
PREFIX is that of a plan, or of a dataset that a run on this machine makes. A shard or run is lost
after 100 seconds without a report. The exit code is 0 only when all are done.

examples:
  tokpack shards status s3://tokens/pile
  tokpack shards status s3://tokens/pile --watch
  tokpack shards status data/pile && tokpack shards commit data/pile
""",
    "PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack shards status``."""
    from tokpack.encoding import finished, run_status
    from tokpack.shards import ShardPlan, plan_path, prefix_of, survey

    (name,) = arguments.inputs
    prefix = prefix_of(name)
    begun = None if is_url(prefix) else run_status(name)
    if begun is None and exists(plan_path(prefix)):
        plan = ShardPlan.load(prefix)
        statuses: list[ShardStatus] = []
        while True:
            statuses = survey(plan, prefix, statuses)
            is_done = all(one.state == "done" for one in statuses)
            if arguments.json:
                terminal.put_json(shards.status_facts(plan, prefix, statuses))
            elif arguments.watch and not is_done:
                shards.show_progress(plan, prefix, statuses)
            elif not arguments.quiet:
                shards.show_status(plan, prefix, statuses, every=arguments.all)
            if is_done or not arguments.watch:
                return 0 if is_done else 1
            machine.clock.sleep(_WATCH_SECONDS)
    if arguments.watch:
        raise UsageError("--watch is for a plan of shards")
    if begun is None and not finished(name):
        raise InputError(f"{name}: no dataset, run of encode or plan of shards has this name")
    if arguments.json:
        done = {"prefix": name, "state": "done"}
        terminal.put_json(shards.run_facts(begun) if begun else done)
    elif not arguments.quiet and begun:
        shards.show_run(begun)
    elif not arguments.quiet:
        terminal.put(f"{name}: done")
    return 1 if begun else 0
