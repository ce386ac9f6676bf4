"""The decoder layer: attention, MLP, rotary positions, document masks, recomputed activations."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tokpack.errors import option

from .config.model import LLAMA_3_POSITIONS
from .tensor import ColumnLinear, RowLinear, common, sequence_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .config.model import ModelConfig
    from .parallel import Topology


Rotary = tuple[Tensor, Tensor]  # cos and sin, float32 [B, 1, S, rotary width]
Seeds = tuple[Tensor, Tensor]  # int64 [], of the dropout inside attention and after it


class Attention(nn.Module):
    """Causal self-attention. Rows of ``qkv`` are [group, (its queries, key, value), width]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.width, self.dropout = model.head_width, model.attention_dropout
        self.queries = model.num_attention_heads // model.num_query_groups
        rows = (model.num_attention_heads + 2 * model.num_query_groups) * self.width
        self.qkv = ColumnLinear(model.hidden_size, rows, model.qkv_bias, topology)
        self.q_norm = HeadNorm(model, topology) if model.qk_layernorm else None
        self.k_norm = HeadNorm(model, topology) if model.qk_layernorm else None
        heads = model.attention_width
        self.out = RowLinear(heads, model.hidden_size, model.add_bias_linear, topology)

    def forward(self, x: Tensor, rotary: Rotary | None, documents: Any) -> Tensor:
        parts = self.qkv(x).unflatten(2, (-1, self.queries + 2, self.width))
        parts = parts.split((self.queries, 1, 1), 3)
        q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in parts)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = _rotate(q, *rotary), _rotate(k, *rotary)
        grouped = self.queries > 1
        if documents is None or isinstance(documents, Tensor):
            drop = self.dropout if self.training else 0.0
            y = functional.scaled_dot_product_attention(
                q, k, v, documents, drop, documents is None, enable_gqa=grouped
            )
        else:
            from torch.nn.attention.flex_attention import flex_attention  # slow to import

            y = flex_attention(q, k, v, block_mask=documents, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class HeadNorm(nn.Module):
    """A norm over the width of each head. Every tensor rank has all of its weights, and uses them
    for its own heads.
    """

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.epsilon, self.topology = model.layernorm_epsilon, topology
        self.weight = nn.Parameter(torch.empty(model.head_width))
        layer_norm = model.normalization == "LayerNorm"
        self.bias = nn.Parameter(torch.empty(model.head_width)) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        shape, weight = self.weight.shape, common(self.weight, self.topology)
        y = x.to(weight.dtype)
        if self.bias is None:
            y = functional.rms_norm(y, shape, weight, self.epsilon)
        else:
            bias = common(self.bias, self.topology)
            y = functional.layer_norm(y, shape, weight, bias, self.epsilon)
        return y.to(x.dtype)


class MLP(nn.Module):
    """Two linear layers. With swiglu the rows of ``up`` are [width, (gate, up)]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.activation, wide = model.activation, model.ffn_hidden_size
        rows = 2 * wide if model.activation == "swiglu" else wide
        self.up = ColumnLinear(model.hidden_size, rows, model.add_bias_linear, topology)
        self.down = RowLinear(wide, model.hidden_size, model.add_bias_linear, topology)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.activation == "swiglu":
            gate, up = y.unflatten(-1, (-1, 2)).unbind(-1)
            y = functional.silu(gate) * up
        else:
            y = functional.gelu(y, approximate="tanh" if self.activation == "gelu" else "none")
        return self.down(y)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """One pre-norm decoder layer: [B, S, H] -> [B, S, H]."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.parallel, self.dropout = model.parallel_residual, model.hidden_dropout
        self.topology = topology
        self.reseed: Callable[[Tensor], object] = reseed
        self.attention_norm = norm_of(model)
        self.attention = Attention(model, topology)
        self.mlp_norm = norm_of(model)
        self.mlp = MLP(model, topology)

    def forward(
        self, x: Tensor, rotary: Rotary | None, documents: Any, seeds: Seeds | None
    ) -> Tensor:
        """The layer's output. ``documents`` is a document_mask or None; ``seeds`` decide what
        dropout drops.
        """
        if seeds is not None:
            self.reseed(seeds[0])
        attended = self.attention(self.attention_norm(x), rotary, documents)
        if seeds is not None:
            self.reseed(seeds[1])
        drop = self.dropout if self.training else 0.0
        attended = dropout(attended, drop, self.topology)
        if not self.parallel:
            x = x + attended
        y = dropout(self.mlp(self.mlp_norm(x)), drop, self.topology)
        return y + attended + x if self.parallel else y + x


def dropout(x: Tensor, share: float, topology: Topology) -> Tensor:
    """Dropout that drops the same elements whether or not the sequence is split."""
    if not share:
        return x
    if not topology.split_sequence:
        return functional.dropout(x, share)
    whole = x.new_ones((x.shape[0], x.shape[1] * topology.tensor_size, x.shape[2]))
    return x * sequence_part(functional.dropout(whole, share), topology)


class RMSNorm(nn.RMSNorm):
    """RMSNorm in fp32, the type of its weight: with two types torch warns and uses no fused
    kernel.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def norm_of(model: ModelConfig) -> nn.Module:
    """A fresh norm over the hidden size."""
    kind = nn.LayerNorm if model.normalization == "LayerNorm" else RMSNorm
    return kind(model.hidden_size, eps=model.layernorm_epsilon)


def random_seed(*key: object) -> int:
    """A seed computed from ``key`` alone, so it is the same on every machine."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def reseed(seed: Tensor) -> None:
    """Seed the next dropout, so that a resumed run and a recomputation drop the same elements."""
    torch.manual_seed(int(seed))


def block_seeds(key: tuple[object, ...], tensor_rank: int) -> Seeds:
    """The seeds of a block: for dropout inside attention another one on each tensor rank, for
    dropout after it the same on all.

    They are tensors: with plain integers a compiled block would be compiled again for each new
    seed.
    """
    seeds = (random_seed(*key, "attention", tensor_rank), random_seed(*key, "hidden"))
    return torch.tensor(seeds[0]), torch.tensor(seeds[1])


def rotary_of(positions: Tensor, model: ModelConfig) -> Rotary:
    """Cosines and sines for positions int64 [B, S], over the part of each head that rope
    rotates.
    """
    width = int(model.head_width * model.rotary_percent)
    steps = torch.arange(0, width, 2, device=positions.device) / width
    speeds = 1.0 / model.rotary_base**steps
    if model.use_rope_scaling:
        # Frequencies that turn less than once within Llama 3's positions are divided by the factor,
        # those that turn more than four times are kept, and those between are interpolated.
        turns = LLAMA_3_POSITIONS * speeds / (2 * math.pi)
        kept = ((turns - 1) / 3).clamp(0, 1)
        speeds = speeds * ((1 - kept) / model.rope_scaling_factor + kept)
    angles = positions[:, None, :, None] * speeds
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first part of each head's width, paired by halves as in GPT-NeoX."""
    turned, rest = x.tensor_split((cos.shape[-1],), dim=-1)
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned.to(x.dtype), rest), dim=-1)


