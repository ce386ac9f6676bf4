"""Weights, gradients and moments shared by data parallel ranks: torch's ``fully_shard``, and ZeRO.

The matrices of each block are gathered in one piece, in half precision if products are computed in
it; their gradients are summed while the backward pass continues. With ZeRO each rank keeps and
updates only its rows of these matrices, of the embeddings and of the head. Vectors (biases and
norms) stay whole and fp32 on every rank; without ZeRO so do the embeddings and the head.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from .parallel import exchanged, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .model import Stage


@dataclass(frozen=True)
class OptimizerShard:
    """This data rank's part of a parameter in the optimizer: the whole, or some of its rows."""

    parameter: nn.Parameter
    shape: torch.Size  # the shape of the whole parameter
    sharded: DTensor | None = None  # if ``parameter`` is a part of it

    def whole(self, rows: Tensor) -> Tensor:
        """The whole tensor, from the ``rows`` that each data rank has; a collective."""
        if self.sharded is None:
            return rows
        mesh, placements = self.sharded.device_mesh, self.sharded.placements
        stride = self.sharded.stride()
        parts = DTensor.from_local(rows, mesh, placements, shape=self.shape, stride=stride)
        return parts.full_tensor()

    def rows(self, whole: Tensor) -> Tensor:
        """This data rank's rows of a whole tensor; the last ranks may have fewer rows, or none."""
        if self.sharded is None:
            return whole
        mesh = self.sharded.device_mesh
        parts, place = whole.chunk(mesh.size(mesh.ndim - 1)), mesh.get_local_rank(mesh.ndim - 1)
        return parts[place] if place < len(parts) else whole[:0]


class DataParallel:
    """The parameters of a stage, shared by data ranks; ``held`` are those that this rank updates,
    by name.

    ``half`` is the type in which products of the blocks' matrices are computed, or None if it is
    fp32.
    """

    def __init__(self, model: Stage, zero: int, half: torch.dtype | None = None) -> None:
        topology = model.topology
        self._topology, self._zero = topology, zero if topology.data_size > 1 else 0
        self._modules: list[FSDPModule] = []
        self.shared = self._zero > 0  # each data rank has its own part of the gradients
        self._shapes = {name: p.shape for name, p in model.named_parameters()}
        if topology.data_size > 1 or half is not None:
            self._shard(model, half)
        self._parameters = dict(model.named_parameters())
        self.held = {name: self._hold(name) for name in self._shapes}
        # In the same order on all ranks: their gradients are summed one after another, by
        # collectives. A set would have an order of its own on each rank.
        whole = (n for n, p in self._parameters.items() if not isinstance(p, DTensor))
        self._whole = dict.fromkeys(whole)
        layout, split = model.model.layout, topology.split_sequence
        self._of_parts = [name for name in self._shapes if split and layout[name].split is None]

    def _shard(self, model: Stage, half: torch.dtype | None) -> None:
        # fully_shard cuts weights along the last dimension of a mesh; without ZeRO that has size 1.
        assert self._topology.mesh is not None
        mesh = self._topology.mesh["data"] if self._zero else self._topology.mesh["data", "alone"]
        # Autocast decides what is computed in half precision, so no input is cast here.
        policy = MixedPrecisionPolicy(half, torch.get_default_dtype(), cast_forward_inputs=False)
        policy = policy if half else MixedPrecisionPolicy()
        whole = {
            parameter
            for name, parameter in model.named_parameters()
            if parameter.ndim < 2 or not (self._zero or name.startswith("blocks."))
        }
        for block in model.blocks.values():
            fully_shard(
                block,
                mesh=mesh,
                mp_policy=policy,
                ignored_params=whole,
                reshard_after_forward=self._zero > 2,
            )
        fully_shard(model, mesh=mesh, ignored_params=whole, reshard_after_forward=False)
        self._modules = [cast("FSDPModule", one) for one in (*model.blocks.values(), model)]

    def _hold(self, name: str) -> OptimizerShard:
        parameter, shape = self._parameters[name], self._shapes[name]
        if not isinstance(parameter, DTensor):
            return OptimizerShard(parameter, shape)
        local = nn.Parameter(parameter.to_local())
        return OptimizerShard(local, shape, parameter if self._zero else None)

    def begin_step(self) -> None:
        """Forget the gradients of the previous step."""
        for name, parameter in self._parameters.items():
            parameter.grad = self.held[name].parameter.grad = None

    @contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """A context for the backward pass of a micro batch. After the ``last`` one, gradients of
        ``held`` are means over the data ranks.

        From stage 2 of ZeRO on they are summed after each micro batch.
        """
        for module in self._modules:
            module.set_is_last_backward(last)
            module.set_requires_gradient_sync(last or self._zero > 1, recurse=False)
            root = module is self._modules[-1]
            module.set_reshard_after_backward(last or (self._zero > 2 and not root), recurse=False)
        yield
        if last:
            self._take_gradients()

    def _take_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            held = self.held[name].parameter
            held.grad = grad.to_local() if isinstance(grad, DTensor) else grad
        if self._topology.data_group is None:
            return
        grads = [cast("Tensor", self.held[name].parameter.grad) for name in self._whole]
        vectors = [grad for grad in grads if grad.ndim < 2]
        joined = torch.cat(vectors) if vectors else torch.zeros(0)
        for grad in (*(grad for grad in grads if grad.ndim > 1), joined):
            total(grad, self._topology.data_group).div_(self._topology.data_size)
        for grad, part in zip(vectors, torch.split(joined, [*map(len, vectors)]), strict=True):
            grad.copy_(part)

    def add_of_parts(self) -> None:
        """Sum, over tensor ranks, the gradients of weights that all of them have and use for their
        own parts.
        """
        for name in self._of_parts:
            total(self._grad(name), self._topology.tensor_group)

    def add_of_stages(self, name: str) -> None:
        """Sum the gradient of a parameter that is on the first and on the last stage."""
        if self._topology.pipeline_size > 1:
            grad = self._grad(name)
            grad += exchanged(grad, self._topology)

    def gradients(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The gradients of ``names`` that this data rank adds to the norm; see ``shared``."""
        others = self.shared and self._topology.data_rank > 0
        return {name: self._grad(name) for name in names if not (others and name in self._whole)}

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients."""
        torch._foreach_mul_([self._grad(name) for name in self.held], factor)

    def refresh(self) -> None:
        """Make this rank gather the new weights before it next computes with them."""
        for module in self._modules:
            module.reshard()

    def _grad(self, name: str) -> Tensor:
        return cast("Tensor", self.held[name].parameter.grad)
