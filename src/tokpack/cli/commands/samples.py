"""``tokpack samples``: which samples a step of training took, and what they were made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokpack.cli.parser import Group, Page, flag, number
from tokpack.cli.tokenizer_flags import of_dataset, tokenizer_given
from tokpack.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from tokpack.checkpoints.course import RunHistory

PAGE = Page(
    "samples",
    "Show what a training run saw: the samples of a step, or the steps of a document.",
    (
        Group(
            "what to show",
            (
                flag("--step", type=number(1), metavar="N", help="the batch of step N, from 1"),
                flag(
                    "--rank",
                    type=number(0),
                    metavar="R",
                    help="only what data parallel rank R takes of it",
                ),
                flag(
                    "--sample", type=number(0), nargs="+", metavar="K", help="sample K of training"
                ),
                flag(
                    "--document",
                    "--doc",
                    metavar="DATASET:D",
                    help="the steps at which document D of a dataset is seen",
                ),
            ),
        ),
        Group(
            "the steps of a blend file",
            (
                flag("--global-batch-size", type=number(1), metavar="N", help="samples of a step"),
                flag(
                    "--rampup-batch-size",
                    type=number(0),
                    nargs=3,
                    metavar="S I N",
                    help="begin with S samples, grow by I, over N samples",
                ),
                flag(
                    "--micro-batch-size",
                    type=number(1),
                    metavar="N",
                    help="samples of one pass of one rank (up to 4)",
                ),
                flag(
                    "--data-parallel-size",
                    type=number(1),
                    metavar="N",
                    help="data parallel ranks (1)",
                ),
            ),
        ),
        *of_dataset(),
        Group(
            "output",
            (
                flag(
                    "--max-tokens",
                    type=number(0),
                    metavar="N",
                    help="tokens shown of a sample, 0: all (a line of each document; --json all)",
                ),
                flag("--json", action="store_true", help="print JSON, an object a line"),
            ),
        ),
    ),
    """\
INPUT is a folder to which `tokpack train` writes its log.jsonl (--log-dir, else --save), also while
it runs; or a blend file, with the batch sizes of a run on it. Steps count from 1, samples and ranks
from 0. A document is seen where a sample has some of its tokens.

examples:
  tokpack samples run --step 12340                what was in that batch
  tokpack samples run --step 12340 --rank 3 --max-tokens 200
  tokpack samples run --step 12340 --json | jq -r '.documents[].source' | sort | uniq -c
  tokpack samples run --document wiki:17          when it was, or will be, seen
  tokpack samples blend.yaml --step 500 --global-batch-size 512 --data-parallel-size 64
""",
    usage="INPUT [flags]",
)
_SIZES = ("global_batch_size", "rampup_batch_size", "micro_batch_size")


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack samples``."""
    questions = [n for n in ("step", "sample", "document") if getattr(arguments, n) is not None]
    if len(questions) != 1:
        flags = ", ".join(f"--{name}" for name in questions) or "none of them"
        raise UsageError(f"ask for one of --step N, --sample K and --document D; given: {flags}")
    if arguments.rank is not None and questions != ["step"]:
        raise UsageError("--rank goes with --step")
    course = _course(arguments)
    from tokpack.cli import shown_samples

    if not any(tokenizer_given(arguments).values()):
        vars(arguments).update(course.tokenizer)

    if arguments.document is not None:
        shown_samples.find_document(course, arguments)
    elif arguments.step is not None:
        shown_samples.show_step(course, arguments)
    else:
        shown_samples.show_samples(course, arguments, arguments.sample)
    return 0


def _course(arguments: argparse.Namespace) -> RunHistory:
    from tokpack.checkpoints.course import course_of_blend, course_of_run
    from tokpack.samples.blend.words import is_blend_file

    path = arguments.inputs[0]
    sizes = {name: getattr(arguments, name) for name in _SIZES}
    flags = [name for name in (*_SIZES, "data_parallel_size") if getattr(arguments, name)]
    if os.path.isdir(path):
        if flags:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in flags)
            raise UsageError(f"{names}: the log of {path} says it: leave it out")
        return course_of_run(path)
    if not is_blend_file(path):
        raise UsageError(f"{path}: neither the folder of a run nor a blend file, as blend.yaml")
    if arguments.step is not None and arguments.global_batch_size is None:
        raise UsageError(f"--step {arguments.step} of a blend file needs --global-batch-size")
    return course_of_blend(path, arguments.data_parallel_size or 1, **sizes)
