"""Which keys a query sees, and by which kernel attention is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .model import Stage

BLOCK = 128  # positions of a block of FlexAttention
FAST = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "FlexAttention")


def document_mask(cu_seqlens: Tensor, length: int, flex: bool) -> Any:
    """Causal attention inside documents that begin at ``cu_seqlens`` int32 [B, S + 1].

    A BlockMask of FlexAttention, or bool [B, 1, S, S].
    """
    place = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    place = place.repeat(len(cu_seqlens), 1)
    document = torch.searchsorted(cu_seqlens.contiguous(), place, right=True)
    if flex:
        return _block_mask(document)
    return (document[:, :, None] == document[:, None, :]).tril()[:, None]


def _block_mask(document: Tensor) -> Any:
    """The BlockMask of positions whose documents, int64 [B, S], do not fall.

    What create_block_mask finds in all S x S pairs follows from the ends of blocks: documents that
    begin before a block of queries and reach into it.
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
        full[:, -1] = False  # it has rows behind the end, which see nothing
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
    """How many of bool [B, n, n] are in a row, int32 [B, 1, n]; which, in front, [B, 1, n, n]."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


def fastest_kernel(device: torch.device) -> AbstractContextManager[Any]:
    """Inside of it torch takes the fastest kernel that can do what is asked, not the first one.

    cuDNN's goes first where the GPU is of the generation that it is made for (Hopper and later).
    """
    names = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        names.insert(0, "CUDNN_ATTENTION")
    return sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True)


def described(kernel: str, device: torch.device) -> str:
    """What a run says of the kernel; a warning where it is a slow one of a GPU."""
    if device.type != "cuda" or kernel in FAST:
        return f"attention: {kernel}"
    return (
        f"warning: attention: {kernel}, which is slow on this GPU: fast kernels want bf16 or fp16, "
        "heads of at most 128 and, where it stays inside documents, attention_dropout 0, heads of "
        "at least 16 and no --no-compile"
    )


def kernel_of(stage: Stage, dtype: torch.dtype, samples: int, documents: bool) -> str:
    """The kernel that attention of ``samples`` samples, with documents or not, is computed by."""
    if documents and stage.flex:
        return "FlexAttention"
    model, topology = stage.model, stage.topology
    heads = (model.num_attention_heads, model.num_query_groups, model.num_query_groups)
    q, k, v = (
        torch.empty(
            (samples, n // topology.tensor_size, model.seq_length, model.head_width),
            dtype=dtype,
            device=topology.device,
            requires_grad=True,
        )
        for n in heads
    )
    mask = None
    if documents:
        shape = (samples, 1, model.seq_length, model.seq_length)
        mask = torch.empty(shape, dtype=torch.bool, device=topology.device)
    grouped = model.num_query_groups < model.num_attention_heads
    with fastest_kernel(topology.device):
        choice = torch._fused_sdp_choice(
            q, k, v, mask, model.attention_dropout, mask is None, enable_gqa=grouped
        )
    return SDPBackend(choice).name
