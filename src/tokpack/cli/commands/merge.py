"""``tokpack merge``: several datasets -> one, or a manifest that lists them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tokpack.cli import rewrite, terminal
from tokpack.cli.inputs import datasets_in, matching_datasets
from tokpack.cli.parser import Group, Page, flag, flags, output_prefix
from tokpack.errors import UsageError

if TYPE_CHECKING:
    import argparse

PAGE = Page(
    "merge",
    "Join datasets into one: tokens, sequences and documents, in the order given.",
    (
        Group(
            "flags",
            flags(
                """
                -o, --output PREFIX  the dataset to make
                --virtual            copy nothing: write PREFIX.json, which the reader opens as one
                                     dataset
                --overwrite          replace what is there
                --json               print what was made as JSON on stdout
                """,
                output={"type": output_prefix},
            ),
        ),
        Group(
            "Flags of merge_datasets.py",
            (
                flag("--input", dest="folder"),
                flag("--output-prefix", dest="output", type=output_prefix),
                flag("--multimodal", action="store_true"),
            ),
            hidden=True,
        ),
    ),
    """\
INPUT is the prefix of a dataset, or one of its files. All must have one dtype and, as far as their
manifests tell, one tokenizer. Every entry of every index is checked.

examples:
  tokpack merge shard_*.idx -o whole
  tokpack merge wiki books code -o all --virtual
  tokpack merge s3://tokens/pile -o s3://tokens/one
  tokpack merge --input shards --output-prefix whole     as Megatron-LM's merge_datasets.py
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack merge``."""
    inputs = _inputs(arguments)
    if not arguments.output:
        raise UsageError("no output: add -o PREFIX")
    from tokpack.operations import merge

    began = time.monotonic()
    with (
        terminal.notes_from_log(quiet=arguments.quiet),
        terminal.Reporter(quiet=arguments.quiet) as report,
    ):
        manifest = merge(
            inputs,
            arguments.output,
            virtual=arguments.virtual,
            overwrite=arguments.overwrite,
            progress=report,
        )
    if not arguments.quiet and arguments.virtual:
        terminal.say(rewrite.describe(arguments.output, manifest) + " in its pieces")
        terminal.say("  it needs the pieces where they are; move it only together with them")
    elif not arguments.quiet:
        rewrite.show([(arguments.output, manifest)], time.monotonic() - began)
    if arguments.json:
        terminal.put_json({"prefix": arguments.output, **json.loads(manifest.to_json())})
    else:
        terminal.print_paths([arguments.output], said=not arguments.quiet)
    return 0


def _inputs(arguments: argparse.Namespace) -> list[str]:
    if arguments.inputs and arguments.folder:
        raise UsageError(
            f"--input {arguments.folder} is a folder, all of whose datasets are merged, and "
            f"{arguments.inputs[0]} is named too: give one of them"
        )
    if not (arguments.inputs or arguments.folder):
        raise UsageError("no INPUT: name two datasets or more, by their prefixes")
    found = (
        datasets_in(arguments.folder) if arguments.folder else matching_datasets(arguments.inputs)
    )
    if arguments.multimodal:
        from tokpack.indexed import MMapIndexedDataset

        for dataset in map(MMapIndexedDataset, found):
            if len(dataset) and dataset.modes is None:
                raise UsageError(f"--multimodal: {dataset.path_prefix} is not; leave the flag out")
    return found
