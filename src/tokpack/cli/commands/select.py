"""``tokpack select``: datasets -> a view of some of their documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import summary, terminal
from tokpack.cli.inputs import matching_datasets
from tokpack.cli.parser import Group, Page, flags, given_options, number, output_prefix
from tokpack.quantities import counted

if TYPE_CHECKING:
    import argparse

    from tokpack.dataset import Manifest


PAGE = Page(
    "select",
    "Choose documents of datasets. The result is a view, which works like a dataset in every\n"
    "command; nothing is copied.",
    (
        Group(
            "which documents",
            flags(
                """
                --where SQL      documents for which this is true: "score > 0.7 and lang = 'de'"
                --join FILE...   .parquet, .csv, .tsv, .jsonl or .json with more columns for --where
                --on COLUMN,...  columns that match rows of --join to documents: id, or id=doc_id
                --repeat SQL     how often to repeat each: an integer, or "2 if score > 0.9"
                """,
                join={"nargs": "+"},
            ),
        ),
        Group(
            "a share of them, one of",
            flags(
                """
                --random SHARE  by a hash of the documents, such as 0.1; a larger one contains it
                --tokens N      as many, by the same hash, as fit into N tokens, repeats counted
                --first N       the first N documents
                --seed N        another seed chooses others for --random and --tokens (0)
                """,
                tokens={"type": number(1)},
                first={"type": number(1)},
                seed={"type": number(0), "default": 0},
            ),
        ),
        Group(
            "output",
            flags(
                """
                -o, --output PREFIX  the view to make
                --rest PREFIX        also make a view of the documents that the share leaves out,
                                     each once
                --overwrite          replace what is there
                --json               print what was made as JSON on stdout
                """,
                output={"type": output_prefix},
                rest={"type": output_prefix},
            ),
        ),
    ),
    """\
INPUT is the prefix of a dataset, or one of its files. Expressions are DuckDB's SQL on the columns
of the table of its documents: source, line, bytes, tokens and what `encode --keep` has kept.

examples:
  tokpack select web --where "score > 0.7 and lang = 'de'" --repeat "2 if score > 0.9" -o good
  tokpack select web --join scores.parquet --on id --where "quality > 3" -o good
  tokpack select web --where "tokens > 20 and document < 1e6" -o long-ones    no table
  tokpack select web books --tokens 10e9 -o small
  tokpack select web --random 0.9 -o train --rest valid
  tokpack merge good -o copy                               the documents of a view, written out
""",
    usage="INPUT... -o PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack select``."""
    from tokpack.dataset import Manifest
    from tokpack.documents import select

    output, rest = arguments.output, arguments.rest
    manifest = select(
        matching_datasets(arguments.inputs), output, **given_options(select, arguments)
    )
    results = [(output, manifest), *([(rest, Manifest.load(rest))] if rest else [])]
    for name, one in results:
        terminal.say(summary.describe(name, one))
    for line in _counts(manifest):
        terminal.say(f"  {line}")
    summary.print_made(results, arguments)
    return 0


def _counts(manifest: Manifest) -> list[str]:
    """Where the documents of the inputs have gone."""
    chosen = manifest.options["select"]
    dropped = [f"{count:,} dropped by --{why}" for why, count in chosen["dropped"].items()]
    kept = f"{chosen['kept']:,} kept"
    if "with_repeats" in chosen:
        kept += f", {chosen['with_repeats']:,} with repeats"
    lines = [f"of {counted(chosen['documents'], 'document')}: {'; '.join([kept, *dropped])}"]
    if chosen.get("unmatched"):
        lines.append(
            f"{counted(chosen['unmatched'], 'document')} without a row in {chosen['join'][0]}"
        )
    return lines
