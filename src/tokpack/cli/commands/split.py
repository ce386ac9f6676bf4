"""``tokpack split``: a dataset -> datasets of consecutive documents."""

from __future__ import annotations

import argparse

from tokpack.cli import summary, terminal
from tokpack.cli.parser import Group, Page, flags, given_options, number, output_prefix


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 969,30,1") from None


PAGE = Page(
    "split",
    "Cut a dataset into datasets of consecutive documents. No document is cut.",
    (
        Group(
            "how to cut, one of",
            flags(
                """
                --documents N   N documents in each
                --tokens N      at most N tokens in each
                --parts K       K datasets, alike in tokens
                --shares A,B,C  by shares of the documents, as in 969,30,1; three are train, valid,
                                test
                """,
                parts={"type": number(1)},
                shares={"type": _shares},
            ),
        ),
        Group(
            "output",
            flags(
                """
                -o, --output PREFIX  PREFIX_00000, PREFIX_00001, ... or PREFIX_train, _valid and
                                     _test
                --overwrite          replace what is there
                --json               print what was made as JSON on stdout
                """,
                output={"type": output_prefix},
            ),
        ),
    ),
    """\
INPUT is the prefix of a dataset, or one of its files.

examples:
  tokpack split wiki -o wiki --shares 98,1,1        wiki_train, wiki_valid, wiki_test
  tokpack split pile -o shards/pile --tokens 1000000000
""",
    usage="INPUT -o PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack split``."""
    from tokpack.dataset.split import split

    (prefix,), output = arguments.inputs, arguments.output
    with terminal.Reporter() as report:
        results = split(prefix, output, **given_options(split, arguments), progress=report)
    summary.show(results, report.seconds)
    summary.show_conserved([prefix], [name for name, _ in results])
    summary.print_made(results, arguments)
    return 0
