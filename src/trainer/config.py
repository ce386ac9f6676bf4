"""What a run is: one frozen dataclass of plain values, checked when it is made. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from tokpack.errors import UsageError


@dataclass(frozen=True)
class Config:
    """All settings of a run, under Megatron's names.

    Lengths are tokens, batch sizes and counts of data are samples, learning rates are those of
    AdamW. What is None is derived where it is used. Raises UsageError for values that cannot work
    together, whatever the data and the machine are.
    """

    # model
    num_layers: int = 12
    hidden_size: int = 768
    num_attention_heads: int = 12
    ffn_hidden_size: int | None = None  # 4 * hidden_size
    num_query_groups: int | None = None  # num_attention_heads
    seq_length: int = 1024
    max_position_embeddings: int | None = None  # seq_length
    vocab_size: int | None = None  # that of the dataset's tokenizer
    make_vocab_size_divisible_by: int = 128
    position_embedding_type: str = "learned_absolute"
    rotary_percent: float = 1.0
    rotary_base: float = 10000.0
    untie_embeddings_and_output_weights: bool = False
    parallel_residual: bool = False
    embed_layernorm: bool = False
    normalization: str = "LayerNorm"
    activation: str = "gelu"
    add_bias_linear: bool = True
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    layernorm_epsilon: float = 1e-5
    init_method_std: float = 0.02
    # batch
    micro_batch_size: int = 4
    global_batch_size: int = 4
    rampup_batch_size: tuple[int, int, int] | None = None  # start, increment, samples
    train_samples: int | None = None  # without it and train_iters: one epoch
    train_iters: int | None = None
    # optimizer
    lr: float = 3e-4
    min_lr: float = 0.0
    lr_decay_style: str = "linear"
    lr_decay_samples: int | None = None  # to the end of the run
    lr_decay_iters: int | None = None
    lr_warmup_samples: int = 0
    lr_warmup_iters: int = 0
    lr_warmup_fraction: float | None = None  # of the decay
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_grad: float = 1.0  # 0: no clipping
    # precision
    precision: str | None = None  # bf16 on a GPU, else fp32
    loss_scale: float = 0.0  # 0: dynamic
    initial_loss_scale: float = 65536.0
    loss_scale_window: int = 1000
    hysteresis: int = 2
    min_loss_scale: float = 1.0
    # parallel
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    pipeline_split: tuple[int, ...] | None = None  # layers of each stage; equal parts
    engine: str = "torch"
    zero_stage: int = 0
    deepspeed_json: dict[str, Any] = field(default_factory=dict)  # what no other field says
    distributed_timeout_minutes: int = 10
    # activations
    checkpoint_activations: bool = False
    checkpoint_num_layers: int = 1
    partition_activations: bool = False
    checkpoint_in_cpu: bool = False
    # data
    data_path: tuple[str, ...] = ()  # prefix | weight prefix ... | prefix ... | blend.yaml
    train_data_path: tuple[str, ...] = ()
    valid_data_path: tuple[str, ...] = ()
    test_data_path: tuple[str, ...] = ()
    split: str = "969,30,1"
    order: str = "stateless"
    seed: int = 1234
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    data_cache_path: str | None = None  # index arrays: built once, then shared
    vocab_file: str | None = None
    # run
    save: str | None = None
    load: str | None = None
    save_interval: int | None = None
    keep_checkpoints: int = 5  # 0: all
    finetune: bool = False
    eval_interval: int = 1000
    eval_iters: int = 100
    log_interval: int = 10
    exit_interval: int | None = None
    exit_duration_in_mins: float | None = None
    kill_switch_path: str | None = None
    tensorboard_dir: str | None = None
    tensorboard_queue_size: int = 1000
    log_timers_to_tensorboard: bool = False
    log_batch_size_to_tensorboard: bool = False
    log_validation_ppl_to_tensorboard: bool = False
    compile: bool | None = None  # on a GPU
    device: str = "auto"
    log_dir: str | None = None  # save
    # What was accepted and needs nothing here, said once by the main process; never saved.
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in FIELDS:
            _check_value(name, getattr(self, name))
        _check_model(self)
        _check_run(self)
        _check_parallel(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields but ``notes``, as JSON and YAML know them."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_yaml(self) -> str:
        """The configuration as a file that ``tokpack train`` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


FIELDS = {item.name: item for item in fields(Config) if item.name != "notes"}

