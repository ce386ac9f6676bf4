"""The two ends of a model, split over the vocabulary: word embedding, and head with its loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from .parallel import Group, Topology, reduce, sharded, total

CHUNK = 1024  # rows of logits that exist at a time


class VocabWeight(nn.Module):
    """Rows of the vocabulary, split: int64 [...] -> float32 [..., width]; also a head's weight."""

    def __init__(self, rows: int, width: int, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, rows, width)
        self.first = topology.tensor_rank * self.weight.shape[0]
        self.group = topology.tensor_group

    def forward(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            return functional.embedding(tokens, self.weight)
        row, mine = _locate(tokens, self.first, self.weight.shape[0])
        return reduce(functional.embedding(row, self.weight) * mine.unsqueeze(-1), self.group)


def _locate(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """The local row of each token, and whether it lies here (elsewhere: row 0)."""
    row = tokens - first
    mine = (row >= 0) & (row < rows)
    return row * mine, mine


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy, float32 [], over the positions that ``mask`` counts.

    ``hidden`` [N, H] decides the type of the products, ``weight`` [V / tensor_size, H] is the head,
    ``labels`` int64 [N], ``mask`` float32 [N]. Rows of the whole vocabulary from ``valid`` on are
    padding and take no probability. Logits exist for CHUNK positions at a time: gradients are made
    on the way forward, so nothing is computed twice.
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
    ) -> Tensor:
        ctx.group, first = topology.tensor_group, topology.tensor_rank * weight.shape[0]
        row, mine = _locate(labels, first, weight.shape[0])
        head, learn = weight.to(hidden.dtype), any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden) if learn else hidden
        grad_weight = torch.zeros_like(weight) if learn else weight
        loss, count = torch.zeros((), device=hidden.device), mask.sum().clamp(min=1)
        for begin in range(0, len(hidden), CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = (hidden[part] @ head.T).float()
            logits[:, max(0, valid - first) :] = -torch.inf
            losses = _softmax_(logits, row[part], mine[part], ctx.group)
            loss += (losses * mask[part]).sum()
            if learn:
                logits.scatter_add_(1, row[part, None], -mine[part, None].float())
                step = logits.mul_(mask[part, None]).to(hidden.dtype)
                grad_hidden[part] = step @ head
                grad_weight += step.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight, count)
        return loss / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, count = ctx.saved_tensors
        scale = grad / count
        return total(grad_hidden * scale, ctx.group), grad_weight * scale, None, None, None, None


def _softmax_(logits: Tensor, row: Tensor, mine: Tensor, group: Group | None) -> Tensor:
    """Turn logits into probabilities over all tensor ranks; the cross entropy of each row."""
    top = logits.amax(1, keepdim=True)
    if group is not None:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    logits.sub_(top)
    label = total(logits.gather(1, row[:, None])[:, 0].where(mine, 0), group)
    norm = total(logits.exp_().sum(1, keepdim=True), group)
    logits.div_(norm)
    return norm[:, 0].log() - label
