"""``tokpack status``: which shards of a plan are done, and the command that makes the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import shards, terminal
from tokpack.cli.parser import Group, Page, flag, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Page(
    "status",
    "Say which shards of a plan are done, being made, failed or lost.",
    (
        Group(
            "flags",
            (
                flag("--all", action="store_true", help="a line for every shard, done ones too"),
                flag("--json", action="store_true", help="print all of it as JSON"),
            ),
        ),
    ),
    """\
PREFIX is that of the plan. A shard is lost when who made it has not been heard of for some 100
seconds. The exit code is 0 only when all shards are there.

examples:
  tokpack status s3://tokens/pile
  tokpack status data/pile && tokpack commit data/pile
""",
    "PREFIX [flags]",
)


def run(argv: Sequence[str]) -> int:
    """Run ``tokpack status ARGV``."""
    arguments = parse(PAGE, argv)
    if arguments is None:
        return 0
    prefix = shards.one_prefix(arguments.inputs, "status")
    from tokpack.shards.plan import ShardPlan
    from tokpack.shards.survey import survey

    plan = ShardPlan.load(prefix)
    standings = survey(plan, prefix)
    if arguments.json:
        terminal.put_json(shards.status_facts(plan, prefix, standings))
    elif not arguments.quiet:
        shards.show_status(plan, prefix, standings, every=arguments.all)
    return 0 if all(one.state == "done" for one in standings) else 1
