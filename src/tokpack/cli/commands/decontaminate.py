"""``tokpack decontaminate``: documents that evaluation sets are in, and a view of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli import shards, terminal
from tokpack.cli.inputs import matching_datasets, of_dataset, tokenizer_given
from tokpack.cli.parser import Group, Page, flags, given_options, output_prefix
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.quantities import counted, percent, time_text

if TYPE_CHECKING:
    import argparse

    from tokpack.documents import Decontamination

_CHARACTERS = 60  # of a common phrase

PAGE = Page(
    "decontaminate",
    "Find documents that contain n-grams of evaluation sets, and leave them out.",
    (
        Group(
            "what is searched for",
            flags(
                """
                --against INPUT...     evaluation sets: files of texts, or datasets
                --keys, --json-keys KEY...  JSON keys or columns of their texts (text)
                --unit UNIT            words, in lower case and without punctuation, as in the
                                       lm-evaluation-harness; or tokens, as they are (words)
                --ngram N              so many in a row are a match (13); 50 characters count as 13
                                       words where a script has no spaces
                --shortest N           a text shorter than an n-gram is matched whole, one with
                                       fewer than N is skipped (8)
                --common N|SHARE       a phrase in more than N documents of a dataset, or in more
                                       than this share of them, such as 1%, is common and no match;
                                       0: no phrase is (50)
                """,
                against={"default": []},
                unit={"choices": ("words", "tokens")},
            ),
        ),
        shards.ON_A_CLUSTER,
        Group(
            "output",
            flags(
                """
                -o, --output PREFIX     a view of the other documents, and PREFIX.spans.parquet
                --table FILE            write the matched spans to this .parquet
                --threads, --workers N  threads that read (all cores)
                --overwrite             replace what is there
                --json                  print the counts as JSON on stdout
                """,
                output={"type": output_prefix},
            ),
        ),
        *of_dataset(),
    ),
    """\
INPUT is the prefix of a dataset, or one of its files. Without --output and --table it only counts.

examples:
  tokpack decontaminate the-pile --against sample.jsonl.zst -o unseen
  tokpack decontaminate wiki --against papers.jsonl --keys title abstract --table spans.parquet
""",
    usage="INPUT... --against INPUT... [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack decontaminate``."""
    if not arguments.inputs:
        raise UsageError("no INPUT: name one or more datasets by their prefixes")
    if not arguments.against:
        raise UsageError("no evaluation set: name one or more after --against")
    from tokpack.documents import decontaminate

    inputs, output = matching_datasets(arguments.inputs), arguments.output
    options = {**given_options(decontaminate, arguments), **tokenizer_given(arguments)}
    with terminal.Reporter() as reporter:
        tasks = shards.tasks_of(arguments, output or arguments.table or inputs[0], reporter)
        result = decontaminate(inputs, output, **options, progress=reporter, tasks=tasks)
    _tell(result, reporter.seconds)
    if arguments.json:
        counts = {name: value for name, value in vars(result).items() if name != "manifest"}
        terminal.put_json({"prefix": output, **counts})
    elif output:
        terminal.print_paths(output)
    elif arguments.table:
        terminal.print_paths(arguments.table)
    return 0


def _tell(result: Decontamination, seconds: float) -> None:
    terminal.say(
        f"{counted(result.texts, 'evaluation text')}, {counted(result.phrases, 'phrase')}"
        + (f"; {result.short:,} too short, skipped" if result.short else "")
    )
    if result.common:
        terminal.say(f"  {counted(result.common, 'phrase')} skipped as common, such as")
        for text in result.examples:
            terminal.say_folded(f"    {shown(text, limit=_CHARACTERS)}")
    if result.spared:
        terminal.note(
            f"{counted(result.spared, 'document')} with only common phrases "
            f"{'is' if result.spared == 1 else 'are'} kept: check the phrases above, because a "
            "text that was copied often is among them; with --common 0 no phrase is common"
        )
    for one in result.datasets:
        kept = percent(one.kept_tokens, one.read_tokens)
        partners = f" + {one.partners:,} of pairs with these" if one.partners else ""
        terminal.say_folded(
            f"{one.prefix}: {one.read:,} documents = {one.kept:,} kept + {one.matched:,} with "
            f"matches{partners}; {kept} of the tokens kept"
        )
    terminal.say(f"  {counted(result.spans, 'span')} in {time_text(seconds)}")
