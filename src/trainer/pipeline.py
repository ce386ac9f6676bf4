"""The order of work in a pipeline: one forward, one backward.

Its own few lines and not torch.distributed.pipelining, because every rank of a data rank has all
micro batches: only hidden states travel, all of one known shape, and fewer micro batches than
stages need nothing special. One stage is the simplest case of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from .parallel import Topology

# What a stage does with micro batch i: hidden state in (None on the first stage), hidden state or
# loss out; the gradient of what came out (None for the loss).
Forward = Callable[[int, Tensor | None], Tensor]
Backward = Callable[[int, Tensor, Tensor | None], None]


class Link:
    """Sends hidden states of one shape to the next stage, and their gradients back."""

    def __init__(self, topology: Topology, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        stride = topology.world_size // topology.pipeline_size
        self.previous = None if topology.first_stage else topology.rank - stride
        self.next = None if topology.last_stage else topology.rank + stride
        self.group, self.device = topology.pipeline_group, topology.device
        self.shape, self.dtype = shape, dtype

    def exchange(
        self,
        *,
        forward: Tensor | None = None,
        backward: Tensor | None = None,
        from_previous: bool = False,
        from_next: bool = False,
    ) -> Tensor | None:
        """Send ``forward`` on and ``backward`` back, and receive at most one tensor; at an end of
        the pipeline there is nobody, nothing happens and None is received."""
        sends = ((forward, self.next), (backward, self.previous))
        operations = [
            dist.P2POp(dist.isend, x.detach().contiguous(), peer, self.group)
            for x, peer in sends
            if x is not None and peer is not None
        ]
        source = self.previous if from_previous else self.next if from_next else None
        received = None
        if source is not None:
            received = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            operations.append(dist.P2POp(dist.irecv, received, source, self.group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received


def train(topology: Topology, link: Link, forward: Forward, backward: Backward, count: int) -> None:
    """Run ``count`` micro batches through this stage, forward and backward."""
    ahead = min(count, topology.pipeline_size - 1 - topology.pipeline_rank)
    held: deque[tuple[Tensor | None, Tensor]] = deque()

    def step_forward(number: int, x: Tensor | None) -> Tensor:
        x = None if x is None else x.requires_grad_()
        held.append((x, y := forward(number, x)))
        return y

    def step_backward(number: int, grad: Tensor | None) -> Tensor | None:
        x, y = held.popleft()
        backward(number, y, grad)
        return None if x is None else x.grad

    for number in range(ahead):
        link.exchange(forward=step_forward(number, link.exchange(from_previous=True)))
    x = link.exchange(from_previous=True) if ahead < count else None
    for number in range(count):
        if number < count - ahead:
            y = step_forward(number + ahead, x)
            grad = link.exchange(forward=y, from_next=True)
        else:
            grad = link.exchange(from_next=True)
        gone = step_backward(number, grad)
        x = link.exchange(backward=gone, from_previous=number + 1 < count - ahead)


def evaluate(link: Link, forward: Forward, count: int) -> None:
    """Run ``count`` micro batches through this stage, forward only."""
    for number in range(count):
        link.exchange(forward=forward(number, link.exchange(from_previous=True)))
