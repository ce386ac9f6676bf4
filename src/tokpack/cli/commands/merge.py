"""``tokpack merge``: several datasets -> one, or a manifest that lists them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokpack.cli import summary, terminal
from tokpack.cli.inputs import datasets_in, matching_datasets
from tokpack.cli.parser import Group, Page, flag, flags, given_options, output_prefix
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
                --virtual            copy nothing: write PREFIX.json, which opens as one dataset
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
INPUT is the prefix of a dataset, or one of its files. All must have the same dtype and, if their
manifests name it, the same tokenizer. Every entry of every index is checked.

examples:
  tokpack merge shard_*.idx -o whole
  tokpack merge wiki books code -o all --virtual
  tokpack merge s3://tokens/pile -o s3://tokens/one
  tokpack merge --input shards --output-prefix whole     as Megatron-LM's merge_datasets.py
""",
    usage="INPUT... -o PREFIX [flags]",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack merge``."""
    inputs, output = _inputs(arguments), arguments.output
    from tokpack.dataset.merge import merge

    with terminal.Reporter() as report:
        manifest = merge(inputs, output, **given_options(merge, arguments), progress=report)
    if arguments.virtual:
        terminal.say(summary.describe(output, manifest) + " in its pieces")
        terminal.say("  it needs the pieces where they are; move it only together with them")
    else:
        summary.show([(output, manifest)], report.seconds)
        summary.show_conserved(inputs, [output])
    if arguments.json:
        terminal.put_json({"prefix": output, **json.loads(manifest.to_json())})
    else:
        terminal.print_paths(output)
    return 0


def _inputs(arguments: argparse.Namespace) -> list[str]:
    if arguments.inputs and arguments.folder:
        raise UsageError(
            f"--input {arguments.folder} merges all datasets of a folder, and "
            f"{arguments.inputs[0]} is named too: give one of them"
        )
    if not (arguments.inputs or arguments.folder):
        raise UsageError("no INPUT: name two or more datasets by their prefixes")
    from tokpack.dataset import MMapIndexedDataset

    folder = arguments.folder
    prefixes = datasets_in(folder) if folder else matching_datasets(arguments.inputs)
    for prefix in prefixes if arguments.multimodal else ():
        with MMapIndexedDataset(prefix) as dataset:
            if len(dataset) and dataset.modes is None:
                raise UsageError(f"--multimodal: {prefix} is not multimodal; leave the flag out")
    return prefixes
