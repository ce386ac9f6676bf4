"""What tensor ranks share: linear layers that are split, and between them perhaps the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .collectives import Group, gathered, summed, summed_part
from .parallel import Topology, own_part


def _summed(x: Tensor, group: Group | None) -> Tensor:
    return x.view_as(x) if group is None else summed(x, group)


class _Sum(torch.autograd.Function):
    """A sum over one group forward and over another one backward; None: over nobody."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Group | None, back: Group | None) -> Tensor:
        ctx.back = back
        return _summed(x, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _summed(grad, ctx.back), None, None


def reduce(x: Tensor, group: Group | None) -> Tensor:
    """The sum of ``x`` over tensor ranks, of which each then has its own copy."""
    return x if group is None else _Sum.apply(x, group, None)  # type: ignore[no-untyped-call]


def shared(x: Tensor, group: Group | None) -> Tensor:
    """``x`` that all tensor ranks have, for their own parts of a layer: they sum its gradient."""
    return x if group is None else _Sum.apply(x, None, group)  # type: ignore[no-untyped-call]


def _gathered(x: Tensor, group: Group) -> Tensor:
    """The whole [B, S, H] of this rank's part [B, S / tensor_size, H]."""
    return gathered(x.movedim(1, 0), group).movedim(0, 1)


def _summed_part(x: Tensor, group: Group) -> Tensor:
    """This rank's part [B, S / tensor_size, H] of the sum of [B, S, H] over all."""
    return summed_part(x.movedim(1, 0), group).movedim(0, 1)


class _Gather(torch.autograd.Function):
    """Parts of the sequence gathered; on the way back what the ranks have learned is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed_part(grad, ctx.group), None


class _SumPart(torch.autograd.Function):
    """A sum of which each rank keeps a part of the sequence; the way back gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _summed_part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.group), None


def common(weight: Tensor, topology: Topology) -> Tensor:
    """A weight that all tensor ranks have, for their own parts of a layer: they sum its gradient.

    Where the sequence is split, the gradients of all such weights are summed behind a step.
    """
    return weight if topology.split_sequence else shared(weight, topology.tensor_group)


def enter(x: Tensor, topology: Topology) -> Tensor:
    """What tensor ranks have between layers, for their own parts of a layer: [B, S, H]."""
    if topology.split_sequence:
        return _Gather.apply(x, topology.tensor_group)  # type: ignore[no-any-return, no-untyped-call]
    return shared(x, topology.tensor_group)


def leave(x: Tensor, topology: Topology) -> Tensor:
    """The sum of what tensor ranks' parts of a layer give, as they have it between layers."""
    if topology.split_sequence:
        return _SumPart.apply(x, topology.tensor_group)  # type: ignore[no-any-return, no-untyped-call]
    return reduce(x, topology.tensor_group)


def sequence_part(x: Tensor, topology: Topology) -> Tensor:
    """What this tensor rank has between layers of [B, S, ...] that all of them have."""
    return own_part(x, 1 if topology.split_sequence else None, topology)


def sharded(topology: Topology, dim: int, *shape: int) -> nn.Parameter:
    """An empty parameter: this tensor rank's part of ``shape``, which is split along ``dim``."""
    local = [n // topology.tensor_size if i == dim else n for i, n in enumerate(shape)]
    parameter = nn.Parameter(torch.empty(local))
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]  # DeepSpeed's norm asks
    return parameter


class _Linear(nn.Module):
    weight: nn.Parameter
    cast: Tensor | None = None  # the weight in the type of products, where an engine keeps it

    @property
    def working(self) -> Tensor:
        """What products are computed with."""
        return self.weight if self.cast is None else self.cast


class ColumnLinear(_Linear):
    """A linear layer whose outputs are split: [..., inputs] -> [..., outputs / tensor_size]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, outputs, inputs)
        self.bias = sharded(topology, 0, outputs) if bias else None
        self.topology = topology

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(enter(x, self.topology), self.working, self.bias)


class RowLinear(_Linear):
    """A linear layer whose inputs are split: [..., inputs / tensor_size] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 1, outputs, inputs)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.topology = topology

    def forward(self, x: Tensor) -> Tensor:
        if self.topology.tensor_group is None:
            return functional.linear(x, self.working, self.bias)
        y = leave(functional.linear(x, self.working), self.topology)
        return y if self.bias is None else y + self.bias.to(y.dtype)
