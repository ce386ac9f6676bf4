"""Checkpoints as Megatron-LM writes them, old and Core, of two tensor ranks and two stages."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from support.trainer_model_tools import Memory

CORE = {
    "attention.qkv": "self_attention.linear_qkv.",
    "attention.out": "self_attention.linear_proj.",
    "mlp.up": "mlp.linear_fc1.",
    "mlp.down": "mlp.linear_fc2.",
    "attention_norm": "self_attention.linear_qkv.layer_norm_",
    "mlp_norm": "mlp.linear_fc1.layer_norm_",
}
OLD = {
    "attention.qkv": "self_attention.query_key_value.",
    "attention.out": "self_attention.dense.",
    "mlp.up": "mlp.dense_h_to_4h.",
    "mlp.down": "mlp.dense_4h_to_h.",
    "attention_norm": "input_layernorm.",
    "mlp_norm": "post_attention_layernorm.",
}
ARGUMENTS = [
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "seq_length",
    "max_position_embeddings",
    "position_embedding_type",
    "layernorm_epsilon",
    "normalization",
    "untie_embeddings_and_output_weights",
    "add_bias_linear",
]


def write_megatron(run: Path, weights: Memory, *, core: bool) -> Path:
    """Write iter_0000100 of a run, and what names it; the vocabulary has 12 rows of padding."""
    model = weights.model
    args = argparse.Namespace(
        **{name: getattr(model, name) for name in ARGUMENTS},
        group_query_attention=True,
        swiglu=model.activation == "swiglu",
        bias_gelu_fusion=True,
        num_experts=None,
    )
    for stage in range(2):
        for rank in range(2):
            folder = run / f"iter_0000100/mp_rank_{rank:02d}_{stage:03d}"
            folder.mkdir(parents=True)
            content = {
                "args": args,
                "checkpoint_version": 3.0,
                "model": _core(weights, stage, rank) if core else _old(weights, stage, rank),
                "rng_state": [{"np_rng_state": np.random.get_state()}],
            }
            torch.save(content, folder / "model_optim_rng.pt")
    (run / "latest_checkpointed_iteration.txt").write_text("100\n")
    return run / "iter_0000100"


def _core(weights: Memory, stage: int, rank: int) -> dict[str, Any]:
    rooms = {"embedding": "embedding.", "norm": "decoder.final_layernorm.", "head": "output_layer."}
    found: dict[str, Any] = {"decoder.layers.0.mlp.linear_fc1._extra_state": torch.ones(1)}
    for room, name, part in _parts(weights, stage, rank, CORE):
        found[rooms.get(room, "decoder.") + name] = part
    return found


def _old(weights: Memory, stage: int, rank: int) -> dict[str, Any]:
    model: dict[str, Any] = {"embedding": {}, "encoder": {}, "output_layer": {}}
    for room, name, part in _parts(weights, stage, rank, OLD):
        if room == "embedding":
            module, kind = name.split(".")
            model["embedding"].setdefault(module, {})[kind] = part
        elif room == "head":
            model["output_layer"][name] = part
        else:
            model["encoder"]["final_layernorm." * (room == "norm") + name] = part
    found: dict[str, Any] = {"language_model": model}
    if stage and not weights.model.untie_embeddings_and_output_weights:
        first = _old(weights, 0, rank)["language_model"]
        found["word_embeddings_for_head"] = first["embedding"]["word_embeddings"]
    return found


def _parts(
    weights: Memory, stage: int, rank: int, names: dict[str, str]
) -> list[tuple[str, str, Tensor]]:
    """Room, name in it, and this rank's part of each parameter of a stage."""
    found = []
    count = weights.model.num_layers // 2
    for name in weights.model.layout:
        room, *rest, kind = name.split(".")
        if room == "blocks":
            number = int(rest[0])
            own = number // count == stage
            name_there = f"layers.{number % count}.{names['.'.join(rest[1:])]}{kind}"
        else:
            own = (room == "embedding") != bool(stage)
            name_there = f"{rest[0]}_embeddings.{kind}" if room == "embedding" else kind
        if own:
            found.append((room, name_there, _part(weights, name, rank).clone()))
    return found


def _part(weights: Memory, name: str, rank: int) -> Tensor:
    whole, split = weights.read(name)["parameter"], weights.model.layout[name].split
    if name.endswith("word.weight") or name == "head.weight":
        whole = torch.cat((whole, torch.zeros(12, whole.shape[1])))
    part = whole if split is None else whole.chunk(2, split)[rank]
    if ".mlp.up." in name and weights.model.activation == "swiglu":  # gates, then the others
        return torch.cat(part.unflatten(0, (-1, 2)).unbind(1))
    return part
