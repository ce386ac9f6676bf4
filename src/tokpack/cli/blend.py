"""``tokpack blend``: datasets and weights -> the plan of a blend."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Page, flag, number, parse
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.plan import BlendPlan

BAR = 24
EIGHTHS = " ▏▎▍▌▋▊▉"


def positive(text: str) -> float:
    """A converter for numbers above 0."""
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


PAGE = Page(
    "blend",
    "Plan a weighted blend of datasets: what each gives, and how often it is seen.",
    (
        Group(
            "length (one epoch over all datasets)",
            (
                flag("--samples", type=number(1), metavar="N", help="samples in all"),
                flag("--tokens", type=positive, metavar="T", help="tokens in all, such as 3e11"),
                flag("--epochs", type=positive, metavar="E", help="epochs over all datasets"),
                flag(
                    "--seq-length",
                    type=number(1),
                    default=2048,
                    metavar="S",
                    help="tokens of a sample (2048)",
                ),
            ),
        ),
        Group(
            "weights",
            (
                flag(
                    "--by",
                    choices=("tokens", "documents", "epochs"),
                    default="tokens",
                    help="what they are: shares of tokens, shares of documents, or epochs (tokens)",
                ),
                flag(
                    "--temperature",
                    type=positive,
                    default=1.0,
                    metavar="T",
                    help="shares become share ** (1/T), and are normalised again (1)",
                ),
                flag(
                    "--max-epochs",
                    type=positive,
                    default=4.0,
                    metavar="E",
                    help="warn where a dataset is seen more often (4)",
                ),
            ),
        ),
        Group(
            "output",
            (
                flag("-o", "--output", metavar="FILE", help="save the plan, such as blend.yaml"),
                flag("--json", action="store_true", help="print the plan as JSON on stdout"),
            ),
        ),
    ),
    """\
INPUT is WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone, which count by their size, or one
file saved with -o. A name finds NAME.idx, or NAME_text_document.idx.

examples:
  tokpack blend 0.35 wiki 0.65 owt
  tokpack blend wiki owt code --temperature 2 --tokens 3e9 -o blend.yaml
  tokpack blend 2 wiki 1 owt --by epochs
  tokpack blend blend.yaml
""",
)


@dataclass(frozen=True)
class Request:
    """What is asked for: names with weights, or without, or a saved plan."""

    names: tuple[str, ...]
    weights: tuple[float, ...] | None
    saved: str | None = None


def run(argv: Sequence[str]) -> int:
    """Run ``tokpack blend ARGV``."""
    arguments = parse(PAGE, argv)
    if arguments is None:
        return 0
    request = resolve(arguments.inputs)
    from tokpack.samples.plan import as_json, load_blend, plan_blend

    if request.saved is not None:
        plan = load_blend(request.saved)
    else:
        plan = plan_blend(
            request.names,
            request.weights,
            by=arguments.by,
            temperature=arguments.temperature,
            seq_length=arguments.seq_length,
            samples=arguments.samples,
            tokens=None if arguments.tokens is None else int(arguments.tokens),
            epochs=arguments.epochs,
        )
    if arguments.output:
        plan.save(arguments.output)
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(plan, arguments.max_epochs), indent=2) + "\n")
    else:
        sys.stdout.write(table(plan))
    if not arguments.quiet:
        for warning in plan.warnings(arguments.max_epochs):
            terminal.say(f"tokpack: warning: {warning}")
        if arguments.output:
            terminal.say(f"{arguments.output}: saved")
    return 0


def resolve(words: Sequence[str]) -> Request:
    """Tell weights from names: with an even number of words of which every first is a number."""
    if not words:
        raise UsageError("no datasets: give WEIGHT PREFIX [WEIGHT PREFIX ...], or prefixes alone")
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")) and os.path.exists(words[0]):
        return Request((), None, words[0])
    weights = [_as_number(word) for word in words[::2]]
    if len(words) % 2 == 0 and None not in weights:
        return Request(tuple(words[1::2]), tuple(w for w in weights if w is not None))
    if any(weight is not None for weight in weights):
        raise UsageError(
            f"weights and datasets do not alternate in: {' '.join(words)}; give a weight before "
            "each dataset, or none at all"
        )
    return Request(tuple(words), None)


def _as_number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def table(plan: BlendPlan) -> str:
    """The plan as a table, a row a dataset."""
    head = ("dataset", "documents", "tokens", "weight", "share", "samples", "epochs", "")
    largest = max(plan.shares)
    rows = [
        (
            member.prefix,
            f"{member.documents:,}",
            terminal.count_text(member.tokens),
            f"{weight:.6g}",
            f"{share:.2%}",
            f"{samples:,.0f}",
            f"{epochs:.2f}",
            _bar(share / largest),
        )
        for member, weight, share, samples, epochs in zip(
            plan.members, plan.weights, plan.shares, plan.member_samples, plan.epochs, strict=True
        )
    ]
    total = (
        "together",
        f"{sum(member.documents for member in plan.members):,}",
        terminal.count_text(sum(member.tokens for member in plan.members)),
        "",
        "100.00%",
        f"{plan.samples:,}",
        "",
        "",
    )
    widths = [max(len(row[i]) for row in (head, *rows, total)) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, len(head) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows, total)
    ]
    tokens = terminal.count_text(plan.samples * plan.seq_length)
    lines.append(f"{plan.samples:,} samples of {plan.seq_length:,} tokens: {tokens} tokens")
    return "\n".join(lines) + "\n"


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
