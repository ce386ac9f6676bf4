"""``tokpack view``: datasets, done or being made, blends and training runs as web pages."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import of_dataset, tokenizer_given
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.display import shown
from tokpack.errors import needs_extra
from tokpack.storage import is_url

if TYPE_CHECKING:
    import argparse

_PAUSE_SECONDS = 0.3  # between two looks for what is not there yet

PAGE = Page(
    "view",
    "Look at datasets, blends, training runs, and runs of encode, in a browser.",
    (
        Group(
            "flags",
            flags(
                """
                --port N  port on this machine (any free one)
                --wait    wait until INPUT exists, such as a run that is about to begin
                """,
                port={"type": number(0), "default": 0},
            ),
        ),
        *of_dataset(),
    ),
    """\
INPUT is a dataset, finished or being made, a blend file, a folder to which `tokpack train` writes
its log.jsonl, or a folder that contains these (the current folder). The printed address contains a
key and works on this machine only. Pages change nothing and show only the INPUTs, the contents of
folders, and the datasets of blends and runs. Ctrl-C ends it.

examples:
  tokpack view
  tokpack view the-pile
  tokpack view run blend.yaml data/*.idx
  tokpack view run --wait        before it has begun
  ssh -L 8000:127.0.0.1:8000 node tokpack view run --port 8000
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack view``."""
    with needs_extra("view"):
        from tokpack.look.pages.app import serve
    from tokpack.cli.inputs import matching_datasets
    from tokpack.look.pages.items import open_items

    names = matching_datasets(arguments.inputs or [os.curdir])
    with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
        for name in names if arguments.wait else ():
            wait_for(name)
        items = open_items(names, tokenizer_given(arguments))
        terminal.say("tokpack: Ctrl-C ends it")
        serve(items, arguments.port, lambda address: print(address, flush=True))
    return 0


def wait_for(name: str) -> None:
    """Wait until something has this name, such as a run that is about to begin."""
    if is_url(name) or _is_there(name) or not os.path.isdir(os.path.dirname(name) or "."):
        return
    terminal.say(f"tokpack: {shown(name)}: nothing there yet; waiting for it (Ctrl-C ends it)")
    while not _is_there(name):
        time.sleep(_PAUSE_SECONDS)


def _is_there(name: str) -> bool:
    """Whether a file, or a folder that is not empty, has a name that begins with this one."""
    paths = [name, *glob.glob(f"{glob.escape(name)}*")]
    return any(os.listdir(path) if os.path.isdir(path) else os.path.lexists(path) for path in paths)