def recomputed(run: Callable[..., Tensor], *x: Any) -> Tensor:
    """The result of ``run(*x)``, keeping only ``x`` for the backward pass, which runs it again."""
    return checkpoint(run, *x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


# Masks of attention inside documents, and the kernels that compute attention.

BLOCK = 128  # positions of a block of FlexAttention
FAST = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "FlexAttention")


def document_mask(cu_seqlens: Tensor, length: int, flex: bool) -> Any:
    """The mask of causal attention inside documents that begin at ``cu_seqlens`` int32 [B, S + 1].

    With ``flex`` a BlockMask of FlexAttention, else bool [B, 1, S, S]: True where a query may look.
    """
    place = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    place = place.repeat(len(cu_seqlens), 1)
    document = torch.searchsorted(cu_seqlens.contiguous(), place, right=True)
    if flex:
        return _block_mask(document)
    return (document[:, :, None] == document[:, None, :]).tril()[:, None]


def _block_mask(document: Tensor) -> Any:
    """The BlockMask of positions whose documents are ``document`` int64 [B, S], never decreasing
    along S.

    create_block_mask compares all S x S pairs. Here the first and the last document of each block
    suffice: queries of a block see an earlier block of keys if the last document of the keys is
    also the first document of the queries.
    """
    from torch.nn.attention.flex_attention import BlockMask

    def allowed(b: Tensor, _: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document[b, q] == document[b, k])

    length = document.shape[1]
    begin = torch.arange(0, length, BLOCK, device=document.device)
    first, last = document[:, begin], document[:, (begin + BLOCK - 1).clamp(max=length - 1)]
    earlier = begin[:, None] > begin  # [query block, key block]
    full = earlier & (last[:, :, None] == first[:, None, :])
    if length % BLOCK:
        full[:, -1] = False  # the last block has rows beyond the end, which see no key
    some = earlier & (first[:, :, None] == last[:, None, :])
    some |= begin[:, None] == begin
    return BlockMask.from_kv_blocks(
        *_listed(some & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(length, length),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The indices and the counts of a BlockMask, from rows of bool [B, n, n].

    Indices are int32 [B, 1, n, n], columns that are True first; counts, of those that are True, are
    int32 [B, 1, n].
    """
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


def fastest_kernel(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which torch prefers the fastest kernel of attention for the device.

    On the GPUs that cuDNN's kernel is made for, Hopper and later, that is the first choice.
    """
    names = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        names.insert(0, "CUDNN_ATTENTION")
    return sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True)


def described(kernel: str, device: torch.device) -> str:
    """The kernel as a run's first lines name it, with a warning if it is a slow one on a GPU."""
    if device.type != "cuda" or kernel in FAST:
        return f"attention: {kernel}"
    return (
        f"warning: attention: {kernel}, which is slow on this GPU: fast kernels need bf16 or fp16, "
        "heads of at most 128 and, if it stays inside documents, attention_dropout 0, heads of at "
        f"least 16 and no {option('compile', False)}"
    )
