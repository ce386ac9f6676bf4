"""Whether the trainer's layouts give on GPUs what one process gives there: part of ``gpu.py``.

Each rank is a process. Where there are fewer GPUs than ranks they share them, which NCCL allows
from 2.31 on with ``NCCL_MULTI_RANK_GPU_ENABLE=1``: that shows what is right, not how fast it is.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import queue
import socket
import traceback
from typing import TYPE_CHECKING, Any

import torch
from gpu_steps import batches, config_of, furthest, open_engine, waits

from tokpack.trainer.attention import fastest_kernel

if TYPE_CHECKING:
    from concurrent.futures import Future

Row = dict[str, Any]
Settings = dict[str, Any]

TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}
# Settings, ranks.
LAYOUTS: dict[str, tuple[Settings, int]] = {
    "2 data ranks": ({}, 2),
    "2 data ranks, ZeRO 1": ({"zero_stage": 1}, 2),
    "2 data ranks, ZeRO 2": ({"zero_stage": 2}, 2),
    "2 data ranks, ZeRO 3": ({"zero_stage": 3}, 2),
    "2 tensor ranks": ({"tensor_model_parallel_size": 2}, 2),
    "2 tensor ranks, sequence in parts": (TENSOR, 2),
    "2 stages": (PIPELINE, 2),
    "2 data x 2 tensor ranks, ZeRO 3, sequence in parts": ({**TENSOR, "zero_stage": 3}, 4),
    "2 data ranks x 2 stages, ZeRO 2": ({**PIPELINE, "zero_stage": 2}, 4),
}
BOUND = 1e-4  # relative, of losses in fp32 after STEPS steps; thirty times that of gradients' norms
STEPS = 4
PATIENCE = 300.0  # seconds for all ranks of a layout, imports and compilation too


def layout(name: str, size: tuple[int, ...], device: str, alone: Future[Row]) -> Row:
    """How far the losses of a layout are from those of one process ``alone`` on the device."""
    settings, ranks = LAYOUTS[name]
    row: Row = {"case": name, "ranks": ranks, "bound": BOUND}
    try:
        one, many = alone.result(), in_ranks(settings, ranks, size, device)
    except RuntimeError as error:
        return {**row, "failed": str(error), "right": False}
    apart, norm = (furthest(many[key], one[key]) for key in ("losses", "norms"))
    row |= {"loss": many["losses"][-1], "apart": apart, "norm": norm, "waits": many["waits"]}
    return {**row, "right": apart <= BOUND and norm <= 30 * BOUND and many["waits"] == "never"}


def in_ranks(settings: Settings, ranks: int, size: tuple[int, ...], device: str) -> Row:
    """What rank 0 found; RuntimeError with the first error of a rank."""
    context = mp.get_context("spawn" if device == "cuda" else "fork")  # a fork has no CUDA
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers = context.Queue()
    work = [(rank, ranks, port, settings, size, device, answers) for rank in range(ranks)]
    processes = [context.Process(target=_rank, args=one) for one in work]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=PATIENCE) for _ in processes]
    except queue.Empty:
        raise RuntimeError(f"no answer after {PATIENCE:.0f} s") from None
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    for _, result in found:
        if isinstance(result, str):
            raise RuntimeError(result)
    return next(result for rank, result in found if rank == 0)


def _rank(
    rank: int, ranks: int, port: int, settings: Settings, size: tuple[int, ...], *rest: Any
) -> None:
    device, answers = rest
    local = rank % max(1, torch.cuda.device_count())
    places = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        answers.put((rank, _train(settings, size, device)))
    except Exception:  # told by the process that asked
        answers.put((rank, f"rank {rank}: {traceback.format_exc()[-1500:]}"))
    answers.close()
    answers.join_thread()
    os._exit(0)  # without waiting for others, which may have failed


def _train(settings: Settings, size: tuple[int, ...], device: str) -> Row:
    """Losses and norms of some steps, then whether one step more waits for the device."""
    config = config_of(size, device, 2, **{"global_batch_size": 8, "precision": "fp32", **settings})
    engine = open_engine(config)
    topology = engine.topology
    mine = batches(config, 1)[topology.data_rank :: topology.data_size]
    with fastest_kernel(topology.device):
        steps = [engine.train_batch(mine, 3e-3) for _ in range(STEPS)]
        found: Row = {"losses": [float(step.loss) for step in steps]}
        found["norms"] = [float(step.grad_norm) for step in steps]
        found["waits"] = waits(lambda: engine.train_batch(mine, 3e-3), device)
    if device == "cuda":
        torch.cuda.synchronize()
    return found
