"""Which settings of a run contradict each other, whatever the data and the machine are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokpack.errors import UsageError, option
from tokpack.stores import is_url, shown

if TYPE_CHECKING:
    from tokpack.configuration.config import Config

# At most one setting of each row can be given.
EXCLUSIVE = (
    ("train_samples", "train_iters"),
    ("save_interval", "save_interval_in_mins"),
    ("lr_decay_samples", "lr_decay_iters"),
    ("lr_wsd_decay_samples", "lr_wsd_decay_iters"),
    ("lr_warmup_samples", "lr_warmup_iters", "lr_warmup_fraction"),
)


def check(config: Config) -> None:
    """UsageError for values that cannot work together."""
    _check_model(config)
    _check_run(config)
    _check_parallel(config)


def _check_model(config: Config) -> None:
    heads, positions = config.num_attention_heads, config.max_position_embeddings
    if config.kv_channels is None:
        _divides("hidden_size", config.hidden_size, "num_attention_heads", heads)
    _divides("num_attention_heads", heads, "num_query_groups", config.num_query_groups or 1)
    if positions is not None and positions < config.seq_length:
        raise UsageError(
            f"{option('max_position_embeddings')} is {positions}, less than {option('seq_length')} "
            f"{config.seq_length}"
        )
    if config.use_rope_scaling and config.position_embedding_type != "rope":
        raise UsageError(
            f"{option('use_rope_scaling')} scales rope, {option('position_embedding_type')} is "
            f"{config.position_embedding_type}: leave out one, or take rope"
        )
    factor = config.rope_scaling_factor
    if not config.use_rope_scaling and factor != type(config).rope_scaling_factor:
        raise UsageError(
            f"{option('rope_scaling_factor')} is {factor:g}, which does nothing without "
            f"{option('use_rope_scaling')}: leave it out, or give both"
        )
    width = config.kv_channels or config.hidden_size // heads
    rotary = int(width * config.rotary_percent)
    if config.position_embedding_type == "rope" and (rotary < 2 or rotary % 2):
        raise UsageError(
            f"{option('rotary_percent')} {config.rotary_percent:g} of a head's {width} is "
            f"{rotary}: rotary positions need an even number of at least 2"
        )


def _check_run(config: Config) -> None:
    batch, ramp = config.global_batch_size, config.rampup_batch_size
    if ramp is not None and len(ramp) != 3:
        raise UsageError(
            f"{option('rampup_batch_size')} is {ramp}, expected start, increment, samples"
        )
    start, increment, samples = ramp or (batch, batch, 0)
    if min(start, increment, samples + 1) < 1 or start > batch or (batch - start) % increment:
        raise UsageError(
            f"{option('rampup_batch_size')} {start} {increment} {samples} does not reach "
            f"{option('global_batch_size')} {batch}: expected a start of 1 to {batch}, steps of at "
            "least 1 that lead from one to the other, and samples of at least 0"
        )
    if (first := min(config.extra_save_iters, default=0)) < 0:
        raise UsageError(f"{option('extra_save_iters')} has {first}, expected steps of at least 0")
    if config.profile is not None:
        if not re.fullmatch(r"[1-9]\d*:\d+", config.profile) or not config.profiled:
            raise UsageError(
                f"{option('profile')} is {config.profile!r}, expected the first and the last step, "
                "such as 10:12 (in YAML in quotes, where it is a number otherwise)"
            )
        if not (config.log_dir or config.save):
            raise UsageError(
                f"{option('profile')} writes to {option('log_dir')}, or to {option('save')}: give "
                "one of them"
            )
    _divides("global_batch_size", batch, "micro_batch_size", config.micro_batch_size)
    if config.save and is_url(config.save):
        raise UsageError(
            f"{option('save')} is {shown(config.save)}: checkpoints are written to disks"
        )
    for names in EXCLUSIVE:
        words = [
            f"{option(name)} {getattr(config, name)}" for name in names if getattr(config, name)
        ]
        if len(words) > 1:
            raise UsageError(f"{' and '.join(words)} are given: give one of them")
    for low, high in (("min_lr", "lr"), ("min_loss_scale", "initial_loss_scale")):
        least, most = getattr(config, low), getattr(config, high)
        if least > most:
            raise UsageError(f"{option(low)} is {least:g}, above {option(high)} {most:g}")


def _check_parallel(config: Config) -> None:
    size = config.tensor_model_parallel_size
    for name in ("num_attention_heads", "num_query_groups", "hidden_size", "ffn_hidden_size"):
        _divides(name, getattr(config, name) or size, "tensor_model_parallel_size", size)
    if config.fp8 and (config.precision not in (None, "bf16") or config.engine == "deepspeed"):
        raise UsageError(
            f"{option('fp8')} goes with precision bf16 and engine torch, these are "
            f"{config.precision or 'bf16'} and {config.engine}"
        )
    if config.engine == "deepspeed" and config.optimizer != "adam":
        raise UsageError(f"optimizer {config.optimizer} needs engine torch, this is deepspeed")
    if config.engine == "deepspeed" and config.min_loss_scale % 1:
        raise UsageError(
            f"{option('min_loss_scale')} {config.min_loss_scale:g}: DeepSpeed needs a whole number"
        )
    if config.sequence_parallel:
        _divides("seq_length", config.seq_length, "tensor_model_parallel_size", size)
    stages, split = config.pipeline_model_parallel_size, config.pipeline_split
    if split is None:
        _divides("num_layers", config.num_layers, "pipeline_model_parallel_size", stages)
    elif len(split) != stages or sum(split) != config.num_layers or min(split) < 0:
        raise UsageError(
            f"{option('pipeline_split')} is {' '.join(map(str, split))} ({len(split)} stages, "
            f"{sum(split)} layers), expected {stages} stages and {config.num_layers} layers"
        )
    elif 0 in split[1:-1]:
        raise UsageError(
            f"{option('pipeline_split')} {' '.join(map(str, split))} leaves a stage in the middle "
            "without layers, and so without anything: only the first and the last may have 0"
        )


def _divides(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise UsageError(
            f"{option(name)} {value} is not a multiple of {option(divisor_name)} {divisor}"
        )
