"""Names that flags and files may have besides those of Config's fields, mostly of other programs.

names.txt has them all, with what each is here. Names are written with underscores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from .setting import Setting

# Settings that are no fields of Config: fields are derived from them, or DeepSpeed is given them.
DERIVED = (
    Setting("attention_config"),
    Setting("betas", float, many=True),
    Setting("bias_gelu_fusion", bool),
    Setting("conf_dir", str),
    Setting("cpu_optimizer", bool),
    Setting("debug", bool, default=False, group="run", help="show the traceback of an error"),
    Setting(
        "deepspeed_config",
        str,
        group="parallel",
        help="DeepSpeed's JSON; flags that change results must not contradict it",
        value="FILE",
    ),
    Setting(
        "deepspeed_config_wins",
        bool,
        default=False,
        group="parallel",
        help="where the flags contradict it, take what it says, as other programs do",
    ),
    Setting("disable_bias_linear", bool),
    Setting("expansion_factor", float),
    Setting("gradient_accumulation_steps", int),
    Setting("init_method", str),
    Setting("initial_scale_power", float),
    Setting("intermediate_size", int),
    Setting(
        "like",
        str,
        choices="megatron bigscience microsoft neox",
        group="run",
        help="defaults and order of another program: {choices}",
        value="NAME",
    ),
    Setting("lr_decay_tokens", int),
    Setting("lr_warmup_tokens", int),
    Setting("mlp_multiple_of", int),
    Setting("mlp_type", str),
    Setting("no_load_optim", bool),
    Setting("no_position_embedding", bool),
    Setting("nproc", int, group="parallel", help="start N processes on this machine"),
    Setting("openai_gelu", bool),
    Setting("output_layer_init_method", str),
    Setting("recompute_granularity", str),
    Setting("recompute_method", str),
    Setting("rms_norm_epsilon", float),
    Setting("sliding_window_width", int),
    Setting("test_data_paths", str, many=True),
    Setting("test_data_weights", float, many=True),
    Setting("train_data_paths", str, many=True),
    Setting("train_data_weights", float, many=True),
    Setting("train_tokens", int),
    Setting("use_bias_in_attn_linear", bool),
    Setting("use_bias_in_mlp", bool),
    Setting("use_bias_in_norms", bool),
    Setting("use_wandb", bool),
    Setting("valid_data_paths", str, many=True),
    Setting("valid_data_weights", float, many=True),
    Setting("zero_optimization.allgather_bucket_size", int),
    Setting("zero_optimization.reduce_bucket_size", int),
)

# Values that other programs call by another word, and what they are here.
WORDS = {
    "adam": "adam",
    "adamw": "adam",
    "dist_muon": "muon",
    "bfloat16": "bf16",
    "layernorm": "LayerNorm",
    "learned": "learned_absolute",
    "rmsnorm": "RMSNorm",
    "rotary": "rope",
}

# Keys of a blend file that are settings of a run too.
BLEND = (
    "allow_empty document_boundaries eod_id eod_mask_loss order reset_attention_mask "
    "reset_position_ids seed seq_length split"
)

# DeepSpeed's blocks, and names beside them, that a configuration file may hold.
DEEPSPEED = (
    "activation_checkpointing bf16 bfloat16 comms_logger communication_data_type csv_monitor "
    "data_types deepspeed_extra_args deepspeed_json dump_state flops_profiler fp16 "
    "gradient_predivide_factor memory_breakdown optimizer prescale_gradients scheduler "
    "sparse_gradients steps_per_print wall_clock_breakdown zero_allow_untested_optimizer "
    "zero_optimization"
)

# What other programs read in DeepSpeed's JSON alone, whatever their flags say, and what changes no
# result: there the JSON goes before the flags.
JSON_ALONE = (
    "zero_optimization.allgather_bucket_size zero_optimization.contiguous_gradients "
    "zero_optimization.reduce_bucket_size zero_optimization.reduce_scatter zero_stage"
)

# Settings of a file that a flag replaces besides its own: other ways to say the same.
REPLACED = {
    "activation": "bias_gelu_fusion mlp_type openai_gelu",
    "add_bias_linear": "disable_bias_linear use_bias_in_attn_linear use_bias_in_mlp",
    "data_path": "train_data_path train_data_paths train_data_weights",
    "disable_bias_linear": "add_bias_linear use_bias_in_attn_linear use_bias_in_mlp",
    "ffn_hidden_size": "expansion_factor intermediate_size mlp_multiple_of",
    "global_batch_size": "gradient_accumulation_steps",
    "gradient_accumulation_steps": "global_batch_size",
    "init_method_std": "init_method",
    "intermediate_size": "expansion_factor ffn_hidden_size",
    "layernorm_epsilon": "rms_norm_epsilon",
    "output_layer_init_method": "output_init_method_std",
    "test_data_path": "test_data_paths test_data_weights",
    "train_data_path": "data_path train_data_paths train_data_weights",
    "valid_data_path": "valid_data_paths valid_data_weights",
    "wandb_project": "use_wandb",
}

_MEGATRON = {
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "initial_loss_scale": 2.0**32,
    "keep_checkpoints": 0,
    "precision": "fp32",
}
# The defaults of other programs, where they are not those of Config.
DEFAULTS = {
    "megatron": {**_MEGATRON, "order": "megatron"},
    "bigscience": {**_MEGATRON, "order": "bigscience"},
    "microsoft": {**_MEGATRON, "order": "microsoft"},
    "neox": {
        "keep_checkpoints": 0,
        "lr_warmup_fraction": 0.01,
        "order": "neox",
        "precision": "fp32",
        "weight_decay": 0.1,
    },
}
PROGRAMS = {
    "megatron": "Megatron-LM",
    "bigscience": "BigScience's Megatron-DeepSpeed",
    "microsoft": "Microsoft's Megatron-DeepSpeed",
    "neox": "GPT-NeoX",
}


class WithoutEffect(NamedTuple):
    """A name that is accepted: how many words follow it, and why it has no effect."""

    words: int
    reason: str


class Table:
    """What is in names.txt, which says how it is written.

    ``aliases`` lead to settings, ``switches`` to settings and values; ``only`` are the regular
    expressions of what the others may be. ``nothing`` and ``unlike`` have names without an effect.
    ``alone`` are the names that only one of the programs has, by which its files and scripts are
    recognised.
    """

    def __init__(self, text: str) -> None:
        self.aliases: dict[str, str] = {}
        self.switches: dict[str, tuple[str, Any]] = {}
        self.only: dict[str, str] = {}
        self.nothing: dict[str, WithoutEffect] = {}
        self.unlike: dict[str, WithoutEffect] = {}
        self.alone: dict[str, set[str]] = {program: set() for program in PROGRAMS}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                self._add(*map(str.strip, line.split(" | ")))

    def _add(self, words: str, meaning: str, program: str = "") -> None:
        name, _, word = words.partition(" ")
        kind, _, rest = meaning.partition(" ")
        if program:
            self.alone[program].add(name)
        if kind == "only":
            self.only[name] = rest
        elif kind == "nothing:":
            self.nothing[name] = WithoutEffect(len(word), rest)
        elif kind == "unlike:":
            self.unlike[name] = WithoutEffect(len(word), rest)
        elif rest:
            self.switches[name] = kind, _value(rest)
        elif kind != name:
            self.aliases[name] = kind


def _value(word: str) -> Any:
    """The value that a word of the table stands for."""
    return {"true": True, "false": False}.get(word, int(word) if word.isdigit() else word)


TABLE = Table(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
