"""The pipeline schedule "one forward, one backward".

torch.distributed.pipelining is not used: here every stage reads the micro batches itself, so only
hidden states of one known shape are sent. Neither fewer micro batches than stages nor a single
stage is a special case.
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

# What a stage does with micro batch i. Forward: a hidden state (None on the first stage) -> hidden
# state or loss. Backward takes that, and its gradient (None for the loss).
Forward = Callable[[int, Tensor | None], Tensor]
Backward = Callable[[int, Tensor, Tensor | None], None]


class StageLink:
    """A link that sends hidden states of one shape to the next stage, and their gradients to the
    previous.
    """

    def __init__(self, topology: Topology, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        stride = topology.world_size // topology.pipeline_size
        self.previous = None if topology.first_stage else topology.rank - stride
        self.next = None if topology.last_stage else topology.rank + stride
        self.topology, self.shape, self.dtype = topology, shape, dtype

    def swap(
        self, sent: Tensor | None = None, to: int | None = None, source: int | None = None
    ) -> Tensor | None:
        """The tensor received from rank ``source``, or None; at the same time ``sent`` goes to rank
        ``to``, if given.
        """
        works, received, group = [], None, self.topology.pipeline_group
        if sent is not None and to is not None:
            works.append(dist.P2POp(dist.isend, sent.detach().contiguous(), to, group))
        if source is not None:
            received = torch.empty(self.shape, dtype=self.dtype, device=self.topology.device)
            works.append(dist.P2POp(dist.irecv, received, source, group))
        for work in dist.batch_isend_irecv(works) if works else ():
            work.wait()
        return received


def train(link: StageLink, forward: Forward, backward: Backward, count: int) -> None:
    """Run ``count`` micro batches through this stage, forward and backward."""
    previous, following, stages = link.previous, link.next, link.topology.pipeline_size
    ahead = min(count, stages - 1 - link.topology.pipeline_rank)
    held: deque[tuple[Tensor | None, Tensor]] = deque()

    def go_forward(number: int, x: Tensor | None) -> Tensor:
        x = None if x is None else x.requires_grad_()
        held.append((x, y := forward(number, x)))
        return y

    def go_back(number: int, grad: Tensor | None) -> Tensor | None:
        x, y = held.popleft()
        backward(number, y, grad)
        return None if x is None else x.grad

    for number in range(ahead):
        link.swap(go_forward(number, link.swap(source=previous)), to=following)
    x = link.swap(source=previous) if ahead < count else None
    for number in range(count):
        y = go_forward(number + ahead, x) if number + ahead < count else None
        grad = link.swap(y, following, following)
        more = number + ahead + 1 < count
        x = link.swap(go_back(number, grad), previous, previous if more else None)


def evaluate(link: StageLink, forward: Forward, count: int) -> None:
    """Run ``count`` micro batches through this stage, forward only."""
    for number in range(count):
        link.swap(forward(number, link.swap(source=link.previous)), to=link.next)
