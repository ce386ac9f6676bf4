"""The place of a process among the others of a run, and the collectives that they share."""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from tokpack.errors import TokpackError, UsageError, option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .config.config import Config


# The network interface of gloo where the processes of a run are on several machines.
#
# By default gloo takes the interface with the address to which the host's name resolves. That is
# 127.0.1.1 with Debian's /etc/hosts, where no other machine can reach this one.

VARIABLE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_ANYWHERE = "192.0.2.1"  # reserved for documentation: the route to it leads out of this machine


def choose_interface() -> None:
    """Set GLOO_SOCKET_IFNAME, unless it is set, to NCCL's interface or to the one that leads to
    other machines.
    """
    here = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE"))
    master = os.environ.get("MASTER_ADDR", "localhost")
    alone = master in ("127.0.0.1", "localhost") or here == os.environ.get("WORLD_SIZE")
    if VARIABLE in os.environ or alone:
        return
    prefixes = os.environ.get("NCCL_SOCKET_IFNAME", "").removeprefix("=").split(",")
    names = [name for _, name in socket.if_nameindex()]
    fitting = (name for word in prefixes for name in names if word and name.startswith(word))
    # No route to the first machine leads out of it: there, take the interface to any other.
    chosen = (
        next(fitting, None)
        or _outgoing_interface(master, names)
        or _outgoing_interface(_ANYWHERE, names)
    )
    if chosen is not None:
        os.environ[VARIABLE] = chosen


def _outgoing_interface(host: str, names: list[str]) -> str | None:
    """The interface that leads to another machine, or None if ``host`` is this machine."""
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # chooses a route, and sends nothing
        address = socket.inet_aton(probe.getsockname()[0])
        for name in names:
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24]
                if answer == address and not name.startswith("lo"):
                    return name
    return None


T = TypeVar("T")
CPU = torch.device("cpu")
DIMENSIONS = ("pipeline", "data", "alone", "tensor")  # of the mesh of processes


@dataclass(frozen=True)
class Topology:
    """The place of this process among all. A group that has only this process is None.

    Consecutive ranks differ first in the tensor rank, then in the data rank, last in the pipeline
    rank. ``mesh`` has these as dimensions (see DIMENSIONS), and one of this process alone; it is
    None for a model that only computes.
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
    mesh: DeviceMesh | None = None
    split_sequence: bool = False  # each tensor rank has a part of the sequence between layers

    @property
    def first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def micro_batch(self, number: int) -> int:
        """The index, in the global batch, of micro batch ``number`` of this data rank."""
        return number * self.data_size + self.data_rank


def start(config: Config) -> Topology:
    """The place of this process among those that torchrun started, after joining them; without
    torchrun it is alone.

    Raises UsageError if the sizes do not divide the ranks, a GPU is missing, or the others cannot
    be reached.
    """
    world, rank = (int(os.environ.get(name, n)) for name, n in (("WORLD_SIZE", "1"), ("RANK", "0")))
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    if world % (tensor * pipeline):
        raise UsageError(
            f"{world} processes do not divide by {option('tensor_model_parallel_size')} {tensor} x "
            f"{option('pipeline_model_parallel_size')} {pipeline}; start a multiple of "
            f"{tensor * pipeline}"
        )
    device = device_of(config.device)
    timeout = datetime.timedelta(minutes=config.distributed_timeout_minutes)
    if world > 1 or not dist.is_initialized():
        _connect(device, timeout, world)
    sizes = (pipeline, world // (pipeline * tensor), 1, tensor)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=DIMENSIONS)
    places: dict[str, Any] = {}
    for name, size in zip(DIMENSIONS, sizes, strict=True):
        group = mesh.get_group(name)
        _set_pg_timeout(timeout, group)  # a mesh's groups have torch's default
        if name != "alone":
            places[f"{name}_size"], places[f"{name}_rank"] = size, mesh.get_local_rank(name)
            places[f"{name}_group"] = group if size > 1 else None
    if pipeline > 1:  # NCCL needs a collective before the first point-to-point
        dist.all_reduce(torch.zeros(1, device=device), group=places["pipeline_group"])
    sequence = config.sequence_parallel and tensor > 1 and config.engine == "torch"
    return Topology(rank, world, device=device, mesh=mesh, split_sequence=sequence, **places)


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def device_of(wanted: str) -> torch.device:
    """The device of this process: "cpu", "cuda", or with "auto" a GPU if there is one."""
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return CPU
    if not gpus:
        raise UsageError(f"there is no GPU here that torch can use: add {option('device')} cpu")
    if local >= gpus:
        raise UsageError(
            f"process {local} of this machine finds {gpus} GPUs; start at most {gpus} processes "
            f"on it, or use {option('device')} cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _connect(device: torch.device, timeout: datetime.timedelta, world: int) -> None:
    # gloo beside nccl, for tensors on the CPU: voting on a stop must not wait for a GPU.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if world == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return
    bound = device if device.type == "cuda" else None
    choose_interface()
    try:
        dist.init_process_group(backend, timeout=timeout, device_id=bound)
    except (RuntimeError, ValueError) as error:
        where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        interface = os.environ.get(VARIABLE, "not set")
        raise UsageError(
            f"cannot meet the other processes at {where}: {str(error).splitlines()[0]}; is the "
            "port in use, are all processes started, and does a network lead to them "
            f"({VARIABLE}, which names its interface, is {interface})?"
        ) from error


def rank_and_size() -> tuple[int, int]:
    """The rank of this process and the number of all; usable without a topology."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks; collective."""
    if (size := rank_and_size()[1]) == 1:  # gloo's threads could still run while Python exits
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values


