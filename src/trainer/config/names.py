"""Names, mostly from other programs, that flags and files may use besides those of Config's fields.

names.txt has them all, each with its meaning here. Names are written with underscores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tokpack.option import KINDS, Option

from .hardware import GPUS

# Settings that are not fields of Config; names.txt has more, from which fields are derived.
OWN = (
    Option("nproc", int, group="parallel", help="start N processes on this machine"),
    Option(
        "deepspeed_config",
        str,
        group="parallel",
        help="DeepSpeed's JSON; flags that change results must not contradict it",
        value="FILE",
    ),
    Option("plan", bool, default=False, group="plan", help="do not train, estimate this run"),
    Option(
        "gpu", str, group="plan", help=f"on which GPUs: {', '.join(GPUS)}, or a file", value="NAME"
    ),
    Option("nodes", int, default=1, group="plan", help="machines"),
    Option("gpus_per_node", int, default=8, group="plan", help="GPUs of a machine"),
    Option("json", bool, default=False, group="plan", help="print the estimate as JSON"),
    Option("debug", bool, default=False, group="run", help="show the traceback of an error"),
    Option(
        "like",
        str,
        choices=("megatron", "bigscience", "microsoft", "neox"),
        group="run",
        help="defaults and order of another program: {choices}",
        value="NAME",
    ),
)

# Values that have another name in other programs, and their names here.
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

# Flags that are switches in other programs, and their value if no value follows.
BARE = {"profile": "10:12"}

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

# Settings for which the JSON overrides the flags: other programs read them only in DeepSpeed's
# JSON, or they change no result.
JSON_ALONE = (
    "zero_optimization.allgather_bucket_size zero_optimization.contiguous_gradients "
    "zero_optimization.reduce_bucket_size zero_optimization.reduce_scatter zero_stage"
)

# Names that only require something of another setting: if this value, that setting has that value.
NEEDS = {
    "no_load_optim": (True, "finetune", True),
    "no_position_embedding": (True, "position_embedding_type", "rope"),
    "use_bias_in_norms": (False, "normalization", "RMSNorm"),
}

# Other settings of a file that a flag replaces too: they are other ways to say the same.
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
# The defaults of other programs that differ from Config's.
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


class Name(NamedTuple):
    """The meaning of a name here: a row of names.txt, which describes its columns.

    ``kind`` is "setting": another name of ``target``; "switch": it gives that setting ``value``;
    "only": ``target`` is a regular expression for its possible values; or "nothing" or "unlike",
    with the reason, and in ``value`` how many words follow it.
    """

    kind: str
    target: str
    value: Any = None


def _read(text: str) -> tuple[dict[str, Name], dict[str, set[str]], dict[str, str]]:
    """The rows; the names that only one of the programs has, which show whose a file is; and
    types.
    """
    rows, alone = {}, {program: set[str]() for program in PROGRAMS}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        words, meaning, *programs = map(str.strip, line.split(" | "))
        (name, _, word), (kind, _, rest) = words.partition(" "), meaning.partition(" ")
        for program in programs:
            alone[program].add(name)
        if kind == "derived":
            rows[name], kinds[name] = Name("setting", name), rest
        elif kind == "only":
            rows[name] = Name(kind, rest)
        elif kind in ("nothing:", "unlike:"):
            rows[name] = Name(kind[:-1], rest, len(word))
        elif rest:
            value = {"true": True, "false": False}.get(rest, int(rest) if rest.isdigit() else rest)
            rows[name] = Name("switch", kind, value)
        else:
            rows[name] = Name("setting", kind)
    return rows, alone, kinds


NAMES, ALONE, _KINDS = _read(Path(__file__).with_name("names.txt").read_text(encoding="utf-8"))
DERIVED = OWN + tuple(
    Option(
        name,
        KINDS.get(kind.removesuffix("s"), object),
        many=kind.endswith("s"),
        choices=tuple(filter(None, words.split("|"))),
    )
    for name, (kind, _, words) in ((name, kind.partition(" ")) for name, kind in _KINDS.items())
)
