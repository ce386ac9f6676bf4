"""Weights and gradients in buckets, which data ranks sum while the backward pass runs.

A bucket goes over the network in one piece: the matrices of a block, the embedding or head, or all
vectors. With ZeRO data rank r keeps only the r-th piece of each bucket's fp32 weights and optimizer
state, from stage 2 on also of the gradients, and alone makes the step of that piece. Products read
whole matrices, in half precision copies of them; with stage 3 those of a block have memory only
while the block computes.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .parallel import begin_gather, begin_sum, total
from .tensor import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from .model import Stage
    from .parallel import Topology

    Linear = ColumnLinear | RowLinear

ALIGNED = 8  # elements: pieces begin at a multiple of 16 bytes, as NCCL likes it


@dataclass(frozen=True)
class OptimizerShard:
    """A parameter for this data rank's optimizer: a whole one, or a flat piece of one.

    Its gradient is set. A whole one may have its optimizer state on one data rank only, ``owner``.
    """

    parameter: nn.Parameter
    owner: int | None = None


class Bucket:
    """Some parameters in a row; with ``ranks`` above 1 cut into as many equal pieces.

    ``working`` [size] are the weights that products read, ``kept`` [size / ranks] this rank's fp32
    weights, ``summed`` their gradient. Where ``transient`` the whole gradients exist only until
    they are summed; where ``fleeting`` ``working`` has memory only from ``gather`` to ``release``.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        dtype: torch.dtype,
        cut: bool,
        zero: int,
        topology: Topology,
    ) -> None:
        self.topology = topology
        self.transient, self.fleeting = cut and zero > 1, cut and zero > 2
        self.ranks, self.rank = (topology.data_size, topology.data_rank) if cut else (1, 0)
        self.spans: dict[str, slice] = {}
        end = 0
        for name, parameter in parameters.items():
            self.spans[name] = slice(end, end := end + parameter.numel())
        whole = next(iter(parameters.values())).new_zeros(_up(end, ALIGNED * self.ranks))
        for name, parameter in parameters.items():
            whole[self.spans[name]] = parameter.detach().flatten()
        self.working = whole.to(dtype)
        # Where ``working`` is a copy, or does not stay, ``kept`` is no view of the whole.
        alone = cut and (dtype != whole.dtype or self.fleeting)
        self.kept = self.piece(whole).clone() if alone else self.piece(whole)
        self.grads = None if self.transient else torch.zeros_like(whole)
        self.summed = torch.zeros_like(self.kept) if self.grads is None else self.piece(self.grads)
        self.missing: set[str] = set()
        self._work: Any = None  # a sum of gradients
        self._coming: Any = None  # a gathering of ``working``
        self._here = not self.fleeting

    def piece(self, x: Tensor) -> Tensor:
        """This rank's piece of ``x`` [size]."""
        return x.chunk(self.ranks)[self.rank]

    def own(self, name: str) -> slice:
        """The elements of a parameter that lie in this rank's piece."""
        span, first = self.spans[name], self.rank * len(self.kept)
        begin = min(max(span.start, first), span.stop)
        end = max(begin, min(span.stop, first + len(self.kept)))
        return slice(begin - span.start, end - span.start)

    def local(self, name: str) -> slice:
        """The same elements, counted from the beginning of the piece."""
        own, offset = self.own(name), self.spans[name].start - self.rank * len(self.kept)
        return slice(own.start + offset, own.stop + offset)

    def add(self, name: str, grad: Tensor) -> None:
        """Add the gradient of a parameter."""
        assert self._work is None, f"{name} has a gradient after the sum has begun"
        self._all_grads()[self.spans[name]].view_as(grad).add_(grad)
        self.missing.discard(name)

    def begin_sum(self) -> None:
        """Begin to sum the gradients over data ranks, while other work goes on."""
        self._work = begin_sum(self._all_grads(), self.ranks > 1, self.topology)

    def end_sum(self) -> None:
        """Wait until the gradients are summed."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        if self.transient and self.grads is not None:
            self.summed += self.piece(self.grads)
            self.grads = None

    def _all_grads(self) -> Tensor:
        if self.grads is None:
            self.grads = self.kept.new_zeros(len(self.working))
        return self.grads

    def begin_refresh(self) -> Any:
        """Begin to bring ``working`` up to date after a step; returns what to wait for, or None."""
        if self.fleeting:
            return self.release()
        return self._begin_gather()

    def begin_to_gather(self) -> None:
        """Begin to gather ``working``, unless it is here."""
        if not self._here and self._coming is None:
            self.working.untyped_storage().resize_(self.working.nbytes)
            self._coming = self._begin_gather()

    def gather(self) -> None:
        """Gather ``working``, unless it is here."""
        self.begin_to_gather()
        if self._coming is not None:
            self._coming.wait()
            self._coming, self._here = None, True

    def release(self) -> None:
        """Free the memory of ``working`` where it is ``fleeting``."""
        if self.fleeting:
            if self._coming is not None:  # gathered in advance, and not needed
                self._coming.wait()
            self.working.untyped_storage().resize_(0)
            self._coming, self._here = None, False

    def _begin_gather(self) -> Any:
        # By .data, hidden from autograd, which has saved views of it: their values do not change.
        working = self.working.data
        if self.working.dtype != self.kept.dtype or self.fleeting:
            self.piece(working).copy_(self.kept)
        return begin_gather(working, self.topology) if self.ranks > 1 else None


class _GatherAgain(torch.autograd.Function):
    """The output of a block: in the backward pass ``gather`` is called before the block's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gather: Callable[[], None]) -> Tensor:
        ctx.gather = gather
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.gather()
        return grad, None


