"""``tokpack adopt``: a manifest and a table of documents for a dataset of another program."""

from __future__ import annotations

import argparse

from tokpack.cli import summary, terminal
from tokpack.cli.option_flags import flag_of
from tokpack.cli.parser import Group, Page, flags, options_of
from tokpack.cli.tokenizer_flags import RARE, tokenizer_flag, tokenizer_given

PAGE = Page(
    "adopt",
    "Give a dataset of another program a manifest and a table of its documents.",
    (
        Group(
            "the tokenizer that made it",
            (
                tokenizer_flag("must be named"),
                flag_of("eod_token"),
                flag_of(
                    "append_eod",
                    otherwise="if the first one does",
                    help="each document ends with the EOD token (if the first one does)",
                    action=argparse.BooleanOptionalAction,
                    default=None,
                ),
            ),
        ),
        RARE,
        Group("output", flags("--json  print the manifest as JSON on stdout")),
    ),
    """\
INPUT is the PREFIX of PREFIX.bin and .idx, which stay as they are: PREFIX.json and
PREFIX.docs.parquet are written beside them. Every id is checked against the vocabulary, every
document for its EOD.

examples:
  tokpack adopt old_text_document --tokenizer gpt2
  tokpack adopt old_text_document --tokenizer gpt2 --no-append-eod
""",
    usage="INPUT [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack adopt``."""
    from tokpack.indexed import prefix_of
    from tokpack.operations import adopt

    (prefix,) = arguments.inputs
    options = {**options_of(adopt, arguments), **tokenizer_given(arguments)}
    with terminal.Reporter() as report:
        manifest = adopt(prefix, **options, progress=report)
    results = [(prefix_of(prefix), manifest)]
    summary.show(results, report.seconds)
    summary.print_made(results, arguments)
    return 0
