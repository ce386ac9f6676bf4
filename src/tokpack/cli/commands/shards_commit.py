"""``tokpack shards commit``: shards -> one dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Page, flags
from tokpack.cli.shards import show_committed

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "shards commit",
    "Make one dataset of all shards of a plan, after checking that each is what was planned.",
    (
        Group(
            "flags",
            flags("""
                --data-path FILE  also write the shards as Megatron's --data-path takes them (-:
                                  print)
                --overwrite       replace what is there
                --json            print what was made as JSON on stdout
            """),
        ),
    ),
    """\
PREFIX is the plan's. Only manifests are read, and one is written: PREFIX.json, which lists
the shards. Every command and GPTDataset open it as one dataset.

examples:
  tokpack shards commit data/pile
  tokpack shards commit data/pile --data-path pile.txt         then: --data-path $(cat pile.txt)
  tokpack merge data/pile -o one                        one .bin and .idx, if you need them
""",
    "PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack shards commit``."""
    from tokpack.shards import commit, data_path, load_plan, write_data_path

    prefix, plan = load_plan(arguments.inputs[0])
    manifests = commit(plan, prefix, overwrite=arguments.overwrite)
    if arguments.data_path:
        text = data_path(next(iter(plan.whole(prefix).values())), manifests[0])
        if arguments.data_path == "-":
            for line in text.splitlines():
                terminal.put(line)
            return 0
        write_data_path(plan, prefix, text, arguments.data_path, overwrite=arguments.overwrite)
    show_committed(plan, prefix, manifests, arguments)
    return 0
