"""What a run prints before its first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokpack.configuration.cost import Layout, data_bytes, memory_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .run import TrainingRun


def describe(run: TrainingRun) -> Iterator[str]:
    """Every number that follows from the configuration and the data, before the first step."""
    config, model, schedule, t = run.config, run.model, run.schedule, run.topology
    batch = config.global_batch_size
    length = config.seq_length
    samples = schedule.train_samples
    layout = Layout.of(config, t.data_size, t.device.type)
    memory = memory_of(model, layout)
    for note in filter(None, (config.unlike, *config.notes, *run.data.notes)):
        yield f"note: {note}"
    if config.precision == "fp16" and t.device.type == "cpu":
        yield "note: a CPU computes fp16 many times slower than fp32 and bf16: take it for trials"
    yield (
        f"model: {model.parameters:,} parameters, {model.num_layers} layers of "
        f"{model.hidden_size}, vocabulary {model.vocab_size:,} padded to "
        f"{model.padded_vocab_size(t.tensor_size):,}, "
        f"{model.flops_per_token / 1e6:,.4g} MFLOPs a token"
    )
    yield (
        f"processes: {t.world_size} = tensor {t.tensor_size} x pipeline {t.pipeline_size} x data "
        f"{t.data_size}, on {t.device.type}, engine {config.engine}"
    )
    yield (
        f"memory: about {memory.states / 1e9:.3g} GB of weights, gradients and moments and "
        f"{(memory.activations + memory.logits) / 1e9:.3g} GB of activations on the fullest process"
    )
    if t.data_size > 1 and config.engine == "torch" and config.optimizer == "adam":
        sent = data_bytes(model, layout)
        yield f"data ranks: ZeRO {config.zero_stage}, each sends {sent / 1e9:.3g} GB a step"
    yield (
        f"step: {batch} samples of {length} = {batch * length:,} tokens: micro batch "
        f"{config.micro_batch_size} x {t.data_size} ranks x {batch // run.smallest}"
        + (f", from {schedule.batch_size(0)} samples on" if config.rampup_batch_size else "")
    )
    tokens, steps = samples * length, schedule.count_steps()
    yield f"run: {samples:,} samples = {tokens:,} tokens in {steps:,} steps"
    for one in run.data.plan.train.usage:
        amount = f"{one.samples:,.0f} samples, {one.epochs:.3g} epochs"
        yield f"data: {one.portion.prefix}: {amount} of {one.portion.tokens:,} tokens"
    plan = run.data.plan
    parts = (f"{m.name} {sum(p.documents for p in m.portions):,}" for m in plan.mixtures)
    yield f"split: {plan.spec.split or 'none'}, of documents: {', '.join(parts)}"
    for name, held_out in {**run.data.valid, **run.data.test}.items():
        used = min(config.eval_iters * batch, len(held_out)) // run.smallest * run.smallest
        yield f"{name}: {used:,} of {len(held_out):,} samples"
    yield (
        f"unigram entropy: {run.entropy:.4f} nats a token (perplexity "
        f"{math.exp(run.entropy):,.4g}): what a model reaches that knows frequencies only"
    )
