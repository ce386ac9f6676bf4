"""The two ends of a model, split over the vocabulary: word embedding, and head with its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokpack.trainer.collectives import Group, largest, summed
from tokpack.trainer.tensor import leave, sharded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.trainer.parallel import Topology

CHUNKS = {"cpu": 1024, "cuda": 8192}  # rows of logits that exist at a time


class VocabWeight(nn.Module):
    """Rows of the vocabulary, split: int64 [...] -> float32 [..., width]; also a head's weight."""

    def __init__(self, rows: int, width: int, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, rows, width)
        self.first = topology.tensor_rank * self.weight.shape[0]
        self.topology = topology

    def forward(self, tokens: Tensor) -> Tensor:
        if self.topology.tensor_group is None:
            return functional.embedding(tokens, self.weight)
        row, mine = _locate(tokens, self.first, self.weight.shape[0])
        return leave(functional.embedding(row, self.weight) * mine.unsqueeze(-1), self.topology)


def _locate(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """The local row of each token, and whether it lies here (elsewhere: row 0)."""
    row = tokens - first
    mine = (row >= 0) & (row < rows)
    return row * mine, mine


def divisor(weight: Tensor) -> Tensor:
    """What a sum of weighted losses is divided by: its weight, or 1 where nothing counts."""
    return weight.where(weight > 0, 1)


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy, float32 [], in which ``mask`` weighs positions; 0 where all weigh 0.

    ``hidden`` [N, H], whose type is that of the products, ``weight`` [V / tensor_size, H] the head,
    ``labels`` int64 [N], ``mask`` float32 [N]. Rows of the whole vocabulary from ``valid`` on are
    padding and have no probability. The caller has to sum the gradient of ``hidden`` over tensor
    ranks. ``softmax`` is the one below, compiled or not. Logits exist for a chunk of positions at a
    time: with ``learn`` gradients are computed in the forward pass, so nothing is done twice.
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor,
        valid: int,
        topology: Topology,
        softmax: Callable[..., tuple[Tensor, Tensor]],
        learn: bool,
    ) -> Tensor:
        group, first = topology.tensor_group, topology.tensor_rank * weight.shape[0]
        row, mine = _locate(labels, first, weight.shape[0])
        head = weight.to(hidden.dtype)
        if learn:
            grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        loss, count = torch.zeros((), device=hidden.device), divisor(mask.sum())
        rows, padding = CHUNKS[hidden.device.type], max(0, valid - first)
        for part in (slice(begin, begin + rows) for begin in range(0, len(hidden), rows)):
            index, here, weights = row[part, None], mine[part, None], mask[part, None]
            logits = hidden[part] @ head.T
            losses, step = softmax(logits, index, here, weights, padding, group)
            loss += (losses * weights).sum()
            if learn:
                label = (torch.expm1(-losses) * weights).to(step.dtype)  # its probability - 1
                step.scatter_(1, index, label.where(here, step.gather(1, index)))
                grad_hidden[part] = step @ head
                grad_weight += step.T @ hidden[part]
        if learn:
            ctx.save_for_backward(grad_hidden, grad_weight, count)
        return loss / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, count = ctx.saved_tensors
        scale = grad / count
        return grad_hidden * scale, grad_weight * scale, *[None] * 6


def softmax(  # noqa: PLR0917
    logits: Tensor, row: Tensor, mine: Tensor, mask: Tensor, padding: int, group: Group | None
) -> tuple[Tensor, Tensor]:
    """Cross entropy float32 [n, 1], and mask times probabilities, like ``logits`` [n, v].

    ``row``, ``mine`` and ``mask`` are [n, 1]; logits from column ``padding`` on do not count.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    x[:, padding:] = -torch.inf
    top = x.amax(1, keepdim=True)
    x.sub_(top if group is None else largest(top, group))
    label = x.gather(1, row).where(mine, 0)
    norm = x.exp_().sum(1, keepdim=True)
    if group is not None:
        label, norm = summed(label, group), summed(norm, group)
    return norm.log() - label, x.mul_(mask / norm).to(logits.dtype)
