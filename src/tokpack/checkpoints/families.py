"""Names of modules and settings in other programs: ``transformers``, and Megatron's family."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from tokpack.configuration.model import LLAMA_3_POSITIONS

if TYPE_CHECKING:
    from torch import Tensor

    from tokpack.configuration.model import ModelConfig


class Weights(Protocol):
    """The weights of a model, wherever they come from: ``read`` gives them whole, as fp32."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """As a manifest describes it."""

    def read(self, name: str) -> dict[str, Tensor]:
        """One of our parameters, under the key ``parameter``."""


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
        return {ours: names[self.column] for ours, names in SETTINGS.items() if names[self.column]}

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

    def split(self, model: ModelConfig, name: str, tensor: Tensor) -> list[Tensor]:
        """One of our tensors in the parts, and in the order of rows, that this class has."""
        rest, module = tensor.shape[1:], module_of(name)
        parts = [tensor]
        if module == "attention.qkv" and self != NEOX:
            heads = tensor.view(model.num_query_groups, -1, model.head_width, *rest)
            parts = [heads[:, :-2], heads[:, -2], heads[:, -1]]
        elif module == "mlp.up" and self.is_llama:
            parts = list(tensor.view(-1, 2, *rest).unbind(1))
        parts = [part.reshape(-1, *rest) for part in parts]
        if self == GPT2 and module == "attention.qkv":
            parts = [torch.cat(parts)]
        return [part.t() for part in parts] if self._is_transposed(name) else parts

    def join(self, model: ModelConfig, name: str, parts: list[Tensor]) -> Tensor:
        """The reverse of ``split``."""
        if self._is_transposed(name):
            parts = [part.t() for part in parts]
        rest, module = parts[0].shape[1:], module_of(name)
        if module == "attention.qkv" and self != NEOX:
            parts = list(parts[0].chunk(3)) if len(parts) == 1 else parts
            heads = (model.num_query_groups, -1, model.head_width, *rest)
            return torch.cat([part.reshape(heads) for part in parts], 1).reshape(-1, *rest)
        return torch.stack(parts, 1).flatten(0, 1) if len(parts) == 2 else parts[0]  # gate and up

    def _is_transposed(self, name: str) -> bool:
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
# Modules of Megatron and its descendants, whose names do not contradict each other, and ours.
MEGATRON = {
    "": "norm",
    "norm": "norm",
    "final_norm": "norm",
    "final_layernorm": "norm",
    "word_embeddings": "embedding.word",
    "word_embeddings.norm": "embedding.norm",
    "position_embeddings": "embedding.position",
    "input_norm": "attention_norm",
    "input_layernorm": "attention_norm",
    "attention.query_key_value": "attention.qkv",
    "self_attention.query_key_value": "attention.qkv",
    "self_attention.linear_qkv": "attention.qkv",
    "attention.dense": "attention.out",
    "self_attention.dense": "attention.out",
    "self_attention.linear_proj": "attention.out",
    "post_attention_norm": "mlp_norm",
    "post_attention_layernorm": "mlp_norm",
    "pre_mlp_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.linear1": "mlp.up",
    "mlp.linear_fc1": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
    "mlp.linear2": "mlp.down",
    "mlp.linear_fc2": "mlp.down",
    "final_linear": "head",
    "output_layer": "head",
    "word_embeddings_for_head": "head",
}
# Buffers that some releases of these programs store beside the weights.
IGNORED = re.compile(r"rotary_emb|inv_freq|masked_bias|_extra_state|(attention|attn)\.bias$")


def module_of(name: str) -> str:
    """The module that a parameter is in, without the number of a block."""
    module = name.rpartition(".")[0]
    return module.split(".", 2)[2] if module.startswith("blocks.") else module
