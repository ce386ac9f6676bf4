"""``tokpack dedup``: datasets -> a view of their documents without copies."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import shards, terminal
from tokpack.cli.inputs import matching_datasets
from tokpack.cli.parser import Group, Page, flags, given_options, output_prefix
from tokpack.errors import UsageError
from tokpack.quantities import percent, time_text

if TYPE_CHECKING:
    import argparse

    from tokpack.documents import DedupReport

_MANY = 20  # copies of one document that a note is worth

PAGE = Page(
    "dedup",
    "Leave out copies of documents, within and across datasets: a view of the others.",
    (
        Group(
            "what counts as a copy",
            flags(
                """
                --near SHARE  near copies too: documents whose n-grams have at least this
                              Jaccard similarity, such as 0.8 (only equal tokens)
                --on WHICH    with --near, the tokens that are compared: all, or trained ones, as
                              the mask of conversations says (all)
                --ngram N     tokens in an n-gram (5)
                --bands N     bands of a signature (14)
                --rows N      values of a band; near copies agree in all of at least one band (8)
                --no-verify   leave out documents that agree in a band, without comparing their
                              n-grams
                """,
                on={"choices": ("all", "trained")},
                no_verify={"dest": "verify", "action": "store_false"},
            ),
        ),
        shards.ON_A_CLUSTER,
        Group(
            "output",
            flags(
                """
                -o, --output PREFIX     the view to make, and PREFIX.clusters.parquet
                --threads, --workers N  threads that read (all cores)
                --overwrite             replace what is there
                --json                  print what became of the documents as JSON on stdout
                """,
                output={"type": output_prefix},
            ),
        ),
    ),
    """\
INPUT is the prefix of a dataset, or one of its files. Of several copies the first one,
in the order given, is kept. Pairs (encode --pairs) are kept or left out whole.

examples:
  tokpack dedup wiki owt code -o clean
  tokpack dedup 'shard_*' -o unlike --near 0.8
  tokpack dedup chats -o unlike --near 0.8 --on trained    by the answers, whatever the prompts
""",
    usage="INPUT... -o PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack dedup``."""
    if not arguments.inputs:
        raise UsageError("no INPUT: name one or more datasets by their prefixes")
    from tokpack.documents import dedup

    output, inputs = arguments.output, matching_datasets(arguments.inputs)
    with terminal.Reporter() as reporter:
        tasks = shards.tasks_of(arguments, output, reporter)
        options = given_options(dedup, arguments)
        report = dedup(inputs, output, **options, progress=reporter, tasks=tasks)
    _tell(output, report, reporter.seconds)
    if arguments.json:
        shares = {"datasets": report.datasets, "clusters": report.clusters}
        terminal.put_json({"prefix": output, **shares, "recall": report.recall})
    else:
        terminal.print_paths(output)
    return 0


def _tell(output: str, report: DedupReport, seconds: float) -> None:
    shares = [asdict(one) for one in report.datasets]
    totals = {
        kind: {what: sum(one[kind][what] for one in shares) for what in ("documents", "tokens")}
        for kind in ("read", "kept", "exact", "near")
    }
    lines = [(f"  {one['prefix']}", one) for one in shares]
    for name, counts in [*(lines if shares[1:] else ()), (output, totals)]:
        read, kept, exact, near = (counts[kind]["documents"] for kind in totals)
        terminal.say_folded(
            f"{name}: {read:,} documents = {kept:,} kept + {exact:,} exact copies + {near:,} near "
            "copies"
        )
    for one in report.datasets:
        if one.most_of_one >= _MANY and one.most_of_one > one.read.documents / 2:
            terminal.note(
                f"{one.most_of_one:,} of {one.read.documents:,} documents of {one.prefix} are "
                "near copies of one: a chain of near copies can join documents that differ. Look "
                f"at {output}.clusters.parquet; if conversations share a long prompt, compare "
                "their answers alone with --on trained"
            )
    kept, read = totals["kept"]["tokens"], totals["read"]["tokens"]
    terminal.say(f"  {kept:,} of {read:,} tokens kept ({percent(kept, read)})")
    if report.recall is not None:
        found = f"{report.recall:.1%} of cases"
        terminal.say(f"  two documents with exactly that similarity are found in {found}")
    terminal.say(f"  in {time_text(seconds)}")
