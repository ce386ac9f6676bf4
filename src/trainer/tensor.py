"""Tensor parallelism: linear layers that are split; between them the sequence may be split too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .parallel import Group, Topology, gathered, own_part, summed, summed_part

if TYPE_CHECKING:
    from collections.abc import Callable


def _summed(x: Tensor, group: Group | None) -> Tensor:
    return x.view_as(x) if group is None else summed(x, group)


class _Sum(torch.autograd.Function):
    """A sum over one group in the forward pass, and over another group in the backward pass.

    A group of None means that nothing is summed there.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Group | None, back: Group | None) -> Tensor:
        ctx.back = back
        return _summed(x, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _summed(grad, ctx.back), None, None


def reduce(x: Tensor, group: Group | None) -> Tensor:
    """The sum of ``x`` over tensor ranks; the gradient, the same on all ranks, is not summed."""
    return x if group is None else _Sum.apply(x, group, None)  # type: ignore[no-untyped-call]


def shared(x: Tensor, group: Group | None) -> Tensor:
    """``x``, which is the same on all tensor ranks, with a gradient that is summed over them.

    For an input that each rank gives to its own part of a layer.
    """
    return x if group is None else _Sum.apply(x, None, group)  # type: ignore[no-untyped-call]


class _Parts(torch.autograd.Function):
    """From parts of the sequence to the whole; or from the whole on each rank to parts of their
    sum.

    Each is the backward pass of the other: the gradient of a gathered tensor is summed and split,
    and the reverse.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, gather: bool) -> Tensor:
        ctx.group, ctx.gather = group, gather
        return gathered(x, group) if gather else summed_part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        back = summed_part(grad, ctx.group) if ctx.gather else gathered(grad, ctx.group)
        return back, None, None


def common(weight: Tensor, topology: Topology) -> Tensor:
    """A weight that is the same on all tensor ranks, each of which uses it for its part of a layer.

    Its gradient is summed over them: here, or, if the sequence is split, together with the
    gradients of all such weights after the backward pass.
    """
    return weight if topology.split_sequence else shared(weight, topology.tensor_group)


def enter(x: Tensor, topology: Topology) -> Tensor:
    """The input [B, S, H] of a split layer, from the tensor that this rank has between layers."""
    if topology.split_sequence:
        return _Parts.apply(x, topology.tensor_group, True)  # type: ignore[no-any-return, no-untyped-call]
    return shared(x, topology.tensor_group)


def leave(x: Tensor, topology: Topology) -> Tensor:
    """The sum of the outputs of a split layer, in the form that this rank has between layers."""
    if topology.split_sequence:
        return _Parts.apply(x, topology.tensor_group, False)  # type: ignore[no-any-return, no-untyped-call]
    return reduce(x, topology.tensor_group)


def sequence_part(x: Tensor, topology: Topology) -> Tensor:
    """The part that this tensor rank has between layers, of ``x`` [B, S, ...], which all have."""
    return own_part(x, 1 if topology.split_sequence else None, topology)


def sharded(topology: Topology, dim: int, *shape: int) -> nn.Parameter:
    """An empty parameter for this tensor rank's part of ``shape``, split along ``dim``."""
    local = [n // topology.tensor_size if i == dim else n for i, n in enumerate(shape)]
    parameter = nn.Parameter(torch.empty(local))
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]  # DeepSpeed's norm asks
    return parameter


class _Linear(nn.Module):
    weight: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.product: Callable[..., Tensor] | None = None  # used for functional.linear

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x`` times the weight, and the bias."""
        return (self.product or functional.linear)(x, self.weight, bias)


class ColumnLinear(_Linear):
    """A linear layer whose outputs are split: [..., inputs] -> [..., outputs / tensor_size]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, outputs, inputs)
        self.bias = sharded(topology, 0, outputs) if bias else None
        self.topology = topology

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(enter(x, self.topology), self.bias)


class RowLinear(_Linear):
    """A linear layer whose inputs are split: [..., inputs / tensor_size] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 1, outputs, inputs)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.topology = topology

    def forward(self, x: Tensor) -> Tensor:
        if self.topology.tensor_group is None:
            return self.multiply(x, self.bias)
        y = leave(self.multiply(x, None), self.topology)
        return y if self.bias is None else y + self.bias.to(y.dtype)


# The two ends of a model, split over the vocabulary: word embedding, and head with its loss.

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
    """The local row of each token, and whether this rank has the token (otherwise the row is 0)."""
    row = tokens - first
    mine = (row >= 0) & (row < rows)
    return row * mine, mine


def divisor(weight: Tensor) -> Tensor:
    """The divisor of a sum of weighted losses: the sum of weights, or 1 if nothing counts."""
    return weight.where(weight > 0, 1)


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy, float32 [], with positions weighted by ``mask``; 0 if all weights are 0.

    ``hidden`` [N, H] has the type of the products, ``weight`` [V / tensor_size, H] is the head,
    ``labels`` int64 [N], ``mask`` float32 [N]. Rows of the whole vocabulary from ``valid`` on are
    padding and have no probability. The caller has to sum the gradient of ``hidden`` over tensor
    ranks. ``softmax`` is the function below, compiled or not. Logits exist for one chunk of
    positions at a time: with ``learn`` their gradients are computed in the forward pass, so that no
    logits are computed twice.
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
    """The cross entropy float32 [n, 1], and mask times probabilities, shaped like ``logits`` [n,
    v].

    ``row``, ``mine`` and ``mask`` are [n, 1]; logits from column ``padding`` on do not count.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    x[:, padding:] = -torch.inf
    top = x.amax(1, keepdim=True)
    x.sub_(top if group is None else summed(top, group, "max"))
    label = x.gather(1, row).where(mine, 0)
    norm = x.exp_().sum(1, keepdim=True)
    if group is not None:
        label, norm = summed(label, group), summed(norm, group)
    return norm.log() - label, x.mul_(mask / norm).to(logits.dtype)
