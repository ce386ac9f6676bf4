"""How a dataset that a command shows is opened, with its tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.tokenizer_flags import tokenizer_given

if TYPE_CHECKING:
    import argparse

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling

MAX_TOKENS = 256  # of a document, unless asked for more


def load(prefix: str, arguments: argparse.Namespace) -> tuple[MMapIndexedDataset, Spelling | None]:
    """Open a dataset and its tokenizer, and tell the user what is missing."""
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling, doubt, find_tokenizer

    dataset = MMapIndexedDataset(prefix)
    notes = [doubt(dataset)]
    found = find_tokenizer(dataset, **tokenizer_given(arguments))
    if not arguments.quiet:
        for line in filter(None, (*notes, found.note)):
            terminal.note(line)
    return dataset, Spelling(found.tokenizer) if found.tokenizer else None
