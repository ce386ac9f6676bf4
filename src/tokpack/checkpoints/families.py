"""Names of modules and settings in other programs: ``transformers``, and Megatron's family."""

from __future__ import annotations

import re
from typing import NamedTuple

from tokpack.configuration.model import LLAMA_3_POSITIONS


class Family(NamedTuple):
    """A class of ``transformers`` whose models are computed here too."""

    model_type: str  # in config.json
    architecture: str  # the class
    column: int  # in MODULES and SETTINGS

    @property
    def is_llama(self) -> bool:
        """Whether its modules and settings are those of Llama."""
        return self.column == LLAMA.column

    @property
    def settings(self) -> dict[str, str]:
        """Our settings that it has, and their names in its config.json."""
        return {own: names[self.column] for own, names in SETTINGS.items() if names[self.column]}

    def name_of(self, module: str) -> str:
        """What it calls one of our modules; "" where it has no such module."""
        return MODULES[module][self.column] if module in MODULES else ""

    def places(self, name: str) -> list[str]:
        """Its names for one of our parameters, which it may have in several parts."""
        module, _, kind = name.rpartition(".")
        block = ""
        if module.startswith("blocks."):
            _, number, module = module.split(".", 2)
            block = f"{self.name_of('blocks')}.{number}."
        target, *parts = self.name_of(module).split()
        return [f"{block}{target.format(part)}.{kind}" for part in parts or [""]]

    def is_transposed(self, name: str) -> bool:
        """Whether it has this weight as [inputs, outputs]."""
        linear = module_of(name).startswith(("attention.", "mlp."))
        return self == GPT2 and linear and name.endswith(".weight")


GPT2 = Family("gpt2", "GPT2LMHeadModel", 0)
NEOX = Family("gpt_neox", "GPTNeoXForCausalLM", 1)
LLAMA = Family("llama", "LlamaForCausalLM", 2)
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", 2)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", 2)
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_erf": "gelu", "swiglu": "silu"}

# Our modules, and their names in GPT-2, GPT-NeoX and Llama; Qwen has those of Llama.
MODULES = {
    "blocks": ("transformer.h", "gpt_neox.layers", "model.layers"),
    "embedding.word": ("transformer.wte", "gpt_neox.embed_in", "model.embed_tokens"),
    "embedding.position": ("transformer.wpe", "", ""),
    "attention_norm": ("ln_1", "input_layernorm", "input_layernorm"),
    "attention.qkv": ("attn.c_attn", "attention.query_key_value", "self_attn.{}_proj q k v"),
    "attention.q_norm": ("", "", "self_attn.q_norm"),
    "attention.k_norm": ("", "", "self_attn.k_norm"),
    "attention.out": ("attn.c_proj", "attention.dense", "self_attn.o_proj"),
    "mlp_norm": ("ln_2", "post_attention_layernorm", "post_attention_layernorm"),
    "mlp.up": ("mlp.c_fc", "mlp.dense_h_to_4h", "mlp.{}_proj gate up"),
    "mlp.down": ("mlp.c_proj", "mlp.dense_4h_to_h", "mlp.down_proj"),
    "norm": ("transformer.ln_f", "gpt_neox.final_layer_norm", "model.norm"),
    "head": ("lm_head", "embed_out", "lm_head"),
}
# The scaled rope of Llama 3.1 and its successors; only the factor differs between them.
SCALED_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": LLAMA_3_POSITIONS,
}
# Our settings, and their names in config.json of GPT-2, GPT-NeoX and Llama.
SETTINGS = {
    "vocab_size": ("vocab_size",) * 3,
    "hidden_size": ("n_embd", "hidden_size", "hidden_size"),
    "num_layers": ("n_layer", "num_hidden_layers", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads", "num_attention_heads"),
    "num_query_groups": ("", "", "num_key_value_heads"),
    "ffn_hidden_size": ("n_inner", "intermediate_size", "intermediate_size"),
    "max_position_embeddings": ("n_positions", *("max_position_embeddings",) * 2),
    "layernorm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"),
    "hidden_dropout": ("resid_pdrop", "hidden_dropout", ""),
    "attention_dropout": ("attn_pdrop", "attention_dropout", "attention_dropout"),
    "init_method_std": ("initializer_range",) * 3,
    "parallel_residual": ("", "use_parallel_residual", ""),
    "rotary_percent": ("", "rotary_pct", ""),
    "rotary_base": ("", "rotary_emb_base", "rope_theta"),
}
# Modules of Megatron and its descendants, by the names that all of them have, and ours.
MEGATRON = {
    "word_embeddings": "embedding.word",
    "position_embeddings": "embedding.position",
    "word_embeddings.norm": "embedding.norm",
    "input_layernorm": "attention_norm",
    "attention.query_key_value": "attention.qkv",
    "attention.dense": "attention.out",
    "self_attention.query_key_value": "attention.qkv",
    "self_attention.dense": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
}
# Buffers that some releases of these programs store beside the weights.
IGNORED = re.compile(r"rotary_emb|inv_freq|masked_bias|_extra_state|(attention|attn)\.bias$")


def module_of(name: str) -> str:
    """The module that a parameter is in, without the number of a block."""
    module = name.rpartition(".")[0]
    return module.split(".", 2)[2] if module.startswith("blocks.") else module
