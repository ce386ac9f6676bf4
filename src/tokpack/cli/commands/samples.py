"""``tokpack samples``: which samples a step of training took, and what they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.cli.inputs import of_dataset, tokenizer_given
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.errors import UsageError
from tokpack.wall import entry_point

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "samples",
    "Show what a training run saw: the samples of a step, or the steps of a document.",
    (
        Group(
            "what to show",
            flags(
                """
                --step N           the batch of step N (the first is 1)
                --rank R           only the samples of data parallel rank R
                --sample K...      sample K of training
                --document, --doc DATASET:D  the steps at which document D of a dataset is seen
                """,
                rank={"type": number(0)},
                sample={"type": number(0)},
            ),
        ),
        *of_dataset(),
        Group(
            "output",
            flags(
                """
                --max-tokens N  tokens shown of a sample, 0: all (one line of each document;
                                --json all)
                --json          print JSON, one object per line
                """,
                max_tokens={"type": number(0)},
            ),
        ),
    ),
    """\
RUN is a folder to which `tokpack train` writes its log.jsonl (--log-dir, else --save), also while
it runs. Steps count from 1, samples and ranks from 0. A document is seen if a sample has some of
its tokens.

examples:
  tokpack samples run --step 12340                what was in that batch
  tokpack samples run --step 12340 --rank 3 --max-tokens 200
  tokpack samples run --step 12340 --json | jq -r '.documents[].source' | sort | uniq -c
  tokpack samples run --document wiki:17          when it was, or will be, seen
""",
    usage="RUN [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack samples``."""
    questions = [n for n in ("step", "sample", "document") if getattr(arguments, n) is not None]
    if len(questions) != 1:
        given = ", ".join(f"--{name}" for name in questions) or "none"
        raise UsageError(f"give one of --step N, --sample K and --document D; given: {given}")
    if arguments.rank is not None and questions != ["step"]:
        raise UsageError("--rank goes with --step")
    from tokpack.cli import shown

    history = entry_point("history").read_history(arguments.inputs[0])
    if not any(tokenizer_given(arguments).values()):
        vars(arguments).update(history.tokenizer)
    if arguments.document is not None:
        shown.find_document(history, arguments)
    elif arguments.step is not None:
        shown.show_step(history, arguments)
    else:
        shown.show_samples(history, arguments, arguments.sample)
    return 0