CHOICES: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("learned_absolute", "rope"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "activation": ("gelu", "gelu_erf", "swiglu"),
    "lr_decay_style": ("constant", "linear", "cosine", "inverse-square-root"),
    "precision": ("fp32", "bf16", "fp16"),
    "engine": ("torch", "deepspeed"),
    "device": ("auto", "cpu", "cuda"),
    "zero_stage": (0, 1, 2, 3),
}
# Whole numbers are at least 1, others above 0, but for these.
_MAY_BE_ZERO = (
    "lr min_lr lr_warmup_samples lr_warmup_iters lr_warmup_fraction weight_decay clip_grad "
    "loss_scale eval_iters keep_checkpoints seed zero_stage"
)
_AT_MOST_ONE = ("rotary_percent", "lr_warmup_fraction")
_FROM_ZERO_BELOW_ONE = ("hidden_dropout", "attention_dropout", "adam_beta1", "adam_beta2")
# Of each of these at most one can be given.
EXCLUSIVE = (
    ("train_samples", "train_iters"),
    ("lr_decay_samples", "lr_decay_iters"),
    ("lr_warmup_samples", "lr_warmup_iters", "lr_warmup_fraction"),
)


def _check_value(name: str, value: Any) -> None:
    """UsageError for a word that is no choice, and for a number out of its range."""
    if name in CHOICES and value is not None and value not in CHOICES[name]:
        expected = f"one of {', '.join(map(str, CHOICES[name]))}"
        raise UsageError(f"{name} is {value!r}, expected {expected}")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if name in _FROM_ZERO_BELOW_ONE:
        good, expected = 0 <= value < 1, "at least 0 and below 1"
    elif name in _MAY_BE_ZERO.split():
        good, expected = value >= 0, "at least 0"
    elif "int" in str(FIELDS[name].type):
        good, expected = value >= 1, "at least 1"
    else:
        good, expected = value > 0, "above 0"
    if name in _AT_MOST_ONE:
        good, expected = good and value <= 1, f"{expected} and at most 1"
    if not (good and math.isfinite(value)):
        raise UsageError(f"{name} is {value}, expected {expected}")


def _check_model(config: Config) -> None:
    heads, positions = config.num_attention_heads, config.max_position_embeddings
    _divides("hidden_size", config.hidden_size, "num_attention_heads", heads)
    _divides("num_attention_heads", heads, "num_query_groups", config.num_query_groups or 1)
    if positions is not None and positions < config.seq_length:
        raise UsageError(
            f"max_position_embeddings is {positions}, less than seq_length {config.seq_length}"
        )
    width = config.hidden_size // heads
    rotary = int(width * config.rotary_percent)
    if config.position_embedding_type == "rope" and (rotary < 2 or rotary % 2):
        raise UsageError(
            f"rotary_percent {config.rotary_percent:g} of a head's {width} is {rotary}: rotary "
            "positions need an even number of at least 2"
        )


def _check_run(config: Config) -> None:
    batch, ramp = config.global_batch_size, config.rampup_batch_size
    if ramp is not None and len(ramp) != 3:
        raise UsageError(f"rampup_batch_size is {ramp}, expected start, increment, samples")
    start, increment, samples = ramp or (batch, batch, 0)
    if min(start, increment, samples + 1) < 1 or start > batch or (batch - start) % increment:
        raise UsageError(
            f"rampup_batch_size {start} {increment} {samples} does not reach global_batch_size "
            f"{batch}: expected a start of 1 to {batch}, steps of at least 1 that lead from one to "
            "the other, and samples of at least 0"
        )
    _divides("global_batch_size", batch, "micro_batch_size", config.micro_batch_size)
    for names in EXCLUSIVE:
        given = [f"{name} {getattr(config, name)}" for name in names if getattr(config, name)]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are given: give one of them")
    if config.min_lr > config.lr:
        raise UsageError(f"min_lr is {config.min_lr:g}, above lr {config.lr:g}")


def _check_parallel(config: Config) -> None:
    for name in ("num_attention_heads", "num_query_groups", "hidden_size", "ffn_hidden_size"):
        size = config.tensor_model_parallel_size
        _divides(name, getattr(config, name) or size, "tensor_model_parallel_size", size)
    if config.zero_stage and config.engine == "torch":
        raise UsageError(f"zero_stage {config.zero_stage} needs engine deepspeed, this is torch")
    stages, split = config.pipeline_model_parallel_size, config.pipeline_split
    if split is None:
        _divides("num_layers", config.num_layers, "pipeline_model_parallel_size", stages)
    elif len(split) != stages or sum(split) != config.num_layers or min(split) < 0:
        raise UsageError(
            f"pipeline_split is {' '.join(map(str, split))} ({len(split)} stages, {sum(split)} "
            f"layers), expected {stages} stages and {config.num_layers} layers"
        )


def _divides(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise UsageError(f"{name} {value} is not a multiple of {divisor_name} {divisor}")
