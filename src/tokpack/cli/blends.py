"""The index arrays that ``tokpack blend`` builds: their flags, and a table of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.parser import Group, flags
from tokpack.errors import UsageError
from tokpack.quantities import bytes_text
from tokpack.storage.disk import parse_json, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.blend import BlendPlan, BlendSpec, CachedIndex
    from tokpack.samples.megatron import IndexFiles


# ``tokpack blend --cache`` and ``--megatron-cache``: what a blend needs, built before a job.


def renaming(text: str) -> tuple[str, str]:
    """A converter for OLD=NEW."""
    old, equals, new = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


CACHES = Group(
    "index arrays, built before a job starts",
    flags(
        """
        --cache DIR           build them in DIR, for GPTDataset(cache=DIR)
        --megatron-cache DIR  write the program's own files, as its --data-cache-path finds them
        --tokenizer-ids JSON  the tokenizer in the names of Megatron-core's files: JSON, a file of
                              it, or a description.txt of a run
        --rename OLD=NEW      a prefix that begins with OLD begins with NEW where the program runs
        --fused               the blend as ARM processors build it (GH200, GB200)
        """,
        rename={"action": "append", "type": renaming},
    ),
)


def is_asked(arguments: argparse.Namespace) -> bool:
    """Whether index arrays are to be built. UsageError if both kinds are requested."""
    if arguments.cache and arguments.megatron_cache:
        raise UsageError(
            "--cache and --megatron-cache are both given: give one of them, and run again for the "
            "other"
        )
    for name in ("tokenizer_ids", "rename", "fused"):
        if getattr(arguments, name) and not arguments.megatron_cache:
            raise UsageError(f"--{name.replace('_', '-')} belongs to --megatron-cache")
    return bool(arguments.cache or arguments.megatron_cache)


def without_unasked(spec: BlendSpec) -> tuple[BlendSpec, list[str]]:
    """The spec with 0 samples where a program's order needs their number, and notes about that."""
    from tokpack.samples.orders import rules_of

    parts = {"valid_samples": "validation", "test_samples": "test"}
    weighted = all(entry.weight is not None for entry in spec.datasets)
    if rules_of(spec.order).endless or not spec.split or not weighted:
        return spec, []
    unasked = [name for name in parts if getattr(spec, name) is None]
    flags = {name: "--" + name.replace("_", "-") for name in unasked}
    notes = [f"no {parts[name]}: add {flags[name]} N for it" for name in unasked]
    none: dict[str, Any] = dict.fromkeys(unasked, 0)
    return spec.changed(**none), notes


def build(plan: BlendPlan, arguments: argparse.Namespace) -> list[Any]:
    """Build what is requested. Returns CachedIndex or IndexFiles objects. Raises as those functions
    do.
    """
    from tokpack.samples.blend import index_files, prebuild

    if arguments.cache:
        return list(prebuild(plan, arguments.cache))
    return list(
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


def print_files(files: Sequence[Any], arguments: argparse.Namespace) -> None:
    """Print the table of what was built."""
    from tokpack.cli.figures import table

    terminal.put()
    if arguments.cache:
        head = ["dataset", "part", "order", "samples", "bytes", "seconds", "file"]
        table([head, *map(_cached_row, files)], left=(0, 1, 2, 6))
    else:
        head = ["what", "samples", "bytes", "seconds", "files"]
        table([head, *map(_index_row, files)], left=(0, 4))


def _cached_row(one: CachedIndex) -> list[str]:
    from tokpack.samples.orders import rules_of

    size = seconds = ""
    where = "nothing is needed" if rules_of(one.order).endless else "not saved: made when opened"
    if one.path:
        size, seconds = bytes_text(one.size), f"{one.seconds:.2f}"
        where = one.path if one.built else f"{one.path} (was there)"
    return [one.prefix, one.part, one.order, f"{one.entries:,}", size, seconds, where]


def _index_row(one: IndexFiles) -> list[str]:
    paths = f"{one.paths[0]} and {len(one.paths) - 1} more"
    return [one.name, f"{one.entries:,}", bytes_text(one.size), f"{one.seconds:.2f}", paths]


def _tokenizer_ids(text: str | None) -> dict[str, Any] | None:
    """The JSON given as text or in a file; the tokenizer in a description that Megatron-core
    wrote.
    """
    if text is None:
        return None
    where = "--tokenizer-ids"
    raw: str | bytes = text
    if not text.lstrip().startswith("{"):
        problem = "neither JSON nor a JSON file: "
        where = text
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
