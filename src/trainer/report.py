"""What a run prints before its first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokpack.configuration.cost import Layout, memory_of
from tokpack.configuration.estimate import run_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.trainer.run import TrainingRun


def describe(run: TrainingRun) -> Iterator[str]:
    """Every number that follows from the configuration and the data, before the first step."""
    config, model, schedule, t = run.config, run.model, run.schedule, run.topology
    layout, device = Layout.of(config, t.data_size, t.device.type), t.device.type
    length, samples = config.seq_length, schedule.train_samples
    for note in filter(None, (config.unlike, *config.notes, *run.data.notes)):
        yield f"note: {note}"
    if config.precision == "fp16" and device == "cpu":
        yield "note: a CPU computes fp16 many times slower than fp32 and bf16: take it for trials"
    yield from run_lines(config, model, layout, device)
    memory = memory_of(model, layout)
    yield (
        f"memory: about {memory.states / 1e9:.3g} GB of weights, gradients and moments and "
        f"{(memory.activations + memory.logits) / 1e9:.3g} GB of activations on the fullest process"
    )
    tokens, steps = samples * length, schedule.count_steps()
    yield f"run: {samples:,} samples = {tokens:,} tokens in {steps:,} steps"
    for one in run.data.plan.train.usage:
        amount = f"{one.samples:,.0f} samples, {one.epochs:.3g} epochs"
        yield f"data: {one.portion.prefix}: {amount} of {one.portion.tokens:,} tokens"
    plan = run.data.plan
    parts = (f"{name} {count:,}" for name, count in plan.documents.items())
    yield f"split: {plan.spec.split or 'none'}, of documents: {', '.join(parts)}"
    evaluated = config.eval_iters * config.global_batch_size
    for name, held_out in {**run.data.valid, **run.data.test}.items():
        used = min(evaluated, len(held_out)) // run.smallest * run.smallest
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    yield (
        f"unigram entropy: {run.entropy:.4f} nats a token (perplexity "
        f"{math.exp(run.entropy):,.4g}): what a model reaches that knows frequencies only"
    )
