"""``tokpack adopt``: a table of documents for a dataset, and a manifest for one that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import summary, terminal
from tokpack.cli.inputs import RARE, encode_flag, tokenizer_flag, tokenizer_given
from tokpack.cli.parser import Group, Page, flags, given_options
from tokpack.display import shown

_SHOWN = 60  # characters of a document
if TYPE_CHECKING:
    import argparse


PAGE = Page(
    "adopt",
    "Write a table of a dataset's documents, and a manifest if another program made it.",
    (
        Group(
            "the tokenizer that made it",
            (
                tokenizer_flag("required, except for a dataset of tokpack"),
                encode_flag("eod_token"),
                encode_flag(
                    "append_eod",
                    help="each document ends with the EOD token (if the first one does)",
                ),
            ),
        ),
        RARE,
        Group("output", flags("--json  print the manifest as JSON on stdout")),
    ),
    """\
INPUT is the PREFIX of PREFIX.bin and .idx, which are not changed: PREFIX.docs.parquet is written
beside them, and PREFIX.json if there is none. Then every id is checked against the vocabulary, and
every document for its EOD.

examples:
  tokpack adopt my-gpt2_text_document        of tokpack, encoded without --keep: now select takes it
  tokpack adopt old_text_document --tokenizer gpt2
  tokpack adopt old_text_document --tokenizer gpt2 --no-append-eod
""",
    usage="INPUT [flags]",
)


def _show_text(prefix: str) -> None:
    """Show how the first document begins: any tokenizer with enough ids makes some text of it."""
    from tokpack.dataset import MMapIndexedDataset

    with MMapIndexedDataset(prefix) as dataset:
        text = dataset.text(0) if dataset.documents else ""
    terminal.say(f"  its first document begins: {shown(text, limit=_SHOWN)}")
    terminal.say_folded(
        "  if it does not look like text, another tokenizer made it: remove its .json, and adopt "
        "it again"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack adopt``."""
    from tokpack.dataset import prefix_of
    from tokpack.dataset.adopt import adopt

    (prefix,) = arguments.inputs
    options = {**given_options(adopt, arguments), **tokenizer_given(arguments)}
    with terminal.Reporter() as report:
        manifest = adopt(prefix, **options, progress=report)
    results = [(prefix_of(prefix), manifest)]
    summary.show(results, report.seconds)
    if manifest.options.get("adopted"):
        _show_text(prefix)
    summary.print_made(results, arguments)
    return 0
