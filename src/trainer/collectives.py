"""Collectives over tensor ranks that change none of their arguments: torch's functional ones.

They are used in code that is compiled: the compiler knows them. It takes a collective that writes
into its argument apart into an operation and a copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
_ops: Any = torch.ops._c10d_functional


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of ``x`` over the ranks of ``group``, of the same shape and type."""
    return _waited(_ops.all_reduce(x.contiguous(), "sum", group.group_name))


def largest(x: Tensor, group: Group) -> Tensor:
    """The largest of each element of ``x`` over the ranks of ``group``."""
    return _waited(_ops.all_reduce(x.contiguous(), "max", group.group_name))


def gathered(part: Tensor, group: Group) -> Tensor:
    """[n, ...] of all ranks, one after the other: [n * ranks, ...]."""
    name = group.group_name
    return _waited(_ops.all_gather_into_tensor(part.contiguous(), group.size(), name))


def summed_part(x: Tensor, group: Group) -> Tensor:
    """This rank's part [n / ranks, ...] of the sum of [n, ...] over all ranks."""
    name = group.group_name
    return _waited(_ops.reduce_scatter_tensor(x.contiguous(), "sum", group.size(), name))


def _waited(x: Tensor) -> Tensor:
    return _ops.wait_tensor(x)  # type: ignore[no-any-return]
