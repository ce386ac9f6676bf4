"""All settings of a run: one frozen dataclass of plain values, checked when it is made. No torch
here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option
from tokpack.option import check_options, in_group, options_of
from tokpack.storage import is_url, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.tokenizers import TokenizerFiles


# Settings of a run that contradict each other, on any data and any machine.

# At most one setting of each row can be given.
EXCLUSIVE = (
    ("train_samples", "train_iters"),
    ("save_interval", "save_interval_in_mins"),
    ("lr_decay_samples", "lr_decay_iters"),
    ("lr_wsd_decay_samples", "lr_wsd_decay_iters"),
    ("lr_warmup_samples", "lr_warmup_iters", "lr_warmup_fraction"),
)


def check(config: Config) -> None:
    """Raise UsageError for values that cannot work together."""
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


UNSAVED = ("notes", "unlike", "flags")  # fields of Config that are not settings
# Settings of former releases that changed no result. Saved configurations still have them.
FORMER = (
    *("partition_activations", "checkpoint_in_cpu", "tensorboard_queue_size"),
    *(f"log_{name}_to_tensorboard" for name in ("timers", "batch_size", "validation_ppl")),
)


GROUPS = ("data", "model", "batch", "optimizer", "precision", "parallel", "activations", "run")
_data, _model, _batch, _optimizer, _precision, _parallel, _activations, _run = map(in_group, GROUPS)


@dataclass(frozen=True)
class Config:
    """All settings of a run, under Megatron's names.

    Lengths are in tokens, batch sizes and counts of data in samples; learning rates are AdamW's. A
    setting that is None is derived by the code that uses it. Raises UsageError for values that
    cannot work together on any data and machine.
    """

    num_layers: int = _model(12, "transformer blocks")
    hidden_size: int = _model(768, "width")
    num_attention_heads: int = _model(12, "heads")
    ffn_hidden_size: int | None = _model(None, "width inside the MLP", otherwise="4 x hidden-size")
    num_query_groups: int | None = _model(
        None, "heads of keys and values", otherwise="num-attention-heads"
    )
    kv_channels: int | None = _model(
        None, "width of a head", otherwise="hidden-size / num-attention-heads"
    )
    seq_length: int = _model(1024, "tokens of a sample")
    max_position_embeddings: int | None = _model(None, "positions", otherwise="seq-length")
    vocab_size: int | None = _model(None, "size of the vocabulary, if the data does not tell it")
    make_vocab_size_divisible_by: int = _model(
        128, "the vocabulary is padded to a multiple of N x TP"
    )
    position_embedding_type: str = _model(
        "learned_absolute", "{choices}", choices=("learned_absolute", "rope")
    )
    rotary_percent: float = _model(1.0, "share of each head that rope rotates", "P", most=1)
    rotary_base: float = _model(10000.0, "base of rope", "B")
    use_rope_scaling: bool = _model(False, "scale low frequencies of rope, as in Llama 3.1")
    rope_scaling_factor: float = _model(8.0, "factor of this scaling")
    untie_embeddings_and_output_weights: bool = _model(
        False, "give the output layer its own weights"
    )
    parallel_residual: bool = _model(False, "attention and MLP in parallel, as in GPT-NeoX")
    embed_layernorm: bool = _model(False, "a norm after the embedding, as in BigScience")
    normalization: str = _model("LayerNorm", "{choices}", choices=("LayerNorm", "RMSNorm"))
    qk_layernorm: bool = _model(False, "a norm over each head of queries and keys")
    activation: str = _model(
        "gelu", "gelu (its tanh form), gelu_erf or swiglu", choices=("gelu", "gelu_erf", "swiglu")
    )
    add_bias_linear: bool = _model(True, "no biases in linear layers", flags="--no-add-bias-linear")
    add_qkv_bias: bool = _model(False, "biases of queries, keys and values alone, as in Qwen 2")
    hidden_dropout: float = _model(0.0, "dropout of residual branches", "P", below=1)
    attention_dropout: float = _model(0.0, "dropout of attention", "P", below=1)
    layernorm_epsilon: float = _model(1e-5, "epsilon of the norms", "E")
    init_method_std: float = _model(0.02, "standard deviation of the initial weights", "S")
    output_init_method_std: float | None = _model(
        None, "the same for residual outputs", "S", otherwise="init-method-std / sqrt(2 num-layers)"
    )
    micro_batch_size: int = _batch(
        4, "samples in a pass of a data parallel process", otherwise="up to 4"
    )
    global_batch_size: int = _batch(
        4, "samples in a step", otherwise="a micro batch of each process"
    )
    rampup_batch_size: tuple[int, int, int] | None = _batch(
        None, "begin with S samples, grow by I, over N samples", "S I N"
    )
    train_samples: int | None = _batch(None, "samples of the run", otherwise="one epoch")
    train_iters: int | None = _batch(None, "the same in steps")
    optimizer: str = _optimizer(
        "adam", "adam, which is AdamW, or muon for the layers' matrices", choices=("adam", "muon")
    )
    lr: float = _optimizer(3e-4, "learning rate", least=0)
    min_lr: float = _optimizer(0.0, "learning rate at the end")
    lr_decay_style: str = _optimizer(
        "linear",
        "{choices}",
        choices=("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    )
    lr_decay_samples: int | None = _optimizer(None, "samples until min-lr", otherwise="all")
    lr_decay_iters: int | None = _optimizer(None, "the same in steps")
    lr_wsd_decay_style: str = _optimizer(
        "exponential",
        "how WSD decays: {choices}",
        choices=("exponential", "linear", "cosine", "minus_sqrt"),
    )
    lr_wsd_decay_samples: int | None = _optimizer(None, "samples of WSD's decay")
    lr_wsd_decay_iters: int | None = _optimizer(None, "the same in steps")
    lr_warmup_samples: int = _optimizer(0, "samples of warm-up")
    lr_warmup_iters: int = _optimizer(0, "the same in steps")
    lr_warmup_fraction: float | None = _optimizer(
        None, "the same as a share of the decay", "F", least=0, most=1
    )
    weight_decay: float = _optimizer(0.01, "weight decay, not for biases and norms", least=0)
    adam_beta1: float = _optimizer(0.9, "decay of the running mean of gradients", least=0, below=1)
    adam_beta2: float = _optimizer(0.999, "the same for their squares", least=0, below=1)
    adam_eps: float = _optimizer(1e-8, "added to the root of the mean square")
    muon_momentum: float = _optimizer(0.95, "decay of Muon's running mean", least=0, below=1)
    muon_nesterov: bool = _optimizer(False, "Nesterov momentum")
    muon_num_ns_steps: int = _optimizer(5, "Newton-Schulz steps")
    muon_scale_mode: str = _optimizer(
        "spectral",
        "scale of a step, the square root of: max(r, c) (spectral), r / c (unit_rms_norm) or "
        "max(1, r / c) (shape_scaling), for r rows and c columns",
        choices=("spectral", "unit_rms_norm", "shape_scaling"),
    )
    muon_extra_scale_factor: float = _optimizer(1.0, "one more factor of a step")
    muon_split_qkv: bool = _optimizer(
        True, "treat queries, keys and values as one matrix", flags="--no-muon-split-qkv"
    )
    clip_grad: float = _optimizer(1.0, "largest norm of the gradient, 0: no limit", least=0)
    precision: str | None = _precision(
        None,
        "fp32, bf16 or fp16; --bf16 and --fp16 too",
        choices=("fp32", "bf16", "fp16"),
        otherwise="bf16 on a GPU, else fp32",
    )
    fp8: bool = _precision(False, "matrix products of the blocks in fp8, the rest in bf16")
    loss_scale: float = _precision(0.0, "fp16: a fixed loss scale, 0 for a dynamic one")
    initial_loss_scale: float = _precision(65536.0, "first value of a dynamic loss scale")
    loss_scale_window: int = _precision(1000, "steps without overflow until it doubles")
    hysteresis: int = _precision(2, "overflows until it halves")
    min_loss_scale: float = _precision(1.0, "its lowest value")
    tensor_model_parallel_size: int = _parallel(1, "processes that share each layer")
    sequence_parallel: bool = _parallel(
        False, "split the sequence among them between layers (engine torch)"
    )
    pipeline_model_parallel_size: int = _parallel(1, "stages of layers")
    pipeline_split: tuple[int, ...] | None = _parallel(
        None, "layers of each stage", "N...", otherwise="equal"
    )
    engine: str = _parallel("torch", "{choices}", choices=("torch", "deepspeed"))
    zero_stage: int = _parallel(
        0,
        "stage of ZeRO: data parallel processes share 1 moments and fp32 weights, 2 gradients too, "
        "3 the blocks' weights too",
        choices=("0", "1", "2", "3"),
    )
    deepspeed_json: dict[str, Any] = field(default_factory=dict)  # settings without a field
    distributed_timeout_minutes: int = _parallel(10, "how long to wait for another process")
    checkpoint_activations: bool = _activations(False, "recompute activations in the backward pass")
    checkpoint_num_layers: int = _activations(1, "blocks that are recomputed together")
    data_path: tuple[str, ...] = _data(
        (), "datasets with weights, one dataset, or a saved blend", "[W] PREFIX..."
    )
    train_data_path: tuple[str, ...] = _data(
        (), "datasets for training only, not split", "[W] PREFIX..."
    )
    valid_data_path: tuple[str, ...] = _data((), "datasets for validation only", "[W] PREFIX...")
    test_data_path: tuple[str, ...] = _data((), "datasets for testing only", "[W] PREFIX...")
    split: str | None = _data("969,30,1", "weights of training, validation and test", "A,B,C")
    allow_empty: bool = _data(False, "leave out a dataset that gets no sample in the split")
    order: str = _data(
        "stateless", "order of samples: stateless, stateless-blocks, or another program's", "NAME"
    )
    seed: int = _data(1234, "seed of order and initialisation", least=0)
    reset_position_ids: bool = _data(False, "positions start again at each document")
    reset_attention_mask: bool = _data(False, "attention stays between EODs, as in Megatron")
    document_boundaries: bool = _data(
        False, "attention and positions stay inside documents, by the index"
    )
    eod_mask_loss: bool = _data(False, "no loss after the end of a document")
    calculate_per_token_loss: bool = _data(
        False, "a step's loss is a mean over labels, not over micro batches"
    )
    eod_id: int | None = _data(
        None, "the token that ends a document, if no manifest names it", least=0
    )
    data_cache_path: str | None = _data(
        None, "keep indices of other orders and of packing here", "DIR"
    )
    vocab_file: str | None = _data(
        None, "the tokenizer's vocabulary, if no manifest names it", "FILE"
    )
    merge_file: str | None = _data(None, "its merges", "FILE")
    tokenizer_model: str | None = _data(None, "or a tokenizer's file, folder or name", "FILE")
    tokenizer_type: str | None = _data(None, "its type, as another program calls it", "T")
    save: str | None = _run(None, "write checkpoints, log.jsonl and loss.html here", "DIR")
    load: str | None = _run(None, "continue from here; start from scratch if it is empty", "DIR")
    save_interval: int | None = _run(
        None, "steps between checkpoints, or minutes as in 10m", otherwise="the last one only"
    )
    save_interval_in_mins: float | None = _run(None)  # what save_interval says in minutes
    extra_save_iters: tuple[int, ...] = _run(
        (), "more steps at which to save, 0: before the first", "N..."
    )
    keep_checkpoints: int = _run(5, "delete all but the last N, 0: delete none", least=0)
    async_save: bool = _run(
        False, "write checkpoints while training goes on, from copies in CPU memory"
    )
    finetune: bool = _run(False, "load only the weights, and begin at sample 0")
    eval_interval: int = _run(1000, "steps between evaluations")
    eval_iters: int = _run(100, "batches of an evaluation, 0: none", least=0)
    valid_by_source: bool = _run(False, "evaluate each dataset of a blend too")
    log_interval: int = _run(10, "steps between log lines")
    profile: str | None = _run(None, "write a trace of steps A to B to LOG_DIR", "A:B")
    exit_interval: int | None = _run(None, "save and exit at a multiple of N steps")
    exit_duration_in_mins: float | None = _run(None, "save and exit after X minutes")
    kill_switch_path: str | None = _run(None, "save and exit when this file exists", "FILE")
    tensorboard_dir: str | None = _run(None, "write TensorBoard's events here", "DIR")
    wandb_project: str | None = _run(None, "send curves to this Weights & Biases project", "NAME")
    wandb_exp_name: str | None = _run(None, "name of the run there", "NAME")
    wandb_group: str | None = _run(None, "its group there", "NAME")
    wandb_entity: str | None = _run(None, "user or team of the project", "NAME")
    wandb_save_dir: str | None = _run(None, "write its files here instead of LOG_DIR", "DIR")
    compile: bool | None = _parallel(None, "torch.compile of the blocks", otherwise="on a GPU")
    device: str = _parallel("auto", "{choices}", choices=("auto", "cpu", "cuda"))
    log_dir: str | None = _run(None, "write log.jsonl and loss.html here instead", "DIR")
    # Printed once, by the main process; never saved.
    notes: tuple[str, ...] = field(default=(), compare=False)
    unlike: str = field(default="", compare=False)  # defaults that differ from a program's
    # By setting, if flags were typed: messages then use these names.
    flags: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        check(self)

    def precision_on(self, device_type: str) -> str:
        """The type in which products are computed: "fp32", "bf16" or "fp16"."""
        return self.precision or ("bf16" if device_type == "cuda" else "fp32")

    @property
    def recomputed_together(self) -> int:
        """The number of blocks whose activations are recomputed together, 0 for none."""
        return self.checkpoint_num_layers if self.checkpoint_activations else 0

    @property
    def profiled(self) -> range:
        """The steps that are traced."""
        first, _, last = (self.profile or "1:0").partition(":")
        return range(int(first), int(last) + 1)

    @property
    def tokenizer_files(self) -> TokenizerFiles:
        """The settings that name a tokenizer, as load_tokenizer takes them."""
        return {
            "vocab_file": self.vocab_file,
            "merge_file": self.merge_file,
            "tokenizer_model": self.tokenizer_model,
            "tokenizer_type": self.tokenizer_type,
        }

    def to_dict(self) -> dict[str, Any]:
        """All settings, as values of JSON and YAML."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Config:
        """The configuration that ``to_dict`` returned, also in an earlier release. UsageError."""
        values: dict[str, Any] = {}
        for name, value in saved.items():
            if name not in (*FIELDS, *FORMER):
                raise UsageError(f"a setting {name!r}, which this tokpack does not know")
            if name not in FIELDS:
                continue
            try:
                is_none = value is None and FIELDS[name].optional
                values[name] = None if is_none else FIELDS[name].read(value)
            except ValueError:
                raise UsageError(f"{name} is {brief(value)}") from None
        return cls(**values)

    def to_yaml(self) -> str:
        """The configuration as YAML that ``tokpack train`` reads."""
        import yaml

        return yaml.safe_dump(self.to_dict(), sort_keys=False)


FIELDS = {name: one for name, one in options_of(Config).items() if name not in UNSAVED}
