"""``tokpack train --plan``: its flags, and its table of layouts."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Parser, flag
from tokpack.configuration.hardware import GPUS, NUMBERS, cluster_of
from tokpack.quantities import count_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tokpack.configuration.hardware import Cluster
    from tokpack.configuration.layouts import Estimate, LayoutPlan

SHOWN = 12
COLUMNS = 80


def _number(name: str, help_: str) -> Any:
    return flag(f"--{name}", type=float, metavar="X", help=help_)


PLAN = Group(
    "plan",
    (
        flag(
            "--plan",
            action="store_true",
            help="train nothing: estimate memory and time of all layouts on some GPUs",
        ),
        flag("--gpu", metavar="NAME", help=f"their kind: {', '.join(GPUS)}"),
        flag("--nodes", type=int, default=1, metavar="N", help="machines (1)"),
        flag("--gpus-per-node", type=int, default=8, metavar="N", help="GPUs of each (8)"),
        _number("peak-tflops", "dense bf16 TFLOP/s of a GPU"),
        _number("gpu-memory", "its memory in GB"),
        _number("memory-bandwidth", "GB/s of its memory"),
        _number("link-bandwidth", "GB/s, one way, to the other GPUs of its node"),
        _number("network-bandwidth", "GB/s, one way, from a node to the others"),
        _number("efficiency", "share of the peak that large products of matrices reach"),
        flag("--json", action="store_true", help="print all layouts as JSON"),
    ),
)


def run(argv: Sequence[str]) -> int:
    """Print the layouts of the run that ``argv`` asks for. 1 where none fits."""
    from tokpack.configuration.layouts import plan_of

    arguments, rest = parse(argv)
    given = {name: getattr(arguments, name) for name in (*NUMBERS, "nodes", "gpus_per_node")}
    numbers = {name: value for name, value in given.items() if value is not None}
    plan = plan_of(rest, cluster_of(arguments.gpu, numbers))
    if arguments.json:
        terminal.put_json(_as_json(plan), indent=1)
    else:
        for note in plan.notes:
            terminal.note(note)
        for line in _table(plan):
            terminal.put(line)
    return 0 if plan.estimates[0].fits else 1


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and the words that are of the run. UsageError for a wrong value."""
    parser = Parser(prog="tokpack train", allow_abbrev=False, add_help=False)
    for names, settings in PLAN.flags:
        parser.add_argument(*names, **settings)
    known = {name for one in PLAN.flags for name in one.names}
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        words.append(dashed + equals + value if dashed in known else word)
    return parser.parse_known_args(words)


def _as_json(plan: LayoutPlan) -> dict[str, Any]:
    tokens = plan.estimates[0].layout.batch * plan.model.seq_length
    return {
        "estimated": True,
        "notes": plan.notes,
        "gpus": asdict(plan.cluster),
        "model": {**asdict(plan.model), "parameters": plan.model.parameters},
        "tokens_per_step": tokens,
        "layouts": [one.to_json() for one in plan.estimates],
    }


def _table(plan: LayoutPlan) -> list[str]:
    """Lines of at most 80 columns: what is planned, the best layouts, parts of the first."""
    cluster, fitting = plan.cluster, [one for one in plan.estimates if one.fits]
    best, layout = plan.estimates[0], plan.estimates[0].layout
    length = plan.model.seq_length
    lines = [
        f"{count_text(plan.model.parameters)} parameters, steps of {layout.batch:,} x "
        f"{length:,} tokens",
        _words(cluster),
        "estimated from formulas, not measured; docs/train-plan.md: how far they are off",
        "",
    ]
    shown = _best(fitting)[:SHOWN] or plan.estimates[:3]
    shown += [one for one in plan.estimates if one.asked and one not in shown]
    if not fitting:
        lines += [f"no layout fits into {cluster.gpu_memory:g} GB; the smallest:", ""]
    lines.append("   TP  PP    DP  micro  recompute  ZeRO    memory       step   tokens/s    MFU")
    lines += [_row(one, length) for one in shown]
    if any(one.asked for one in shown):
        lines.append("*  as the flags ask")
    if any(one.layout.deepspeed for one in shown):
        lines.append("ds  trained by DeepSpeed, which has ZeRO of its own; the others by tokpack")
    lines += ["", *_parts(best)] if fitting else []
    return lines


def _best(estimates: list[Estimate]) -> list[Estimate]:
    """The first of those that differ in their micro batch alone."""
    found: dict[tuple[int, ...], Estimate] = {}
    for one in estimates:
        layout = one.layout
        ways = (layout.group, layout.zero, layout.deepspeed)
        found.setdefault((layout.tensor, layout.pipeline, *ways), one)
    return list(found.values())


def _words(cluster: Cluster) -> str:
    return (
        f"{cluster.nodes} x {cluster.gpus_per_node} GPUs: {cluster.peak_tflops:g} TFLOP/s, "
        f"{cluster.gpu_memory:g} GB at {cluster.memory_bandwidth:,g} GB/s, links "
        f"{cluster.link_bandwidth:g}, net {cluster.network_bandwidth:g}"
    )


def _row(one: Estimate, length: int) -> str:
    layout, seconds = one.layout, one.time.total
    again = "-" if not layout.group else "yes" if layout.group == 1 else f"by {layout.group}"
    zero = f"{'ds ' * layout.deepspeed}{layout.zero or '-'}"
    rate = layout.batch * length / seconds
    step = f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
    return (
        f"{'*' if one.asked else ' '} {layout.tensor:>3} {layout.pipeline:>3} {layout.data:>5} "
        f"{layout.micro:>6} {again:>10} {zero:>5} {one.memory.total / 1e9:>6,.1f} GB {step:>10} "
        f"{rate:>10,.0f} {one.mfu:>6.1%}"
    )


def _parts(one: Estimate) -> list[str]:
    """Of the best layout: parts of its memory and of its step, and its flags."""
    memory = {name: value for name, value in asdict(one.memory).items() if value >= 5e7}
    time = asdict(one.time)
    stored = ", ".join(f"{name} {value / 1e9:,.1f}" for name, value in memory.items())
    spent = ", ".join(f"{name} {value / one.time.total:.0%}" for name, value in time.items())
    words = one.flags().replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}--", " --")
    rows = (f"the first: {stored} GB", f"  of a step: {spent}", f"  {words}")
    return [
        line.replace("\N{NO-BREAK SPACE}", " ")
        for row in rows
        for line in textwrap.wrap(row, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    ]
