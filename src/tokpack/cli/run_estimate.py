"""``tokpack train --plan``: its flags, and what it prints."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.parser import Group, Parser, flags
from tokpack.configuration.hardware import GPUS, NUMBERS, cluster_of
from tokpack.quantities import count_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.configuration.cost import Layout
    from tokpack.configuration.estimate import Estimate

COLUMNS = 80


PLAN = Group(
    "plan",
    flags(
        f"""
        --plan                 train nothing: estimate memory and time of this run on some GPUs
        --gpu NAME             their kind: {", ".join(GPUS)}
        --nodes N              machines (1)
        --gpus-per-node N      GPUs of each (8)
        --peak-tflops X        dense bf16 TFLOP/s of a GPU
        --gpu-memory X         its memory in GB
        --memory-bandwidth X   GB/s of its memory
        --link-bandwidth X     GB/s, one way, to the other GPUs of its node
        --network-bandwidth X  GB/s, one way, from a node to the others
        --efficiency X         share of the peak that large products of matrices reach
        --json                 print the estimate as JSON
        """,
        nodes={"type": int, "default": 1},
        gpus_per_node={"type": int, "default": 8},
    ),
)


def run(argv: Sequence[str]) -> int:
    """Print what the run that ``argv`` asks for needs. 1 where it does not fit."""
    from tokpack.configuration.estimate import estimate_run

    arguments, rest = parse(argv)
    values = {name: getattr(arguments, name) for name in (*NUMBERS, "nodes", "gpus_per_node")}
    numbers = {name: value for name, value in values.items() if value is not None}
    estimate = estimate_run(rest, cluster_of(arguments.gpu, numbers))
    if arguments.json:
        terminal.put_json(estimate.to_json(), indent=1)
    else:
        for note in estimate.notes:
            terminal.note(note)
        for row in _rows(estimate):
            for line in textwrap.wrap(row, COLUMNS, subsequent_indent="  ", break_on_hyphens=False):
                terminal.put(line)
    return 0 if estimate.fits else 1


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and the words that are of the run. UsageError for a wrong value."""
    parser = Parser(prog="tokpack train", allow_abbrev=False, add_help=False)
    for names, settings in PLAN.flags:
        parser.add_argument(*names, **settings)
    flag_words = {name for one in PLAN.flags for name in one.names}
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        words.append(dashed + equals + value if dashed in flag_words else word)
    return parser.parse_known_args(words)


def _rows(estimate: Estimate) -> Iterator[str]:
    """What is estimated, and what comes out; the time only of a run that fits."""
    cluster, layout, seconds = estimate.cluster, estimate.layout, estimate.time.total
    yield (
        f"{count_text(estimate.model.parameters)} parameters, steps of {layout.batch:,} x "
        f"{estimate.model.seq_length:,} tokens"
    )
    yield (
        f"{cluster.nodes} x {cluster.gpus_per_node} GPUs: {cluster.peak_tflops:g} TFLOP/s, "
        f"{cluster.gpu_memory:g} GB at {cluster.memory_bandwidth:,g} GB/s, links "
        f"{cluster.link_bandwidth:g}, net {cluster.network_bandwidth:g}"
    )
    yield f"processes: {_layout_text(layout)}"
    parts = {name: value / 1e9 for name, value in asdict(estimate.memory).items()}
    stored = ", ".join(f"{name} {size:,.1f}" for name, size in parts.items() if size >= 0.05)
    needed = f"{estimate.memory.total / 1e9:,.1f} GB"
    yield f"memory: {needed} of {cluster.gpu_memory:g} on the fullest GPU: {stored}"
    if estimate.fits:
        spent = ((name, value / seconds) for name, value in asdict(estimate.time).items())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in spent)
        step = f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
        rate = estimate.tokens_per_step / seconds
        yield f"step: {step}, {rate:,.0f} tokens/s, MFU {estimate.mfu:.1%}: {shares}"
    else:
        yield f"does not fit: {_remedies(layout)}"
    yield "estimated from formulas, not measured; docs/train-plan.md: how far they are off"


def _layout_text(layout: Layout) -> str:
    zero = f", ZeRO {layout.zero}" if layout.zero else ""
    group = f" by {layout.group}" if layout.group > 1 else ""
    return (
        f"tensor {layout.tensor} x pipeline {layout.pipeline} x data {layout.data}, engine "
        f"{'deepspeed' if layout.deepspeed else 'torch'}{zero}, micro batch {layout.micro}"
        + (f", activations recomputed{group}" if layout.group else "")
    )


def _remedies(layout: Layout) -> str:
    """What makes a run smaller that this one does not do yet."""
    ways = ["a larger --tensor-model-parallel-size or --pipeline-model-parallel-size"]
    if layout.micro > 1:
        ways.append("a smaller --micro-batch-size")
    if not layout.group:
        ways.append("--checkpoint-activations")
    if layout.data > 1 and layout.zero < 3:
        ways.append("a higher --zero-stage")
    return f"try {', '.join(ways)}, or more GPUs"
