"""Layer files as GPT-NeoX writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from support.rounding import gamma

if TYPE_CHECKING:
    from torch import Tensor

    from support.trainer_model_tools import Memory

BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def write_neox(
    folder: Path, weights: Memory, ranks: int = 2, *, newer: bool = False, padding: int = 12
) -> None:
    """Layer files as NeoX writes them, each rank with its part; norms differ a little by rank."""
    folder.mkdir(parents=True)
    count = weights.model.num_layers
    places = {
        "embedding": (0, ""),
        "norm": (count + 3, "norm"),
        "head": (count + 4, "final_linear"),
    }
    layers: dict[int, list[dict[str, Tensor]]] = {}
    for name in weights.model.layout:
        whole = weights.read(name)["parameter"]
        room, *rest = name.split(".")
        if room == "blocks":
            number, theirs = int(rest[0]) + 2, BLOCK[".".join(rest[1:-1])]
            theirs = theirs.replace("dense_h_to_4h", "linear1") if newer else theirs
            theirs = theirs.replace("dense_4h_to_h", "linear2") if newer else theirs
        else:
            number, theirs = places[room]
            theirs = theirs or f"{rest[0]}_embeddings"
        if room == "head" or "word" in name:
            whole = torch.cat((whole, torch.randn(padding, whole.shape[1])))
        parts = layers.setdefault(number, [{} for _ in range(ranks)])
        for part, own in zip(parts, split_neox(weights, name, whole.half(), ranks), strict=True):
            part[f"{theirs}.{name.rpartition('.')[2]}"] = own.clone()
    for number, parts in layers.items():
        for rank, part in enumerate(parts):
            if 2 <= number < count + 2:
                part["attention.rotary_emb.inv_freq"] = torch.ones(4)
            torch.save(part, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
    torch.save({"args": Path("x")}, folder / "mp_rank_00_model_states.pt")


def rounded_by_neox(weights: Tensor) -> Tensor:
    """How far the weights in such files may be from these: rounded to fp16, scaled, added up."""
    return gamma(3, "float16") * weights.abs() + 2.0**-24  # the distance of the smallest ones


def split_neox(weights: Memory, name: str, whole: Tensor, ranks: int) -> list[Tensor]:
    dim = weights.model.layout[name].split
    if ".mlp.up." in name and weights.model.activation == "swiglu":  # each rank's gates behind
        parts = [part.unflatten(0, (-1, 2)).unbind(1) for part in whole.chunk(ranks)]
        return [torch.cat((up, gate)) for gate, up in parts]
    if dim is not None:
        return list(whole.chunk(ranks, dim))
    row_bias = name.endswith(("attention.out.bias", "mlp.down.bias"))
    if row_bias and weights.model.parallel_residual:  # the ranks' biases are added
        return [whole * 0.75, *[whole * 0.25 / (ranks - 1)] * (ranks - 1)]
    if "norm" in name:  # the ranks' norms drift apart
        return [whole * (1 + 0.1 * (rank - (ranks - 1) / 2)) for rank in range(ranks)]
    return [whole] * ranks
