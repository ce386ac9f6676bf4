"""``tokpack blend``: datasets and weights -> the plan of a blend."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tokpack.cli import blends, terminal
from tokpack.cli.inputs import of_dataset, tokenizer_paths
from tokpack.cli.parser import (
    Group,
    Page,
    flag_names,
    flags,
    flags_from,
    number,
    positive,
)
from tokpack.errors import UsageError
from tokpack.samples.blend import OPTIONS

if TYPE_CHECKING:
    from tokpack.look import CrossDuplicates
    from tokpack.samples.blend import BlendPlan, Entries

MAX_EPOCHS = 4.0
_MOST_WARNINGS = 20


setting = flags_from(OPTIONS)


def named(text: str) -> tuple[str, str]:
    """A converter for NAME=PREFIX."""
    name, equals, prefix = text.partition("=")
    if not (name and equals and prefix):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PREFIX")
    return name, prefix


PAGE = Page(
    "blend",
    "Plan a weighted blend of datasets: how much each contributes, and how often it is seen.",
    (
        Group(
            "length (one epoch over all datasets)",
            (
                setting("samples", "--num-samples"),
                setting("tokens"),
                setting("epochs"),
                setting("seq_length"),
            ),
        ),
        Group(
            "weights",
            (
                setting("by"),
                setting("temperature"),
                *flags(
                    """
                    --max-epochs E  warn if a dataset is seen more often than this (4)
                    --cap-epochs E  lower the weights of datasets that would be seen more often
                                    than this; the others share the rest
                    """,
                    max_epochs={"type": positive, "default": MAX_EPOCHS},
                    cap_epochs={"type": positive},
                ),
            ),
        ),
        Group(
            "validation and test",
            (
                setting("split"),
                setting("split_by"),
                setting("allow_empty"),
                *flags(
                    """
                    --valid NAME=PREFIX  a dataset of the validation set NAME; repeat it for more
                    --valid-data-path INPUT...  datasets of the validation set, with or without
                                         weights
                    --test-data-path INPUT...  datasets of the test set, with or without weights
                    """,
                    valid={"action": "append", "type": named},
                ),
                setting("valid_samples"),
                setting("test_samples"),
            ),
        ),
        Group(
            "samples",
            (
                setting("order"),
                setting("seed"),
                setting("packing"),
                setting("pad_to_multiple_of"),
                setting("loss"),
            ),
        ),
        Group(
            "output",
            flags(
                """
                -o, --output FILE  save the plan, such as blend.yaml
                --overwrite        replace what is there
                --show N           show the text of N samples
                --max-tokens N     tokens that --show shows of a sample, 0: all (256; --json all)
                --duplicates       read all tokens, and count documents that are in several
                                   datasets
                --json             print the plan as JSON on stdout
                """,
                max_tokens={"type": number(0)},
            ),
        ),
        blends.CACHES,
        *of_dataset("tokenizer, for --show"),
    ),
    """\