def agree(work: Callable[[], T]) -> T:
    """The result of ``work``, done on every rank. An error on one rank is raised on all, so that
    none waits for it.
    """
    failure: Exception | None = None
    try:
        result = work()
    except (TokpackError, OSError) as error:
        failure = error
    for one in gather(failure):
        if one is not None:
            raise one
    return result


def on_main(work: Callable[[], T]) -> T:
    """The result of ``work``, done on rank 0 only; its error is raised on all."""
    main = rank_and_size()[0] == 0
    return cast("T", gather(agree(work if main else lambda: None))[0])


def total(x: Tensor, group: Group | None) -> Tensor:
    """Sum ``x`` over ``group``, in place."""
    if group is not None:
        dist.all_reduce(x, group=group)
    return x


def spread(x: Tensor, source: int, topology: Topology) -> Tensor:
    """Copy ``x`` of the data rank ``source`` to the other data ranks, in place."""
    if topology.data_group is not None:
        dist.broadcast(x, group=topology.data_group, group_src=source)
    return x


def exchanged(x: Tensor, topology: Topology) -> Tensor:
    """The ``x`` of the last stage on the first one, and the reverse; both stages call it."""
    stride = topology.world_size // topology.pipeline_size
    far = (topology.pipeline_size - 1) * stride
    other = topology.rank + (far if topology.first_stage else -far)
    received, group = torch.empty_like(x), topology.pipeline_group
    sent = dist.P2POp(dist.isend, x.contiguous(), other, group)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, other, group)]):
        work.wait()
    return received


def mean_loss(losses: Sequence[Tensor], topology: Topology) -> Tensor:
    """The mean, float32 [], of the losses of the last stages over all data ranks; on every rank."""
    mean = torch.zeros((), device=topology.device)
    if topology.last_stage:
        mean = torch.stack(list(losses)).mean() / topology.data_size
    return total(total(mean, topology.pipeline_group), topology.data_group)


def norms_of(
    rooms: Mapping[str, Sequence[Tensor]], topology: Topology, *, shared: bool = False
) -> Tensor:
    """Norms of gradients, float32 [rooms], over all tensor and pipeline ranks together.

    All ranks have the same rooms, some perhaps empty. With ``shared`` each data rank has other
    gradients; otherwise all data ranks have the same.
    """
    pieces: list[Tensor] = []
    counts = []
    for grads in rooms.values():
        parts = grads
        if topology.device == CPU:  # one sum of 40 million squares is wrong by 3 in 1000
            parts = [x for grad in grads for x in torch.split(grad.flatten(), 1 << 16)]
        pieces += parts
        counts.append(len(parts))
    squares = torch.zeros(len(rooms), device=topology.device)
    if pieces:  # not index_add_, which sums in another order in each run on a GPU
        each = torch.stack(torch._foreach_norm(pieces)).to(squares.dtype) ** 2
        squares = torch.stack([part.sum() for part in torch.split(each, counts)])
    if shared:
        total(squares, topology.data_group)
    return total(total(squares, topology.tensor_group), topology.pipeline_group).sqrt()


def gather_whole(x: Tensor, dim: int | None, topology: Topology) -> Tensor:
    """The whole of a tensor that is split along ``dim``; on every tensor rank, and a collective."""
    if dim is None or topology.tensor_group is None:
        return x
    parts = [torch.empty_like(x) for _ in range(topology.tensor_size)]
    dist.all_gather(parts, x.contiguous(), group=topology.tensor_group)
    return torch.cat(parts, dim)


def own_part(x: Tensor, dim: int | None, topology: Topology) -> Tensor:
    """This tensor rank's part of a whole tensor that is split along ``dim``."""
    return x if dim is None else x.chunk(topology.tensor_size, dim)[topology.tensor_rank]


# Collectives over tensor ranks that change none of their arguments: torch's functional ones.
#
# Compiled code uses these, because the compiler knows them. A collective that writes into its
# argument would be split into an operation and a copy.

Group = dist.ProcessGroup
_ops: Any = torch.ops._c10d_functional


def summed(x: Tensor, group: Group, kind: str = "sum") -> Tensor:
    """The sum of ``x`` over the ranks of ``group``, of the same shape and type; or its "max"."""
    return _ops.wait_tensor(_ops.all_reduce(x.contiguous(), kind, group.group_name))  # type: ignore[no-any-return]


def gathered(part: Tensor, group: Group) -> Tensor:
    """The whole [B, S, H], from the part [B, S / ranks, H] on each rank."""
    part, name = part.movedim(1, 0).contiguous(), group.group_name
    whole: Tensor = _ops.wait_tensor(_ops.all_gather_into_tensor(part, group.size(), name))
    return whole.movedim(0, 1)


def summed_part(x: Tensor, group: Group) -> Tensor:
    """This rank's part [B, S / ranks, H] of the sum of [B, S, H] over all ranks."""
    x, name = x.movedim(1, 0).contiguous(), group.group_name
    part: Tensor = _ops.wait_tensor(_ops.reduce_scatter_tensor(x, "sum", group.size(), name))
    return part.movedim(0, 1)
