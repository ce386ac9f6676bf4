"""Tensor parallelism: linear layers that are split, and between them perhaps the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokpack.trainer.collectives import Group, gathered, summed, summed_part
from tokpack.trainer.parallel import Topology, own_part

if TYPE_CHECKING:
    from collections.abc import Callable


def _summed(x: Tensor, group: Group | None) -> Tensor:
    return x.view_as(x) if group is None else summed(x, group)


class _Sum(torch.autograd.Function):
    """A sum over one group in the forward pass and over another in the backward pass.

    Without a group nothing is summed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Group | None, back: Group | None) -> Tensor:
        ctx.back = back
        return _summed(x, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _summed(grad, ctx.back), None, None


def reduce(x: Tensor, group: Group | None) -> Tensor:
    """The sum of ``x`` over tensor ranks; the gradient of each rank's copy is not summed."""
    return x if group is None else _Sum.apply(x, group, None)  # type: ignore[no-untyped-call]


def shared(x: Tensor, group: Group | None) -> Tensor:
    """``x``, which is the same on all tensor ranks; its gradient is summed over them.

    For what each rank gives to its own part of a layer.
    """
    return x if group is None else _Sum.apply(x, None, group)  # type: ignore[no-untyped-call]


def _gathered(x: Tensor, group: Group) -> Tensor:
    """The whole [B, S, H] of this rank's part [B, S / tensor_size, H]."""
    return gathered(x.movedim(1, 0), group).movedim(0, 1)


def _summed_part(x: Tensor, group: Group) -> Tensor:
    """This rank's part [B, S / tensor_size, H] of the sum of [B, S, H] over all."""
    return summed_part(x.movedim(1, 0), group).movedim(0, 1)


class _Parts(torch.autograd.Function):
    """From parts of the sequence to the whole, or from the whole to parts of a sum over ranks.

    Each is the other's way back: the gradient of what was gathered is summed, and the reverse.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, gather: bool) -> Tensor:
        ctx.group, ctx.gather = group, gather
        return _gathered(x, group) if gather else _summed_part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        back = _summed_part(grad, ctx.group) if ctx.gather else _gathered(grad, ctx.group)
        return back, None, None


def common(weight: Tensor, topology: Topology) -> Tensor:
    """A weight that is the same on all tensor ranks, and used by each for its part of a layer.

    Its gradient is summed over them: here, or, where the sequence is split, with those of all such
    weights after the backward pass.
    """
    return weight if topology.split_sequence else shared(weight, topology.tensor_group)


def enter(x: Tensor, topology: Topology) -> Tensor:
    """The input [B, S, H] of a split layer, from what a tensor rank has between layers."""
    if topology.split_sequence:
        return _Parts.apply(x, topology.tensor_group, True)  # type: ignore[no-any-return, no-untyped-call]
    return shared(x, topology.tensor_group)


def leave(x: Tensor, topology: Topology) -> Tensor:
    """The sum of the outputs of a split layer, as a tensor rank has it between layers."""
    if topology.split_sequence:
        return _Parts.apply(x, topology.tensor_group, False)  # type: ignore[no-any-return, no-untyped-call]
    return reduce(x, topology.tensor_group)


def sequence_part(x: Tensor, topology: Topology) -> Tensor:
    """Of ``x`` [B, S, ...] on all tensor ranks, the part that this one has between layers."""
    return own_part(x, 1 if topology.split_sequence else None, topology)


def sharded(topology: Topology, dim: int, *shape: int) -> nn.Parameter:
    """An empty parameter: this tensor rank's part of ``shape``, which is split along ``dim``."""
    local = [n // topology.tensor_size if i == dim else n for i, n in enumerate(shape)]
    parameter = nn.Parameter(torch.empty(local))
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]  # DeepSpeed's norm asks
    return parameter


class _Linear(nn.Module):
    weight: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.product: Callable[..., Tensor] | None = None  # in place of functional.linear

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
