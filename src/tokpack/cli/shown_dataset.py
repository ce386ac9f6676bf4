"""A dataset that a command shows, with its tokenizer: flags that name it, how it is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, flag

if TYPE_CHECKING:
    import argparse

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling

MAX_TOKENS = 256  # of a document, unless asked for more

TOKENIZER = Group(
    "tokenizer",
    (
        flag(
            "--tokenizer",
            metavar="NAME|PATH",
            help="gpt2, neox, a Hugging Face name, a tokenizer.json (as the manifest says)",
        ),
        flag("--vocab-file", "--vocab", metavar="FILE", help="vocab.json or tokenizer.json"),
        flag("--merge-file", metavar="FILE", help="merges.txt that belongs to --vocab-file"),
        flag("--tokenizer-model", metavar="PATH", help="a sentencepiece model"),
        flag("--tokenizer-type", metavar="TYPE", help="as for encode: Whitespace, ..."),
        flag("--pattern", metavar="NAME", help="as for encode, of a .tiktoken file"),
    ),
)


def load(prefix: str, arguments: argparse.Namespace) -> tuple[MMapIndexedDataset, Spelling | None]:
    """Open a dataset and its tokenizer, and tell the user what is missing."""
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report import Spelling, doubt, find_tokenizer

    dataset = MMapIndexedDataset(prefix)
    notes = [doubt(dataset)]
    found = find_tokenizer(
        dataset,
        arguments.tokenizer,
        vocab_file=arguments.vocab_file,
        merge_file=arguments.merge_file,
        tokenizer_type=arguments.tokenizer_type,
        tokenizer_model=arguments.tokenizer_model,
        pattern=arguments.pattern,
    )
    if not arguments.quiet:
        for line in filter(None, (*notes, found.note)):
            terminal.note(line)
    return dataset, Spelling(found.tokenizer) if found.tokenizer else None
