"""What a run is: one frozen dataclass of plain values, checked when it is made. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from tokpack.errors import UsageError


def setting(
    default: Any,
    names: str = "",
    *,
    choices: str = "",
    zero: bool = False,
    most: float = math.inf,
    below: float = math.inf,
) -> Any:
    """A field of Config that has other names elsewhere, or may not have every value.

    ``names`` are those of Megatron-LM, Megatron-DeepSpeed and GPT-NeoX; a dotted one is a path in
    DeepSpeed's JSON. Numbers are at ``most`` this, or ``below`` that.
    """
    rules = {"names": names, "choices": choices, "zero": zero, "most": most, "below": below}
    return field(default=default, metadata=rules)


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
    num_query_groups: int | None = setting(None, "num_key_value_heads num_kv_heads")  # all
    seq_length: int = 1024
    max_position_embeddings: int | None = None  # seq_length
    vocab_size: int | None = setting(None, "pad_vocab_size_to")  # that of the dataset's tokenizer
    make_vocab_size_divisible_by: int = 128
    position_embedding_type: str = setting(
        "learned_absolute", "pos_emb", choices="learned_absolute rope"
    )
    rotary_percent: float = setting(1.0, "rotary_pct", most=1)
    rotary_base: float = setting(10000.0, "rotary_emb_base rotary_position_embeddings_theta")
    untie_embeddings_and_output_weights: bool = setting(False, "no_weight_tying")
    parallel_residual: bool = setting(False, "gpt_j_residual")
    embed_layernorm: bool = False
    normalization: str = setting("LayerNorm", "norm", choices="LayerNorm RMSNorm")
    activation: str = setting("gelu", "glu_activation", choices="gelu gelu_erf swiglu")
    add_bias_linear: bool = True
    hidden_dropout: float = setting(0.0, below=1)
    attention_dropout: float = setting(0.0, below=1)
    layernorm_epsilon: float = setting(1e-5, "norm_epsilon")
    init_method_std: float = 0.02
    output_init_method_std: float | None = None  # init_method_std / sqrt(2 * num_layers)
    # batch
    micro_batch_size: int = setting(4, "batch_size train_micro_batch_size_per_gpu")
    global_batch_size: int = setting(4, "train_batch_size")
    rampup_batch_size: tuple[int, int, int] | None = None  # start, increment, samples
    train_samples: int | None = setting(None, "samples")  # without it and train_iters: one epoch
    train_iters: int | None = None
    # optimizer
    lr: float = setting(3e-4, "optimizer.params.lr", zero=True)
    min_lr: float = 0.0
    lr_decay_style: str = setting("linear", choices="constant linear cosine inverse-square-root")
    lr_decay_samples: int | None = None  # to the end of the run
    lr_decay_iters: int | None = None
    lr_warmup_samples: int = 0
    lr_warmup_iters: int = 0
    lr_warmup_fraction: float | None = setting(None, "warmup", zero=True, most=1)  # of the decay
    weight_decay: float = setting(0.01, "optimizer.params.weight_decay", zero=True)
    adam_beta1: float = setting(0.9, zero=True, below=1)
    adam_beta2: float = setting(0.999, zero=True, below=1)
    adam_eps: float = setting(1e-8, "optimizer.params.eps")
    clip_grad: float = setting(1.0, "gradient_clipping", zero=True)  # 0: no clipping
    # precision
    precision: str | None = setting(None, choices="fp32 bf16 fp16")  # bf16 on a GPU, else fp32
    loss_scale: float = setting(0.0, "fp16.loss_scale")  # 0: dynamic
    initial_loss_scale: float = 65536.0
    loss_scale_window: int = setting(1000, "fp16.loss_scale_window")
    hysteresis: int = setting(2, "fp16.hysteresis loss_scale_hysteresis")
    min_loss_scale: float = setting(1.0, "fp16.min_loss_scale min_scale")
    # parallel
    tensor_model_parallel_size: int = setting(1, "model_parallel_size")
    pipeline_model_parallel_size: int = setting(1, "pipe_parallel_size")
    pipeline_split: tuple[int, ...] | None = None  # layers of each stage; equal parts
    engine: str = setting("torch", choices="torch deepspeed")
    zero_stage: int = setting(0, "zero_optimization.stage", choices="0 1 2 3")
    deepspeed_json: dict[str, Any] = field(default_factory=dict)  # what no other field says
    distributed_timeout_minutes: int = 10
    # activations
    checkpoint_activations: bool = setting(False, "recompute_activations")
    checkpoint_num_layers: int = setting(
        1, "recompute_num_layers activations_checkpoint_num_layers"
    )
    partition_activations: bool = setting(
        False,
        "activation_checkpointing.partition_activations distribute_saved_activations "
        "distribute_checkpointed_activations",
    )
    checkpoint_in_cpu: bool = setting(False, "activation_checkpointing.cpu_checkpointing")
    # data
    data_path: tuple[str, ...] = ()  # prefix | weight prefix ... | prefix ... | blend.yaml
    train_data_path: tuple[str, ...] = ()
    valid_data_path: tuple[str, ...] = ()
    test_data_path: tuple[str, ...] = ()
    split: str | None = "969,30,1"  # that of a blend file
    allow_empty: bool = False  # leave a dataset out of a part where the split has no sample of it
    order: str = "stateless"
    seed: int = setting(1234, zero=True)
    reset_position_ids: bool = False
    reset_attention_mask: bool = False  # at EOD
    document_boundaries: bool = False  # those of the index
    eod_mask_loss: bool = False
    calculate_per_token_loss: bool = False  # else each micro batch counts the same
    eod_id: int | None = setting(None, zero=True)  # that of the manifest
    data_cache_path: str | None = None  # index arrays: built once, then shared
    vocab_file: str | None = None
    # run
    save: str | None = None
    load: str | None = None
    save_interval: int | None = setting(None, "checkpoint_factor")
    extra_save_iters: tuple[int, ...] = ()  # steps at which to save as well; 0 is the beginning
    keep_checkpoints: int = setting(5, "keep_last_n_checkpoints", zero=True)  # 0: all
    finetune: bool = False
    eval_interval: int = 1000
    eval_iters: int = setting(100, zero=True)
    log_interval: int = 10
    exit_interval: int | None = None
    exit_duration_in_mins: float | None = setting(None, "exit_duration")
    kill_switch_path: str | None = setting(None, "kill_switch_file")
    tensorboard_dir: str | None = None
    tensorboard_queue_size: int = 1000
    log_timers_to_tensorboard: bool = False
    log_batch_size_to_tensorboard: bool = False
    log_validation_ppl_to_tensorboard: bool = False
    compile: bool | None = None  # on a GPU
    device: str = setting("auto", choices="auto cpu cuda")
    log_dir: str | None = None  # save
    # What was accepted and needs nothing here, said once by the main process; never saved.
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in FIELDS:
            _check_value(name, getattr(self, name))
        _check_model(self)
        _check_run(self)
        _check_parallel(self)

    def precision_on(self, device_type: str) -> str:
        """The type that products are computed in: "fp32", "bf16" or "fp16"."""
        return self.precision or ("bf16" if device_type == "cuda" else "fp32")

    def to_dict(self) -> dict[str, Any]:
        """All fields but ``notes``, as JSON and YAML know them."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_yaml(self) -> str:
        """The configuration as a file that ``tokpack train`` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


FIELDS = {item.name: item for item in fields(Config) if item.name != "notes"}
# Of each of these at most one can be given.
EXCLUSIVE = (
    ("train_samples", "train_iters"),
    ("lr_decay_samples", "lr_decay_iters"),
    ("lr_warmup_samples", "lr_warmup_iters", "lr_warmup_fraction"),
)


def _check_value(name: str, value: Any) -> None:
    """UsageError for a word that is no choice, and for a number out of its range."""
    rules, default = FIELDS[name].metadata, FIELDS[name].default
    if choices := rules.get("choices", "").split():
        if value is not None and str(value) not in choices:
            raise UsageError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if rules.get("zero") or default == 0:
            good, expected = value >= 0, "at least 0"
        elif "int" in str(FIELDS[name].type):
            good, expected = value >= 1, "at least 1"
        else:
            good, expected = value > 0, "above 0"
        if (most := rules.get("most", math.inf)) < math.inf:
            good, expected = good and value <= most, f"{expected} and at most {most}"
        if (below := rules.get("below", math.inf)) < math.inf:
            good, expected = good and value < below, f"{expected} and below {below}"
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
    if (first := min(config.extra_save_iters, default=0)) < 0:
        raise UsageError(f"extra_save_iters has {first}, expected steps of at least 0")
    _divides("global_batch_size", batch, "micro_batch_size", config.micro_batch_size)
    for names in EXCLUSIVE:
        given = [f"{name} {getattr(config, name)}" for name in names if getattr(config, name)]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are given: give one of them")
    for low, high in (("min_lr", "lr"), ("min_loss_scale", "initial_loss_scale")):
        least, most = getattr(config, low), getattr(config, high)
        if least > most:
            raise UsageError(f"{low} is {least:g}, above {high} {most:g}")


def _check_parallel(config: Config) -> None:
    size = config.tensor_model_parallel_size
    for name in ("num_attention_heads", "num_query_groups", "hidden_size", "ffn_hidden_size"):
        _divides(name, getattr(config, name) or size, "tensor_model_parallel_size", size)
    if config.zero_stage and config.engine == "torch":
        raise UsageError(f"zero_stage {config.zero_stage} needs engine deepspeed, this is torch")
    if config.engine == "deepspeed" and config.min_loss_scale % 1:
        raise UsageError(
            f"min_loss_scale {config.min_loss_scale:g}: DeepSpeed needs a whole number"
        )
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
