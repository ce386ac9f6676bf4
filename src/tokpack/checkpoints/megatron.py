"""Weights of Megatron-LM and Megatron-DeepSpeed, read safely: mp_rank_TT, mp_rank_TT_PPP.

A file has the parameters of tensor rank TT of pipeline stage PPP, under the names of Megatron's
older layers or of Megatron Core.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from tokpack.configuration.flags import UNSPLIT, resolve
from tokpack.configuration.model import ModelConfig
from tokpack.display import brief
from tokpack.errors import FormatError, UsageError

from .families import IGNORED, MEGATRON
from .neox import NeoxWeights, load_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    Ranks = dict[tuple[int, int], Path]  # by stage and tensor rank

_RANK = re.compile(r"mp_rank_(\d\d)(?:_(\d{3}))?(_model_states\.pt)?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
# Transformer Engine has a norm inside the linear layer that it precedes.
_FUSED = {"self_attention.linear_qkv": "attention_norm", "mlp.linear_fc1": "mlp_norm"}
_BLOCKS = re.compile(
    r"^(module\.)*(language_model\.)?(embedding|transformer|encoder|decoder)\.|^(module\.)*(language_model\.)"
)
# The arguments in a file that decide the model: settings with a value, and switches.
_SETTINGS = """
    num_layers hidden_size ffn_hidden_size num_attention_heads kv_channels seq_length
    max_position_embeddings make_vocab_size_divisible_by position_embedding_type rotary_percent
    rotary_base rope_scaling_factor normalization layernorm_epsilon norm_epsilon init_method_std"""
_FLAGS = """
    untie_embeddings_and_output_weights swiglu openai_gelu use_rotary_position_embeddings
    embed_layernorm add_qkv_bias use_rope_scaling"""
_ONLY = {
    "num_experts": None,
    "squared_relu": False,
    "qk_layernorm": False,
    "apply_layernorm_1p": False,
    "rotary_interleaved": False,
    "rotary_seq_len_interpolation_factor": None,
    "apply_residual_connection_post_layernorm": False,
    "multi_latent_attention": False,
}


def find_ranks(folder: Path) -> Ranks:
    """The files of a folder by stage and tensor rank; none where it is no checkpoint."""
    found = {}
    for entry in folder.iterdir():
        if match := _RANK.fullmatch(entry.name):
            names = [entry] if match[3] else [entry / name for name in _FILES]
            for path in filter(lambda path: path.is_file(), names):
                found[int(match[2] or 0), int(match[1])] = path
    return found


class MegatronWeights(NeoxWeights):
    """The weights of a checkpoint, joined over tensor ranks and pipeline stages.

    ``config``, a YAML or a JSON of Megatron's flags, says the shape of the model; without it the
    arguments in the files do. Rows of the vocabulary from ``vocab_size`` on are padding.
    """

    def __init__(
        self, folder: Path, ranks: Ranks, config: str | None, vocab_size: int | None
    ) -> None:
        stages, tensors = (1 + max(rank[i] for rank in ranks) for i in range(2))
        if len(ranks) != stages * tensors:
            raise FormatError(
                f"{folder}: {len(ranks)} files are not those of {stages} stages x {tensors} tensor "
                "ranks"
            )
        first = load_file(ranks[0, 0])
        _check_version(ranks[0, 0], first)
        said = _arguments(ranks[0, 0], first.get("args")) if config is None else [config]
        resolved, _ = resolve([*said, *UNSPLIT])
        self._gated = resolved.activation == "swiglu"
        model = ModelConfig.of(resolved, vocab_size or 0)
        super().__init__(folder, model, self._by_name(ranks, stages, tensors))

    def _by_name(self, ranks: Ranks, stages: int, tensors: int) -> dict[str, list[Tensor]]:
        """Global name -> the parts of its tensor, by tensor rank. Maps the files."""
        found: dict[str, list[Tensor]] = {}
        before = 0
        for stage in range(stages):
            seen = set()
            for rank in range(tensors):
                path = ranks[stage, rank]
                for key, part in _tensors(path, load_file(path)):
                    name = _name(path, key, before)
                    parts = found.setdefault(name, [])
                    if len(parts) == rank:  # else an earlier stage has it too
                        parts.append(self._in_order(name, part))
                    if name.startswith("blocks."):
                        seen.add(name.split(".")[1])
            before += len(seen)
        return found

    def _in_order(self, name: str, part: Tensor) -> Tensor:
        """The rows of gate and up in turn, as they are here; Megatron has all of gate first."""
        if not (self._gated and ".mlp.up." in name):
            return part
        return torch.stack(part.chunk(2), 1).flatten(0, 1)


def _check_version(path: Path, values: dict[str, Any]) -> None:
    version = values.get("checkpoint_version", 3.0)
    if not isinstance(version, (int, float)) or version < 2:
        raise UsageError(
            f"{path}: checkpoint_version {brief(version)} is not read: before 2 Megatron had "
            "queries, keys and values in another order; load and save it with a newer Megatron"
        )


def _arguments(path: Path, args: Any) -> list[str]:
    """The flags of the arguments that a file has. UsageError where there are none."""
    known = args if isinstance(args, dict) else getattr(args, "__dict__", {})
    if not known.get("num_layers"):
        raise UsageError(f"{path}: does not say which model it is of: add --config")
    for name, only in _ONLY.items():
        if known.get(name) not in (None, False, only):
            raise UsageError(f"{path}: {name} {brief(known[name])}: the models here have none such")
    flags = []
    for name in _SETTINGS.split():
        if known.get(name) is not None:
            flags += [f"--{name}", str(known[name])]
    flags += [f"--{name}" for name in _FLAGS.split() if known.get(name)]
    if known.get("group_query_attention"):
        flags += ["--num_query_groups", str(known.get("num_query_groups"))]
    if known.get("add_bias_linear") is False:
        flags.append("--disable_bias_linear")
    elif "bias_gelu_fusion" in known and not known.get("swiglu"):
        fused = known["bias_gelu_fusion"]
        flags.append("--bias_gelu_fusion" if fused else "--no_bias_gelu_fusion")
    return flags


def _tensors(path: Path, values: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a rank, under the names of nested dictionaries joined by dots."""
    if "model0" in values:
        raise UsageError(f"{path}: interleaved stages are not read: save without them")
    model = values.get("model", values.get("module"))
    if not isinstance(model, dict):
        raise FormatError(f"{path}: has no model")
    stack: list[tuple[str, Any]] = [("", model)]
    while stack:
        prefix, inner = stack.pop()
        for key, value in inner.items():
            if isinstance(value, dict):
                stack.append((f"{prefix}{key}.", value))
            elif isinstance(value, torch.Tensor) and not IGNORED.search(str(key)):
                yield f"{prefix}{key}", value


def _name(path: Path, key: str, before: int) -> str:
    """Our name of a tensor; ``before`` blocks are in earlier stages. FormatError for none."""
    short = _BLOCKS.sub("", key)
    match = _LAYER.fullmatch(short)
    module, _, kind = (match[2] if match else short).rpartition(".")
    if kind.startswith("layer_norm_") and module in _FUSED:
        ours, kind = _FUSED[module], kind.removeprefix("layer_norm_")
    else:
        ours = MEGATRON.get(module, "")
    if not ours or kind not in ("weight", "bias"):
        raise FormatError(f"{path}: the tensor {key} has no place in the models here")
    return f"blocks.{before + int(match[1])}.{ours}.{kind}" if match else f"{ours}.{kind}"