class Buckets:
    """All parameters of a stage in buckets, of which they become views.

    ``whole`` names those of which the optimizer needs all elements, so that they are not cut.
    ``half`` is the type of the copies of matrices, None where products read the fp32 weights.
    """

    def __init__(
        self, model: Stage, zero: int, whole: Sequence[str] = (), half: torch.dtype | None = None
    ) -> None:
        self._model, self._topology = model, model.topology
        self._shapes = {name: p.shape for name, p in model.named_parameters()}
        self._zero = zero if self._topology.data_size > 1 else 0
        self._bucket: dict[str, Bucket] = {}  # by name
        self._buckets: list[Bucket] = []  # in the order in which gradients are complete
        self._of_block: dict[str, Bucket] = {}  # the fleeting ones by block, first block first
        self._of_parts: list[Bucket] = []  # those whose gradients tensor ranks have to sum
        linears = {
            f"{name}.weight": module
            for name, module in model.named_modules()
            if isinstance(module, (ColumnLinear, RowLinear))
        }
        layout, split = model.model.layout, self._topology.split_sequence
        parts = {name for name in self._shapes if split and layout[name].split is None}
        for names in _cut_up(self._shapes, linears, parts):
            parameters = {name: model.get_parameter(name) for name in names}
            matrices = names[0] in linears
            weight = parameters[names[0]]
            dtype = half if half and matrices else weight.dtype
            cut = self._zero > 0 and names[0] not in whole
            zero = min(self._zero, 3 if matrices else 2)
            bucket = Bucket(parameters, dtype, cut, zero, self._topology)
            self._buckets.append(bucket)
            if names[0] in parts:
                self._of_parts.append(bucket)
            if bucket.fleeting:
                self._of_block = {names[0].split(".")[1]: bucket, **self._of_block}
            for name, parameter in parameters.items():
                self._bucket[name] = bucket
                self._place(name, parameter, linears.get(name))
        self._sums: deque[Bucket] = deque()  # to be summed in this backward pass, in order
        self._transient: Bucket | None = None  # the transient one whose sum began last
        self._in_backward = False
        if self._of_block:
            model.call = self._call
        self.refresh()
        owners = {name: i % self._topology.data_size for i, name in enumerate(whole)}
        self.held = {name: self._hold(name, owners.get(name)) for name in self._shapes}

    def _place(self, name: str, parameter: nn.Parameter, linear: Linear | None) -> None:
        """Make a parameter, or its copy for products, a view of its bucket."""
        bucket, shape = self._bucket[name], parameter.shape
        view = bucket.working[bucket.spans[name]].view(shape)
        leaves: list[Tensor] = [parameter]
        if bucket.working.dtype == parameter.dtype:
            parameter.data = view
        else:
            assert linear is not None
            linear.cast = view.detach().requires_grad_()
            leaves.append(linear.cast)
            kept = bucket.kept
            parameter.data = kept[bucket.spans[name]].view(shape) if bucket.ranks == 1 else kept[:0]
        for leaf in leaves:
            leaf.register_post_accumulate_grad_hook(partial(self._take, name))  # type: ignore[no-untyped-call]

    def _hold(self, name: str, owner: int | None) -> OptimizerShard:
        bucket, shape = self._bucket[name], self._shapes[name]
        local = bucket.local(name)
        weight, grad = bucket.kept[local], bucket.summed[local]
        if bucket.ranks == 1:
            weight, grad = weight.view(shape), grad.view(shape)
        parameter = nn.Parameter(weight)
        parameter.grad = grad
        return OptimizerShard(parameter, owner)

    def begin_step(self) -> None:
        """Forget the gradients of the step before."""
        for bucket in self._buckets:
            (bucket.summed if bucket.grads is None else bucket.grads).zero_()

    @contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        """A context for the backward pass of a micro batch; in the ``last`` one buckets are summed.

        The sum of a bucket begins as soon as its gradients are complete, in the same order on all
        ranks. Transient buckets are summed after every micro batch.
        """
        self._sums = deque(one for one in self._buckets if last or one.transient)
        for bucket in self._sums:
            bucket.missing = set(bucket.spans)
        done = list(self._sums)
        self._in_backward = True
        yield
        self._in_backward = False
        while self._sums:  # those that lack a gradient
            self._begin_sum()
        for bucket in done:
            bucket.end_sum()

    def add_of_parts(self) -> None:
        """Sum gradients over tensor ranks, of weights that all have and use for their own parts."""
        for bucket in self._of_parts:
            total(bucket.summed, self._topology.tensor_group)

    def add_of_stages(self, name: str) -> None:
        """Sum the gradient of a parameter that is on the first and on the last stage."""
        total(self._bucket[name].summed, self._topology.embedding_group)

    def gradients(self, names: Collection[str]) -> list[Tensor]:
        """Those gradients of ``names`` that this data rank adds to the norm; see ``shared``."""
        held = (self.held[name] for name in names)
        return [
            one.parameter.grad
            for one in held
            if one.parameter.grad is not None
            and (not self.shared or one.owner in (None, self._topology.data_rank))
        ]

    @property
    def shared(self) -> bool:
        """Whether data ranks have different gradients, which only together are all of them."""
        return self._zero > 0

    def scale(self, factor: Tensor) -> None:
        """Multiply the gradients."""
        for bucket in self._buckets:
            bucket.summed.mul_(factor)

    @torch.no_grad()
    def refresh(self) -> None:
        """Let all ranks compute with the new weights, of which each rank has stepped some."""
        works = [bucket.begin_refresh() for bucket in self._buckets]
        for work in works:
            if work is not None:
                work.wait()

    def whole(self, name: str, kind: str, x: Tensor) -> Tensor:
        """The whole of a tensor of which this data rank holds ``x``; a collective.

        ``kind`` is "parameter" for its weight, else the name of a tensor of the optimizer's state.
        """
        elements, shape = self._elements(name, kind), self._shapes[name]
        if elements is None:
            return x.view(shape)
        result = x.new_zeros(shape)
        result.view(-1)[elements] = x.flatten()
        # Summed as integers, since all ranks but one have 0: -0.0 plus 0.0 would be 0.0.
        bits = {4: torch.int32, 8: torch.int64}[x.element_size()]
        total(result.view(bits), self._topology.data_group)
        return result

    def own(self, name: str, kind: str, whole: Tensor) -> Tensor:
        """What this data rank holds of a whole tensor, flat."""
        return whole.flatten()[self._elements(name, kind) or slice(None)]

    def _elements(self, name: str, kind: str) -> slice | None:
        """The elements that this data rank holds; None where each has all of them."""
        bucket, owner = self._bucket[name], self.held[name].owner
        if bucket.ranks > 1:
            return bucket.own(name)
        if kind == "parameter" or owner is None:
            return None
        return slice(None) if owner == self._topology.data_rank else slice(0)

    def _take(self, name: str, leaf: Tensor) -> None:
        assert leaf.grad is not None
        bucket = self._bucket[name]
        bucket.add(name, leaf.grad)
        leaf.grad = None
        if not bucket.missing:
            bucket.release()
        while self._sums and not self._sums[0].missing:
            self._begin_sum()

    def _call(self, name: str, *x: Any) -> Tensor:
        """Call a block with its weights gathered; the backward pass gathers them again."""
        self._gather(name, 0 if self._in_backward else 1)
        y: Tensor = self._model.blocks[name](*x)
        y = _GatherAgain.apply(y, partial(self._gather, name, -1))  # type: ignore[no-untyped-call]
        if not self._in_backward:  # a recomputed block needs its weights for gradients at once
            self._of_block[name].release()
        return y

    def _gather(self, name: str, step: int) -> None:
        """Gather the weights of a block, and begin to gather those of the block after it."""
        self._of_block[name].gather()
        names = list(self._of_block)
        following = names.index(name) + step
        if 0 <= following < len(names):
            self._of_block[names[following]].begin_to_gather()

    def _begin_sum(self) -> None:
        bucket = self._sums.popleft()
        bucket.begin_sum()
        if bucket.transient:  # whole gradients of at most two buckets, beside the one being filled
            if self._transient is not None:
                self._transient.end_sum()
            self._transient = bucket


def _cut_up(
    names: Mapping[str, torch.Size], linears: Collection[str], parts: Collection[str]
) -> list[list[str]]:
    """The names of each bucket, in the order in which a backward pass completes them."""
    found: dict[str, list[str]] = {}
    for name, shape in names.items():
        if name in linears:
            key = name[: name.index(".", len("blocks."))]
        else:
            key = name if len(shape) > 1 else f"vectors {name in parts}"
        found.setdefault(key, []).append(name)
    first = {name: number for number, name in enumerate(names)}
    return sorted(found.values(), key=lambda bucket: -first[bucket[0]])


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
