"""Collectives over tensor ranks, as single operations of torch.

They are used in code that is compiled. The compiler takes a collective that writes into its
argument apart into an operation and a copy, and on a GPU torch 2.11 loses one of them, which gave
wrong losses. So these change none of their arguments, and the compiler cannot look inside them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
# Torch 2.13 has renamed them.
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_groups: dict[str, Group] = {}  # operations take numbers, tensors and text only


def join(group: Group) -> None:
    """Register a group, so that the operations find it by its name."""
    _groups[group.group_name] = group


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of ``x`` over the ranks of ``group``, of the same shape and type."""
    return torch.ops.tokpack.all_reduce(x, group.group_name, "sum")  # type: ignore[no-any-return]


def largest(x: Tensor, group: Group) -> Tensor:
    """The largest of each element of ``x`` over the ranks of ``group``."""
    return torch.ops.tokpack.all_reduce(x, group.group_name, "max")  # type: ignore[no-any-return]


def gathered(part: Tensor, group: Group) -> Tensor:
    """[n, ...] of all ranks, one after the other: [n * ranks, ...]."""
    return torch.ops.tokpack.all_gather(part, group.group_name)  # type: ignore[no-any-return]


def summed_part(x: Tensor, group: Group) -> Tensor:
    """This rank's part [n / ranks, ...] of the sum of [n, ...] over all ranks."""
    return torch.ops.tokpack.reduce_scatter(x, group.group_name)  # type: ignore[no-any-return]


@torch.library.custom_op("tokpack::all_reduce", mutates_args=())
def _all_reduce(x: Tensor, name: str, how: str) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, getattr(dist.ReduceOp, how.upper()), group=_groups[name])
    return result


@_all_reduce.register_fake
def _(x: Tensor, name: str, how: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("tokpack::all_gather", mutates_args=())
def _all_gather(part: Tensor, name: str) -> Tensor:
    whole = part.new_empty((part.shape[0] * _groups[name].size(), *part.shape[1:]))
    all_gather(whole, part.contiguous(), group=_groups[name])
    return whole


@_all_gather.register_fake
def _(part: Tensor, name: str) -> Tensor:
    return part.new_empty((part.shape[0] * _groups[name].size(), *part.shape[1:]))


@torch.library.custom_op("tokpack::reduce_scatter", mutates_args=())
def _reduce_scatter(x: Tensor, name: str) -> Tensor:
    part = x.new_empty((x.shape[0] // _groups[name].size(), *x.shape[1:]))
    reduce_scatter(part, x.contiguous(), group=_groups[name])
    return part


@_reduce_scatter.register_fake
def _(x: Tensor, name: str) -> Tensor:
    return x.new_empty((x.shape[0] // _groups[name].size(), *x.shape[1:]))
