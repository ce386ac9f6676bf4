"""``tokpack shards plan``: a run cut into shards, which any number of machines make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import encode_flags, shards, terminal
from tokpack.cli.encode_flags import GROUPS, OUTPUT, resolve
from tokpack.cli.parser import Group, Page, flags

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "shards plan",
    "Cut a run of encode into shards that any number of machines can make.",
    (
        *GROUPS,
        Group(
            "output",
            (
                *OUTPUT,
                shards.SIZE,
                *flags("--json  print what was planned as JSON"),
            ),
        ),
        encode_flags.GROUP,
    ),
    """\
Writes PREFIX.plan, on a disk or a store that all machines can reach. Nothing is encoded yet. The
bytes of a shard do not depend on the machine that makes it. The other flags are those of encode.

examples:
  tokpack shards plan 's3://text/*.jsonl.zst' -o s3://tokens/pile
  tokpack encode --plan s3://tokens/pile --shard 17     on any machine, in any order
  tokpack encode --plan s3://tokens/pile --shard auto   in a job array
  tokpack shards status s3://tokens/pile
  tokpack shards commit s3://tokens/pile
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack shards plan``."""
    options, notes = resolve(arguments)
    for line in notes:
        terminal.note(line)
    from tokpack.shards import make_shard_plan, save_plan

    plan = make_shard_plan(options, arguments.shard_size)
    plan = save_plan(plan, options.output, overwrite=arguments.overwrite)
    shards.tell_plan(plan, options.output)
    if arguments.json:
        terminal.put_json(shards.plan_facts(plan, options.output))
    else:
        terminal.print_paths(options.output)
    return 0
