"""Where a process stands among the others, and the layers that tensor parallelism splits."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import Config

Group = dist.ProcessGroup
CPU = torch.device("cpu")
CHUNK = 1024  # rows of logits that exist at a time


@dataclass(frozen=True)
class Topology:
    """Place of this process. A group is None where it would hold one process.

    Ranks count tensor ranks fastest, then data ranks, then pipeline ranks.
    """

    rank: int = 0
    world_size: int = 1
    tensor_size: int = 1
    tensor_rank: int = 0
    pipeline_size: int = 1
    pipeline_rank: int = 0
    data_size: int = 1
    data_rank: int = 0
    device: torch.device = CPU
    tensor_group: Group | None = None
    data_group: Group | None = None
    pipeline_group: Group | None = None
    embedding_group: Group | None = None  # first and last stage: they share the word embedding

    @property
    def first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def writes(self) -> bool:
        """Whether this rank holds the whole tensors of its stage when they are gathered."""
        return self.data_rank == 0 and self.tensor_rank == 0


def start(config: Config) -> Topology:
    """Join the processes that torchrun started, or none without it. Raises UsageError."""
    world, rank = _environment("WORLD_SIZE", 1), _environment("RANK", 0)
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    if world % (tensor * pipeline):
        raise UsageError(
            f"{world} processes do not divide by tensor_model_parallel_size {tensor} x "
            f"pipeline_model_parallel_size {pipeline}; start a multiple of {tensor * pipeline}"
        )
    data = world // (tensor * pipeline)
    device = _device(config)
    if world > 1:
        _connect(config, device)
    stage, rest = divmod(rank, data * tensor)
    data_rank, tensor_rank = divmod(rest, tensor)

    def number(p: int, d: int, t: int) -> int:
        return (p * data + d) * tensor + t

    def split(lines: list[list[int]]) -> Group | None:
        mine = None
        for line in lines if len(lines[0]) > 1 else ():  # every process makes every group
            group = dist.new_group(line, timeout=_timeout(config))
            mine = group if rank in line else mine
        return mine

    stages, datas, tensors = range(pipeline), range(data), range(tensor)
    tensor_group = split([[number(p, d, t) for t in tensors] for p in stages for d in datas])
    data_group = split([[number(p, d, t) for d in datas] for p in stages for t in tensors])
    columns = [[number(p, d, t) for p in stages] for d in datas for t in tensors]
    pipeline_group = split(columns)
    embedding_group = split([[c[0], c[-1]] if pipeline > 1 else c for c in columns])
    if pipeline_group is not None:  # NCCL wants a collective before the first point-to-point
        dist.all_reduce(torch.zeros(1, device=device), group=pipeline_group)
    return Topology(
        rank,
        world,
        tensor,
        tensor_rank,
        pipeline,
        stage,
        data,
        data_rank,
        device,
        tensor_group,
        data_group,
        pipeline_group,
        embedding_group,
    )


def stop() -> None:
    """Leave the other processes; they need not wait."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _environment(name: str, default: int) -> int:
    return int(os.environ.get(name, str(default)))


