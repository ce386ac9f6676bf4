"""``tokpack train --plan``: what a run would need, in words or as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.errors import worded

from ..config.estimate import estimate_run, run_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..config.config import Config
    from ..config.estimate import Estimate, Layout
    from ..config.hardware import Cluster

COLUMNS = 100


def show(config: Config, cluster: Cluster, *, as_json: bool) -> int:
    """Print the needs of a run on these GPUs; the exit code is 1 if it does not fit."""
    estimate = estimate_run(config, cluster)
    if as_json:
        terminal.put_json(estimate.to_json(), indent=1)
        return 0 if estimate.fits else 1
    for note in estimate.notes:
        terminal.note(worded(note, config.flags))
    for row in (*run_lines(config, estimate.model, estimate.layout), *_rows(estimate)):
        for line in textwrap.wrap(row, COLUMNS, subsequent_indent="  ", break_on_hyphens=False):
            terminal.put(line)
    return 0 if estimate.fits else 1


def _rows(estimate: Estimate) -> Iterator[str]:
    """The results as lines; the time only if the run fits."""
    cluster, layout, seconds = estimate.cluster, estimate.layout, estimate.time.total
    yield (
        f"{cluster.nodes} x {cluster.gpus_per_node} GPUs: {cluster.peak_tflops:g} TFLOP/s, "
        f"{cluster.gpu_memory:g} GB at {cluster.memory_bandwidth:,g} GB/s, links "
        f"{cluster.link_bandwidth:g}, net {cluster.network_bandwidth:g}"
    )
    parts = {name: value / 1e9 for name, value in asdict(estimate.memory).items()}
    stored = ", ".join(f"{name} {size:,.1f}" for name, size in parts.items() if size >= 0.05)
    needed = f"{estimate.memory.total / 1e9:,.1f} GB"
    yield f"fullest GPU: {needed} of {cluster.gpu_memory:g}: {stored}"
    if estimate.fits:
        spent = ((name, value / seconds) for name, value in asdict(estimate.time).items())
        shares = ", ".join(f"{name} {share:.0%}" for name, share in spent)
        step = f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
        rate = estimate.tokens_per_step / seconds
        yield f"time of a step: {step}, {rate:,.0f} tokens/s, MFU {estimate.mfu:.1%}: {shares}"
    else:
        yield f"does not fit: {_remedies(layout)}"
    yield "estimated from formulas, not measured; docs/train-plan.md says how accurate they are"


def _remedies(layout: Layout) -> str:
    """The settings, not yet used, that make a run smaller."""
    ways = ["a larger --tensor-model-parallel-size or --pipeline-model-parallel-size"]
    if layout.micro > 1:
        ways.append("a smaller --micro-batch-size")
    if not layout.group:
        ways.append("--checkpoint-activations")
    if layout.data > 1 and layout.zero < 3:
        ways.append("a higher --zero-stage")
    return f"try {', '.join(ways)}, or more GPUs"