INPUT is WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone, which count by their size, or one
blend file, saved with -o or written by hand; flags override what it says. A name finds
NAME.idx, or NAME_text_document.idx; data/*.idx finds the datasets in a folder.

examples:
  tokpack blend 0.35 wiki 0.65 owt
  tokpack blend wiki owt code --temperature 2 --tokens 3e9 -o blend.yaml
  tokpack blend 2 wiki 1 owt --by epochs --split 969,30,1
  tokpack blend wiki --valid news=news_valid --valid code=code_valid
  tokpack blend blend.yaml --samples 1000000 --show 3
  tokpack blend blend.yaml --order megatron --samples 1000000 --cache cache
  tokpack blend blend.yaml --order megatron --split 98,1,1 --samples 1000000 \\
      --valid-samples 2000 --test-samples 200 --megatron-cache cache --tokenizer-ids ids.json
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack blend``."""
    from tokpack.samples.blend import check_saved, is_blend_file, plan_of, read_words, save_blend

    if arguments.output and not is_blend_file(arguments.output):
        raise UsageError(f"{arguments.output}: a plan is saved as YAML: name it such as blend.yaml")
    if arguments.output:
        check_saved(arguments.output, arguments.inputs, overwrite=arguments.overwrite)
    spec = read_words(arguments.inputs).changed(**_changes(arguments))
    caches = blends.is_asked(arguments)
    notes: list[str] = []
    if caches:
        spec, notes = blends.without_unasked(spec)
    plan = plan_of(spec)
    if arguments.cap_epochs is not None:
        plan = _capped(plan, arguments)
    for line in () if arguments.quiet else notes:
        terminal.note(line)
    files = blends.build(plan, arguments) if caches else []
    if arguments.output:
        inputs = [*arguments.inputs, *tokenizer_paths(arguments)]
        save_blend(plan, arguments.output, overwrite=arguments.overwrite, inputs=inputs)
    shared = _shared(plan, arguments) if arguments.duplicates else {}
    if arguments.json:
        from tokpack.samples.blend import as_json

        values = as_json(plan, arguments.max_epochs, flag_names(*PAGE.groups))
        if arguments.show:
            from tokpack.cli.shown import first_as_json

            values["shown"] = first_as_json(plan, arguments)
        if arguments.duplicates:
            values["shared"] = shared
        if caches:
            values["files"] = files
        terminal.put_json(values, indent=2)
        _warn(plan, arguments)
    else:
        from tokpack.cli.figures import print_plan, print_shared

        print_plan(plan)
        if arguments.duplicates:
            print_shared(plan, shared)
        if caches:
            blends.print_files(files, arguments)
        _warn(plan, arguments)
        if arguments.show:
            from tokpack.cli.shown import print_first

            print_first(plan, arguments)
    if arguments.output and not arguments.quiet:
        terminal.say(f"{arguments.output}: saved")
    return 0


def _capped(plan: BlendPlan, arguments: argparse.Namespace) -> BlendPlan:
    """The plan with --cap-epochs; says whose weights were lowered."""
    from tokpack.samples.blend import cap_epochs

    capped = cap_epochs(plan, arguments.cap_epochs)
    for before, after in zip(plan.train.usage, capped.train.usage, strict=True):
        if after.share < before.share and not arguments.quiet:
            terminal.note(
                f"{before.portion.prefix}: {after.epochs:.3g} epochs instead of "
                f"{before.epochs:.3g}, a share of {after.share:.3g} instead of {before.share:.3g}"
            )
    return capped


def _shared(plan: BlendPlan, arguments: argparse.Namespace) -> dict[str, CrossDuplicates]:
    """What each dataset, also those of validation and test, shares with the others."""
    from tokpack.look import DuplicateFinder, hash_documents

    across = DuplicateFinder()
    for dataset in plan.datasets:
        with terminal.Reporter() as report:
            hash_documents(dataset, across, progress=report)
    names = [dataset.path_prefix for dataset in plan.datasets]
    return dict(zip(names, across.result(), strict=True))


def _warn(plan: BlendPlan, arguments: argparse.Namespace) -> None:
    """Print the warnings, below the table."""
    if arguments.quiet:
        return
    sys.stdout.flush()
    warnings = plan.warnings(arguments.max_epochs, flag_names(*PAGE.groups))
    for warning in warnings[:_MOST_WARNINGS]:
        terminal.say(f"tokpack: warning: {warning}")
    if (more := len(warnings) - _MOST_WARNINGS) > 0:
        terminal.say(f"tokpack: warning: and {more:,} more, which --json lists")


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    from tokpack.samples.blend import entries

    # --valid is read below, and --cache says what to build, not what the blend is.
    names = {*OPTIONS} & {*vars(arguments)} - {"valid", "cache"}
    flags = {name: getattr(arguments, name) for name in names}
    changes = {name: value for name, value in flags.items() if value is not None}
    valid: dict[str, Entries] = {}
    for name, prefix in arguments.valid or ():
        valid[name] = (*valid.get(name, ()), *entries([prefix]))
    if arguments.valid_data_path:
        valid["valid"] = (*valid.get("valid", ()), *entries(arguments.valid_data_path))
    if valid:
        changes["valid"] = valid
    if arguments.test_data_path:
        changes["test"] = entries(arguments.test_data_path)
    return changes
