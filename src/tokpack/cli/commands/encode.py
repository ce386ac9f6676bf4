"""``tokpack encode``: documents -> .bin, .idx and a manifest."""

from __future__ import annotations

import argparse
import os

from tokpack.cli import encode_flags, shards, summary, terminal
from tokpack.cli.encode_flags import GROUPS, OUTPUT, resolve
from tokpack.cli.inputs import encode_flag
from tokpack.cli.loading import without_collection
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.errors import UsageError


def _interval(text: str) -> terminal.LineInterval:
    count = text.removesuffix("s")
    if not count.isdigit() or int(count) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of documents nor a time such as 30s"
        )
    if count != text:
        return terminal.LineInterval(seconds=int(count))
    return terminal.LineInterval(seconds=1.0, documents=int(count))


PAGE = Page(
    "encode",
    "Encode documents into a dataset that Megatron-LM, GPT-NeoX and their forks train on.",
    (
        *GROUPS,
        Group(
            "output",
            (
                *OUTPUT,
                encode_flag("files"),
                encode_flag("scratch"),
            ),
        ),
        Group(
            "run",
            (
                encode_flag("workers", type=number(1)),
                encode_flag("report_to"),
                *flags(
                    """
                    --log-interval N|Ns  without a terminal: a line every N documents or N seconds
                                         (10s)
                    --dry-run            write nothing: show how the inputs are read, the tokens of
                                         the first document, and the expected size and time; with
                                         --chat which tokens of the first conversations are trained
                    --json               print the manifests as JSON on stdout
                    """,
                    log_interval={"type": _interval},
                ),
            ),
        ),
        shards.GROUP,
        encode_flags.GROUP,
    ),
    """\
INPUT is a file, a folder, a glob, a list a.jsonl,b.jsonl, @list.txt, - for stdin, or hf://NAME, a
Hugging Face dataset. Its format is detected from its content: JSON lines, a JSON array, plain
text with one document per line, CSV, parquet, arrow, an archive; zst, gz, xz and bz2 are unpacked.
With --input-format file each file is one document, and so is each member of an archive.

examples:
  tokpack encode the-pile/*.jsonl.zst                 GPT-2 tokens in ./the-pile.bin and .idx
  tokpack encode wiki.jsonl -o data/wiki --tokenizer neox --workers 8
  tokpack encode src/ --input-format file             each text file below src/ is a document
  tokpack encode dump/ -o out --json-keys title text  two datasets, out_title and out_text
  tokpack encode web.jsonl --on-error skip:1000       bad records go to web.rejects.jsonl

The flags of preprocess_data.py (Megatron-LM, GPT-NeoX, Megatron-DeepSpeed) mean what they mean
there. The same command resumes a stopped run; with --map only if --map-version is given too.
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack encode``."""
    # Before numpy is loaded: its threads have no work here, and starting them takes a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments.plan or arguments.shard:
        return shards.encode(arguments, PAGE)
    shards.check_engine(arguments)
    options, notes = resolve(arguments)
    for line in notes:
        terminal.note(line)
    if arguments.dry_run:
        if arguments.json:
            raise UsageError("--dry-run is for people to read, and makes nothing that --json tells")
        from tokpack.cli.shown import print_trial

        print_trial(options)
        return 0
    if arguments.engine != "local":
        return shards.encode_with_engine(arguments, options)
    with without_collection():
        from tokpack.encoding import encode

    with terminal.Reporter(arguments.log_interval) as report:
        manifests = encode(options, progress=report)
    begun: summary.Begun = "complete"
    if report.first is not None:
        begun = "resumed" if report.first.done else "new"
    results = list(zip(options.output_names.values(), manifests, strict=True))
    summary.show_encoded(results, options, begun, report.seconds)
    summary.print_made(results, arguments)
    return 0
