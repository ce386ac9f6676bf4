"""Open a dataset that a command shows, with its tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import tokenizer_given

if TYPE_CHECKING:
    import argparse

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.spelling import Spelling

MAX_TOKENS = 256  # of a document, by default


def load(prefix: str, arguments: argparse.Namespace) -> tuple[MMapIndexedDataset, Spelling | None]:
    """Open a dataset and its tokenizer, and warn if something is missing."""
    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.sources import doubt
    from tokpack.dataset.spelling import Spelling, find_tokenizer

    dataset = MMapIndexedDataset(prefix)
    if why := doubt(dataset):
        terminal.note(why)
    tokenizer, note = find_tokenizer(dataset, **tokenizer_given(arguments))
    if note:
        terminal.note(note)
    return dataset, Spelling(tokenizer) if tokenizer else None
