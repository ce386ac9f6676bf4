"""``tokpack bench``: tokpack beside the other tokenizer libraries that are installed here."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import INPUT_FORMAT, RARE, tokenizer_flag, tokenizer_given
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import UsageError, option
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tokpack.look.tokenizers import LibraryTrial

_REFERENCES = ("tokenizers", "transformers")  # whose ids tokpack promises

PAGE = Page(
    "bench",
    "Encode texts with tokpack and with the other libraries that are installed, and compare ids.",
    (
        Group(
            "what to do",
            (
                *flags(
                    """
                    --libraries NAME...     fastokens, gigatoken, snaptokens, tiktoken,
                                            tokenizers, transformers (those that are installed)
                    --key, --json-keys KEY  JSON key or column (text)
                    """,
                    libraries={"nargs": "+"},
                    key={"default": "text"},
                ),
                INPUT_FORMAT,
                *flags(
                    """
                    --sample SIZE  text to read (8MB), the same share of each file
                    --json         print everything as JSON on stdout
                    """,
                    sample={"default": 8_000_000},
                ),
            ),
        ),
        Group("tokenizer", (tokenizer_flag("gpt2"),)),
        RARE,
    ),
    """\
INPUT is text, as encode takes it (Python's library). Each library encodes it in one thread of a
process of its own, each text once; the first 10 MB and the rest of --sample are measured apart.
tiktoken gives different ids if the vocabulary is not in the order of its merges, and libraries
differ in how they treat special tokens inside a text.

examples:
  tokpack bench wiki.jsonl
  tokpack bench wiki.jsonl --tokenizer gpt2 --libraries tokenizers tiktoken
""",
    usage="[INPUT...] [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack bench``."""
    from tokpack.look.tokenizers import bench, mix, read_texts, sample_texts
    from tokpack.tokenizers import load_tokenizer

    most = arguments.sample
    if most < 1:
        raise UsageError(f"{option('sample')} is 0: nothing would be read")
    tokenizer = load_tokenizer(**tokenizer_given(arguments))
    texts = sample_texts(most)
    if arguments.inputs:
        kind = arguments.input_format or "auto"
        texts = mix(
            read_texts(arguments.inputs, key=arguments.key, input_format=kind, by=None, most=most),
            most,
        )
    trials = bench(tokenizer, texts, libraries=arguments.libraries or ())
    if arguments.json:
        facts = {"tokenizer": tokenizer.name, "bytes": texts.size, "documents": len(texts.spans)}
        terminal.put_json(facts | {"libraries": [asdict(trial) for trial in trials]})
    else:
        name = os.path.basename(tokenizer.name)
        _show(trials, f"{name} on {bytes_text(texts.size)} of text, one thread")
    others = (trial for trial in trials if not trial.same_ids and not trial.failure)
    return 1 if any(trial.library in _REFERENCES for trial in others) else 0


def _show(trials: Sequence[LibraryTrial], title: str) -> None:
    from tokpack.cli.figures import bold, table

    rows = [["", "first MB/s", "later MB/s", "load s", "ids"]]
    for one in (trial for trial in trials if not trial.failure):
        speeds = [f"{one.first:,.1f}", f"{one.later:,.1f}" if one.later else ""]
        ids = "the same" if one.same_ids else "different"
        rows.append([f"{one.library} {one.version}", *speeds, f"{one.construction:.2f}", ids])
    terminal.put(bold(title))
    table(rows, left=(0, 4))
    for one in trials:
        if one.failure:
            terminal.put(f"{one.library}: not measured: {one.failure}")
