"""``tokpack view``: datasets, done or being made, blends and training runs as web pages."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.cli.tokenizer_flags import of_dataset, tokenizer_given
from tokpack.errors import UsageError, needs_extra

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "view",
    "Look at datasets, blends, training runs, and runs of encode, in a browser.",
    (
        Group(
            "flags",
            flags(
                "--port N  where it is served on this machine (any that is free)",
                port={"type": number(0), "default": 0},
            ),
        ),
        *of_dataset(),
    ),
    """\
INPUT is a dataset, also one that is being made, a blend file, or a folder to which `tokpack train`
writes its log.jsonl; also several. The address is printed; it holds a key, and is of use on this
machine only. Nothing is changed, and nothing shown but what was named and the datasets of blends
and runs. Ctrl-C ends it.

examples:
  tokpack view the-pile
  tokpack view run blend.yaml data/*.idx
  ssh -L 8000:127.0.0.1:8000 node tokpack view run --port 8000
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack view``."""
    if not arguments.inputs:
        raise UsageError("nothing to show: name a dataset, a blend file, or the folder of a run")
    with needs_extra("view"):
        from tokpack.view.app import serve
    from tokpack.cli.inputs import matching_datasets
    from tokpack.view.items import open_items

    items = open_items(matching_datasets(arguments.inputs), tokenizer_given(arguments))
    terminal.say("tokpack: Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
        serve(items, arguments.port, _announce)
    return 0


def _announce(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
