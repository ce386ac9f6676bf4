"""``tokpack bench``: tokpack beside the other tokenizer libraries that are installed here."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.encode_flags import INPUT_FORMAT, RARE, tokenizer_flag, tokenizer_given
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.errors import UsageError, option
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tokpack.look.bench import LibraryTrial

_REFERENCES = ("tokenizers", "transformers")  # whose ids tokpack promises

PAGE = Page(
    "bench",
    "Encode texts by tokpack and by each other library that is installed, and compare ids.",
    (
        Group(
            "what to do",
            (
                *flags(
                    """
                    --libraries NAME...     gigatoken, snaptokens, tiktoken, tokenizers,
                                            transformers (those that are installed)
                    --key, --json-keys KEY  JSON key or column (text)
                    """,
                    libraries={"nargs": "+"},
                    key={"default": "text"},
                ),
                INPUT_FORMAT,
                *flags(
                    """
                    --sample SIZE  text to read (8MB), the same share of each file
                    --runs N       processes of each library, in turns (3)
                    --chart FILE   draw the speeds, as SVG
                    --json         print everything as JSON on stdout
                    """,
                    sample={"default": 8_000_000},
                    runs={"default": 3, "type": number(1)},
                ),
            ),
        ),
        Group("tokenizer", (tokenizer_flag("gpt2"),)),
        RARE,
    ),
    """\
INPUT is text, as encode takes it (Python's library). Each library encodes it in one thread of a
process of its own, each text once; the first 10 MB and the rest of --sample are measured apart.

examples:
  tokpack bench wiki.jsonl
  tokpack bench wiki.jsonl --tokenizer gpt2 --libraries tokenizers tiktoken --chart speed.svg
""",
    usage="[INPUT...] [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack bench``."""
    from tokpack.look.bench import bench
    from tokpack.look.tokenizers import mix, read_texts, sample_texts
    from tokpack.tokenizers import load_tokenizer

    if arguments.sample < 1:
        raise UsageError(f"{option('sample')} is 0: nothing would be read")
    tokenizer = load_tokenizer(**tokenizer_given(arguments))
    texts = sample_texts(arguments.sample)
    if arguments.inputs:
        groups = read_texts(
            arguments.inputs,
            key=arguments.key,
            input_format=arguments.input_format or "auto",
            by=None,
            most=arguments.sample,
        )
        texts = mix(groups, arguments.sample)
    trials = bench(tokenizer, texts, libraries=arguments.libraries or (), runs=arguments.runs)
    if arguments.json:
        facts = {"tokenizer": tokenizer.name, "bytes": texts.size, "documents": len(texts.spans)}
        terminal.put_json(facts | {"libraries": [asdict(trial) for trial in trials]})
    else:
        name = os.path.basename(tokenizer.name)
        _show(trials, f"{name} on {bytes_text(texts.size)} of text, one thread")
    if arguments.chart:
        _draw(arguments.chart, os.path.basename(tokenizer.name), trials, arguments.inputs)
    references = [trial for trial in trials if trial.library in _REFERENCES and not trial.failure]
    return 0 if all(trial.same_ids for trial in references) else 1


def _show(trials: Sequence[LibraryTrial], title: str) -> None:
    from tokpack.cli.figures import bold, table

    ours = trials[0]
    later = any(trial.later for trial in trials)
    head = ["", "first MB/s", *(["later MB/s"] if later else []), "tokpack", "load s", "ids"]
    rows, highest = [head], ours.first
    for trial in (one for one in trials if not one.failure):
        times = "" if trial is ours else f"{ours.first / trial.first:,.1f}x"
        ids = "" if trial is ours else "the same" if trial.same_ids else "others"
        name = f"{trial.library} {trial.version}"
        speeds = [f"{trial.first:,.1f}", *([f"{trial.later:,.1f}"] if later else [])]
        rows.append([name, *speeds, times, f"{trial.construction:.2f}", ids])
        highest = max(highest, trial.first)
    terminal.put(bold(title))
    table(
        rows,
        left=(0, len(head) - 1),
        bars=[one.first / highest for one in trials if not one.failure],
    )
    for trial in trials:
        if trial.failure:
            terminal.put(f"{trial.library}: not measured: {trial.failure}")
    if not all(trial.same_ids or trial.failure for trial in trials):
        terminal.put(
            "other ids: tiktoken has them for vocabularies that are not in the order of their "
            "merges; where the text has special tokens, libraries differ in what they make of them"
        )


def _draw(path: str, name: str, trials: Sequence[LibraryTrial], inputs: Sequence[str]) -> None:
    from tokpack.look.plots import bars
    from tokpack.storage.disk.replaceable import write_output

    speeds = {trial.library: trial.first for trial in trials if not trial.failure}
    picture = bars([(f"{name}: MB/s of one thread, text not seen before", speeds)])
    write_output(path, [picture.encode()], inputs, overwrite=True)