def _device(config: Config) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    local, found = _environment("LOCAL_RANK", 0), torch.cuda.device_count()
    if local >= found:
        raise UsageError(
            f"process {local} of this machine finds {found} GPUs; start at most {found} processes "
            "on it, or use --device cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _timeout(config: Config) -> datetime.timedelta:
    return datetime.timedelta(minutes=config.distributed_timeout_minutes)


def _connect(config: Config, device: torch.device) -> None:
    backend = "nccl" if device.type == "cuda" else "gloo"
    bound = device if device.type == "cuda" else None
    try:
        dist.init_process_group(backend, timeout=_timeout(config), device_id=bound)
    except (dist.DistError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UsageError(
            f"cannot meet the other processes at {where}: {str(error).splitlines()[0]}; "
            "is the port in use, and are all processes started?"
        ) from error


def total(x: Tensor, group: Group | None) -> Tensor:
    """Sum ``x`` over ``group``, in place."""
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


class _Copy(torch.autograd.Function):
    """Nothing forward, a sum over tensor ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return total(grad.clone(memory_format=torch.contiguous_format), ctx.group), None


class _Reduce(torch.autograd.Function):
    """A sum over tensor ranks forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return total(x.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _copy(x: Tensor, group: Group | None) -> Tensor:
    return x if group is None else _Copy.apply(x, group)  # type: ignore[no-untyped-call]


def _reduce(x: Tensor, group: Group | None) -> Tensor:
    return x if group is None else _Reduce.apply(x, group)  # type: ignore[no-untyped-call]


def sharded(topology: Topology, dim: int, *shape: int) -> nn.Parameter:
    """An empty parameter: this tensor rank's part of ``shape``, which is split along ``dim``."""
    local = [n // topology.tensor_size if i == dim else n for i, n in enumerate(shape)]
    parameter = nn.Parameter(torch.empty(local))
    parameter.shard_dim = dim  # type: ignore[attr-defined]
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]  # DeepSpeed's norm asks
    return parameter


def shard_dim(parameter: Tensor) -> int | None:
    """The dimension that tensor parallelism splits, None for a parameter that all ranks hold."""
    dim: int | None = getattr(parameter, "shard_dim", None)
    return dim


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are split: [..., inputs] -> [..., outputs / tensor_size]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, outputs, inputs)
        self.bias = sharded(topology, 0, outputs) if bias else None
        self.group = topology.tensor_group

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(_copy(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split: [..., inputs / tensor_size] -> [..., outputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 1, outputs, inputs)
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.group = topology.tensor_group

    def forward(self, x: Tensor) -> Tensor:
        if self.group is None:
            return functional.linear(x, self.weight, self.bias)
        y = _reduce(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


class VocabEmbedding(nn.Module):
    """Rows of the vocabulary, split: int64 [...] -> float32 [..., width]."""

    def __init__(self, rows: int, width: int, topology: Topology) -> None:
        super().__init__()
        self.weight = sharded(topology, 0, rows, width)
        self.first = topology.tensor_rank * self.weight.shape[0]
        self.group = topology.tensor_group

    def forward(self, tokens: Tensor) -> Tensor:
        if self.group is None:
            return functional.embedding(tokens, self.weight)
        row, mine = _locate(tokens, self.first, self.weight.shape[0])
        return _reduce(functional.embedding(row, self.weight) * mine.unsqueeze(-1), self.group)


def _locate(tokens: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """The local row of each token, and whether it lies here (elsewhere: row 0)."""
    row = tokens - first
    mine = (row >= 0) & (row < rows)
    return row * mine, mine


def head_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, mask: Tensor, valid: int, topology: Topology
) -> Tensor:
    """Mean cross entropy, float32 [], over the positions that ``mask`` counts.

    ``hidden`` [N, H] decides the type of the products, ``weight`` [V / tensor_size, H] is the head,
    ``labels`` int64 [N], ``mask`` float32 [N]. Rows of the whole vocabulary from ``valid`` on are
    padding and take no probability. Logits exist for 1,024 positions at a time: gradients are made
    on the way forward, so nothing is computed twice.
    """
    loss: Tensor = _HeadLoss.apply(hidden, weight, labels, mask, valid, topology)  # type: ignore[no-untyped-call]
    return loss


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor,
        valid: int,
        topology: Topology,
    ) -> Tensor:
        group, rows = topology.tensor_group, weight.shape[0]
        first = topology.tensor_rank * rows
        row, mine = _locate(labels, first, rows)
        head = weight.to(hidden.dtype)
        learn = any(ctx.needs_input_grad)
        grad_hidden = torch.empty_like(hidden) if learn else hidden
        grad_weight = torch.zeros_like(weight) if learn else weight
        loss = torch.zeros((), device=hidden.device)
        for begin in range(0, hidden.shape[0], CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = (hidden[part] @ head.T).float()
            logits[:, max(0, valid - first) :] = -torch.inf
            logits, losses = _softmax(logits, row[part], mine[part], group)
            loss += (losses * mask[part]).sum()
            if learn:
                index = row[part].unsqueeze(1)
                logits.scatter_add_(1, index, -mine[part].unsqueeze(1).float())
                step = logits.mul_(mask[part].unsqueeze(1)).to(hidden.dtype)
                grad_hidden[part] = step @ head
                grad_weight += step.T @ hidden[part]
        count = mask.sum().clamp(min=1)
        ctx.save_for_backward(grad_hidden, grad_weight, count)
        ctx.group = group
        return loss / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, count = ctx.saved_tensors
        scale = grad / count
        return total(grad_hidden * scale, ctx.group), grad_weight * scale, None, None, None, None


def _softmax(
    logits: Tensor, row: Tensor, mine: Tensor, group: Group | None
) -> tuple[Tensor, Tensor]:
    """Probabilities (in place of the logits) and the loss of each row, over all tensor ranks."""
    top = logits.amax(1, keepdim=True)
    if group is not None:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    logits.sub_(top)
    label = total(logits.gather(1, row.unsqueeze(1)).squeeze(1).where(mine, 0), group)
    norm = total(logits.exp_().sum(1, keepdim=True), group)
    return logits.div_(norm), norm.squeeze(1).log() - label


def global_norm(grads: Sequence[Tensor], topology: Topology) -> Tensor:
    """Norm, float32 [], of the gradients that all tensor and pipeline ranks contribute."""
    square = nn.utils.get_total_norm(list(grads)).to(topology.device) ** 2
    return total(total(square, topology.tensor_group), topology.pipeline_group).sqrt()


def gather_whole(x: Tensor, dim: int | None, topology: Topology) -> Tensor:
    """The whole of a tensor split along ``dim``, on every tensor rank. A collective."""
    if dim is None or topology.tensor_group is None:
        return x
    parts = [torch.empty_like(x) for _ in range(topology.tensor_size)]
    dist.all_gather(parts, x.contiguous(), group=topology.tensor_group)
    return torch.cat(parts, dim)


def own_part(x: Tensor, dim: int | None, topology: Topology) -> Tensor:
    """This tensor rank's part of a whole tensor that is split along ``dim``."""
    if dim is None:
        return x
    return x.chunk(topology.tensor_size, dim)[topology.tensor_rank]
