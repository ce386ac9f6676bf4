"""Masks of attention inside documents, and the kernels that compute attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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
    """The BlockMask of positions in ``document`` int64 [B, S], which never decreases along S.

    create_block_mask looks at all S x S pairs. Here the first and the last document of each block
    decide: a block of queries sees an earlier block of keys where that one's last document is its
    own first one.
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
    """Rows of bool [B, n, n] as BlockMask has them: the True columns first, int32 [B, 1, n, n].

    And how many those are, int32 [B, 1, n].
    """
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


def fastest_kernel(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which torch prefers the faster kernels of attention.

    cuDNN's is the first choice on the GPUs that it is made for, Hopper and later.
    """
    names = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        names.insert(0, "CUDNN_ATTENTION")
    return sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True)


def described(kernel: str, device: torch.device) -> str:
    """What a run says of its kernel: a warning where it is a slow one on a GPU."""
    if device.type != "cuda" or kernel in FAST:
        return f"attention: {kernel}"
    return (
        f"warning: attention: {kernel}, which is slow on this GPU: fast kernels want bf16 or fp16, "
        "heads of at most 128 and, where it stays inside documents, attention_dropout 0, heads of "
        "at least 16 and no --no-compile"
    )
