"""``tokpack index``: build what a blend needs before a job starts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokpack.cli import rewrite, terminal
from tokpack.cli.blend_flags import EVALUATED, ORDER, SAMPLES, SEQ_LENGTH, SPLIT, given
from tokpack.cli.parser import Group, Page, flag
from tokpack.errors import UsageError
from tokpack.files.foreign import parse_json, read_whole
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend.prebuild import Prepared
    from tokpack.samples.blend.spec import BlendSpec
    from tokpack.samples.megatron.cache_files import Written


def renaming(text: str) -> tuple[str, str]:
    """A converter for OLD=NEW."""
    old, equals, new = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


PAGE = Page(
    "index",
    "Build what a blend needs before a job starts: index caches of tokpack or of Megatron.",
    (
        Group(
            "what is read, where the blend file does not say it",
            (
                *ORDER,
                SEQ_LENGTH,
                SPLIT,
                SAMPLES,
                *EVALUATED,
            ),
        ),
        Group(
            "where to",
            (
                flag("--cache", metavar="DIR", help="the folder that GPTDataset(cache=DIR) reads"),
                flag(
                    "--megatron-cache",
                    metavar="DIR",
                    help="write the program's own files, as its --data-cache-path finds them",
                ),
                flag(
                    "--tokenizer-ids",
                    metavar="JSON",
                    help="the tokenizer in the names of Megatron-core's files: JSON, a file of it, "
                    "or a description.txt of a run",
                ),
                flag(
                    "--rename",
                    action="append",
                    type=renaming,
                    metavar="OLD=NEW",
                    help="prefixes that begin with OLD begin with NEW where the program runs",
                ),
                flag(
                    "--fused",
                    action="store_true",
                    help="the blend as ARM processors build it (GH200, GB200)",
                ),
                flag(
                    "--overwrite",
                    action="store_true",
                    help="let --megatron-cache replace files that have other bytes",
                ),
                rewrite.JSON,
            ),
        ),
    ),
    """\
INPUT is a blend file, or WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone.

examples:
  tokpack index blend.yaml --cache cache
  tokpack index blend.yaml --order megatron --samples 1000000 --cache cache
  tokpack index blend.yaml --order megatron --split 98,1,1 --samples 1000000 \\
      --valid-samples 2000 --test-samples 200 --megatron-cache cache --tokenizer-ids ids.json
""",
)

_SETTINGS = (
    "order",
    "seed",
    "seq_length",
    "packing",
    "split",
    "samples",
    "valid_samples",
    "test_samples",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack index``."""
    if arguments.cache and arguments.megatron_cache:
        raise UsageError("--cache and --megatron-cache: give one of them, twice if need be")
    from tokpack.samples.blend.plan import plan_of
    from tokpack.samples.blend.prebuild import index_files, prebuild
    from tokpack.samples.blend.words import read_words

    spec = read_words(arguments.inputs).changed(**given(arguments, _SETTINGS))
    spec, notes = _without_unasked(spec)
    if not arguments.quiet:
        for line in notes:
            terminal.note(line)
    plan = plan_of(spec)
    found: list[Any]
    with terminal.notes_from_log(quiet=arguments.quiet):
        if arguments.megatron_cache:
            found = list(
                index_files(
                    plan,
                    arguments.megatron_cache,
                    tokenizer_ids=_tokenizer_ids(arguments.tokenizer_ids),
                    rename=dict(arguments.rename or ()),
                    fused=arguments.fused,
                    overwrite=arguments.overwrite,
                    inputs=[*arguments.inputs, arguments.tokenizer_ids or ""],
                )
            )
        else:
            folder = arguments.cache or spec.options.get("cache")
            if folder is None:
                raise UsageError("no folder: add --cache DIR, or --megatron-cache DIR")
            found = list(prebuild(plan, folder))
    if arguments.json:
        terminal.put_json({"files": found})
    elif arguments.megatron_cache:
        _print_written(found)
    else:
        _print_prepared(found)
    return 0


def _without_unasked(spec: BlendSpec) -> tuple[BlendSpec, list[str]]:
    """The spec with 0 samples where a program's order must know how many, and notes of that."""
    from tokpack.samples.settings import OWN_ORDERS

    parts = {"valid_samples": "validation", "test_samples": "test"}
    weighted = all(entry.weight is not None for entry in spec.datasets)
    if spec.order in OWN_ORDERS or not spec.split or not weighted:
        return spec, []
    unasked = [name for name in parts if getattr(spec, name) is None]
    flags = {name: "--" + name.replace("_", "-") for name in unasked}
    notes = [f"no {parts[name]}: add {flags[name]} N for it" for name in unasked]
    return spec.changed(**dict.fromkeys(unasked, 0)), notes


def _print_prepared(found: Sequence[Prepared]) -> None:
    from tokpack.cli.figures import table
    from tokpack.samples.settings import OWN_ORDERS

    rows = [["dataset", "part", "order", "samples", "bytes", "seconds", "file"]]
    for one in found:
        none = "nothing is needed" if one.order in OWN_ORDERS else "not kept: made when opened"
        where = one.path or none
        if one.path and not one.built:
            where += " (was there)"
        size = bytes_text(one.size) if one.path else ""
        seconds = f"{one.seconds:.2f}" if one.path else ""
        rows.append([one.prefix, one.part, one.order, f"{one.entries:,}", size, seconds, where])
    table(rows, left=(0, 1, 2, 6))


def _print_written(found: Sequence[Written]) -> None:
    from tokpack.cli.figures import table

    rows = [["what", "samples", "bytes", "seconds", "files"]]
    for one in found:
        size = bytes_text(one.size)
        rows.append(
            [
                one.name,
                f"{one.entries:,}",
                size,
                f"{one.seconds:.2f}",
                f"{one.paths[0]} and {len(one.paths) - 1} more",
            ]
        )
    table(rows, left=(0, 4))


def _tokenizer_ids(text: str | None) -> dict[str, Any] | None:
    """JSON itself, or a file of it; the tokenizer of a description that Megatron-core wrote."""
    if text is None:
        return None
    where = "--tokenizer-ids"
    if text.lstrip().startswith("{"):
        values = parse_json(text, where, wrong=UsageError)
    else:
        where = text
        problem = "neither JSON nor a file of it: "
        raw = read_whole(text, missing=UsageError, wrong=UsageError, problem=problem)
        values = parse_json(raw, where, wrong=UsageError)
    datasets = values.get("datasets") if isinstance(values, dict) else None
    if isinstance(datasets, list) and datasets:
        values = datasets[0]
    if isinstance(values, dict) and "dataset_path" in values:
        values = values.get("tokenizer")
    if not isinstance(values, dict):
        raise UsageError(f"{where}: expected a JSON object, the tokenizer's unique_identifiers")
    return values
