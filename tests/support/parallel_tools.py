"""Small training runs in one process or in many, on gloo, for the tests of the trainer.

torch is imported inside functions, so that this module loads where torch is not installed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.ports import own_port
from support.rank_server import server
from tokpack.trainer.config.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 500
BATCHES = 4  # of data that repeat
LIMIT = 300  # seconds that a job may take on a loaded machine
TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 64,
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "weight_decay": 0.1,
    "device": "cpu",
}
NEOX: dict[str, Any] = {
    "position_embedding_type": "rope",
    "rotary_percent": 0.25,
    "parallel_residual": True,
    "untie_embeddings_and_output_weights": True,
    "activation": "gelu_erf",
}
LLAMA: dict[str, Any] = {
    "position_embedding_type": "rope",
    "num_query_groups": 2,
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "embed_layernorm": True,
    "make_vocab_size_divisible_by": 200,  # 600 rows, and 800 of two tensor ranks
}
TP = {"tensor_model_parallel_size": 2}
PP = {"pipeline_model_parallel_size": 2}
RAMP = {"rampup_batch_size": (4, 4, 12)}  # 3 steps of 4 samples, then steps of 8: 6 show both

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Run:
    """One run: settings beyond TINY, processes, steps, micro batches in the whole batch."""

    settings: dict[str, Any]
    world: int = 1
    steps: int = BATCHES
    micro_batches: int = 4
    documents: bool = False


def batches(run: Run, data_rank: int, data_size: int) -> list[list[dict[str, Any]]]:
    """Micro batches of each step; data rank r takes the r-th of every ``data_size``."""
    import torch

    generator = torch.Generator().manual_seed(7)
    shape = (BATCHES, run.micro_batches, 2, 65)
    walks = torch.randn(shape, generator=generator).mul(3).round().long().cumsum(-1)
    counted = (torch.rand(shape, generator=generator) > 0.1).float()
    pairs = zip((walks * 7) % VOCABULARY, counted, strict=True)
    mine = slice(data_rank, None, data_size)
    return [
        [micro_batch(t, m, run.documents) for t, m in zip(tokens[mine], mask[mine], strict=True)]
        for tokens, mask in pairs
    ]


def micro_batch(tokens: Any, mask: Any, documents: bool) -> dict[str, Any]:
    """A micro batch of int64 [2, 65]; its samples hold two and three documents, if any."""
    import torch

    batch = {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": mask[:, 1:],
        "position_ids": torch.arange(64).expand(2, 64),
    }
    if documents:
        edges = torch.full((2, 65), 64, dtype=torch.int32)
        edges[0, :2] = torch.tensor([0, 20])
        edges[1, :3] = torch.tensor([0, 7, 40])
        batch["cu_seqlens"] = edges
    return batch


def open_engine(settings: dict[str, Any]) -> Any:
    """The engine of TINY with other settings, among the processes of the environment."""
    import torch

    from tokpack.trainer import parallel
    from tokpack.trainer.config.model import ModelConfig
    from tokpack.trainer.engine import make_engine

    torch.set_num_threads(1)
    config = Config(**{**TINY, **settings})
    if config.engine == "deepspeed" and torch.get_default_dtype() == torch.float64:
        _widen_deepspeed()
    return make_engine(config, ModelConfig.of(config, VOCABULARY), parallel.start(config))


def train(run: Run) -> Figures:
    """What a run reports at each step, and the loss of an evaluation."""
    from tokpack.trainer.config.schedule import Schedule

    engine = open_engine(run.settings)
    ranks, consumed = engine.topology.data_size, 0
    data = batches(run, engine.topology.data_rank, ranks)
    schedule = Schedule(engine.config, epoch=1000)
    found: Figures = {"loss": [], "norm": [], "scale": [], "skipped": []}
    for step in range(run.steps):
        size = schedule.batch_size(consumed)
        result = engine.train_batch(data[step % BATCHES][: size // (2 * ranks)], 1e-3)
        consumed += size
        found["loss"].append(result.loss.item())
        found["norm"].append(result.grad_norm.item())
        found["scale"].append(result.loss_scale)
        found["skipped"].append(float(result.skipped))
    found["norms"] = [] if result.norms is None else result.norms.tolist()
    return {**found, "evaluation": [engine.evaluate(data[0]).item()], "steps": [engine.steps]}


def save_state(argument: tuple[Run, str]) -> None:
    """Train, and write this stage's whole tensors, as arrays, and the scalars."""
    run, path = argument
    engine = open_engine(run.settings)
    topology = engine.topology
    data = batches(run, topology.data_rank, topology.data_size)
    for step in range(run.steps):
        engine.train_batch(data[step % BATCHES], 1e-3)
    whole = dict(engine.full_state())
    if topology.data_rank == topology.tensor_rank == 0:
        arrays = {name: {k: x.numpy() for k, x in kinds.items()} for name, kinds in whole.items()}
        with open(f"{path}.{topology.pipeline_rank}", "wb") as file:
            pickle.dump((arrays, engine.scalars()), file)
    else:
        assert not any(whole.values())


def go_on(argument: tuple[Run, list[str]]) -> list[float]:
    """The losses of as many more steps of an engine that takes what ``save_state`` wrote."""
    import torch

    run, paths = argument
    engine = open_engine(run.settings)
    stages = [pickle.loads(Path(path).read_bytes()) for path in paths]
    whole = {
        name: {kind: torch.from_numpy(x) for kind, x in kinds.items()}
        for stage, _ in stages
        for name, kinds in stage.items()
    }
    assert len(whole) == sum(len(stage) for stage, _ in stages)  # a tied head is not repeated
    engine.load_full_state(lambda name, _: whole[name], optimizer=True)
    engine.load_scalars(stages[0][1])
    assert engine.steps == run.steps
    data = batches(run, engine.topology.data_rank, engine.topology.data_size)
    steps = range(run.steps, 2 * run.steps)
    return [engine.train_batch(data[step % BATCHES], 1e-3).loss.item() for step in steps]


def in_processes(
    jobs: list[tuple[int, Callable[[Any], Any], Any]], *, float64: bool = False
) -> list[list[Any]]:
    """Call each (processes, function, argument) in its processes, one job after the other.

    With ``float64`` torch computes in it wherever it would in fp32. Returns what the ranks of each
    job returned. Raises AssertionError with a rank's traceback.
    """
    context = server()
    results = context.Queue()
    work = [(*job, own_port()) for job in jobs]
    ranks = range(max(world for world, *_ in jobs))
    # The server has the environment of whichever test started it.
    environment = dict(os.environ)
    arguments = [(rank, work, results, float64, environment) for rank in ranks]
    processes = [context.Process(target=_work, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        found: list[dict[int, Any]] = [{} for _ in jobs]
        for _ in range(sum(world for world, *_ in jobs)):
            number, rank, value, error = results.get(timeout=LIMIT)
            assert not error, f"rank {rank} of job {number}, {jobs[number][2]}: {error}"
            found[number][rank] = value
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [[values[rank] for rank in sorted(values)] for values in found]


def train_apart(runs: list[Run], folder: Path) -> list[Figures]:
    """Train each in float64 by ranks that share nothing but their launcher, as on a cluster.

    Each rank is a new Python, whose texts have other hashes than those of the others.
    """
    jobs, world = folder / "jobs", max(run.world for run in runs)
    jobs.write_bytes(pickle.dumps([(run.world, train, run, own_port()) for run in runs]))
    path = os.pathsep.join(filter(None, sys.path))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", APART, str(jobs), str(rank)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(rank + 1)},
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(LIMIT) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
    found = [pickle.loads((folder / f"jobs.{rank}").read_bytes()) for rank in range(world)]
    errors = [error for told in found for _, _, _, error in told if error]
    assert not errors, errors[0]
    return [next(one for at, _, one, _ in found[0] if at == n) for n in range(len(runs))]


APART = """
import os, pickle, sys
from support import parallel_tools
jobs, rank = sys.argv[1:]
class Told(list):
    put = list.append
told = Told()
with open(jobs, "rb") as file:
    parallel_tools._work(int(rank), pickle.load(file), told, True, dict(os.environ))
with open(f"{jobs}.{rank}", "wb") as file:
    pickle.dump(list(told), file)
sys.stdout.flush()
os._exit(0)
"""


def first_weights(config: Config) -> dict[str, Any]:
    """The whole weights by name with which a run begins."""
    from tokpack.trainer.config.model import ModelConfig
    from tokpack.trainer.model import Stage
    from tokpack.trainer.parallel import Topology

    stage = Stage(ModelConfig.of(config, VOCABULARY), Topology())
    stage.initialise(config.seed)
    return {
        name: stage.gather_whole(name, weight.detach()) for name, weight in stage.named_parameters()
    }


def train_many(runs: list[Run], *, float64: bool = False) -> list[Figures]:
    """Train each in its processes; all ranks must report the same."""
    found = in_processes([(run.world, train, run) for run in runs], float64=float64)
    for run, ranks in zip(runs, found, strict=True):
        assert len(set(map(repr, ranks))) == 1, f"ranks of {run} differ: {ranks}"
    return [ranks[0] for ranks in found]


def _widen_deepspeed() -> None:
    """Let DeepSpeed, which asks torch for fp32 by name, have float64 from here on."""
    import torch
    from deepspeed.runtime.pipe.engine import PipelineEngine

    torch.float = torch.float32 = torch.float64  # type: ignore[misc]
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    # It asked while it was imported for the type of a loss that goes to the other stages.
    PipelineEngine._bcast_pipe_scalar.__defaults__ = (None, torch.float64)


def _work(
    rank: int,
    jobs: list[tuple[int, Callable[[Any], Any], Any, int]],
    results: Any,
    float64: bool,
    environment: dict[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    import torch

    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    for number, (world, function, argument, port) in enumerate(jobs):
        if rank >= world:
            continue
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(where, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        try:
            from tokpack.trainer import parallel

            results.put((number, rank, function(argument), ""))
            parallel.stop()
        except Exception:
            results.put((number, rank, None, traceback.format_exc()))
            return
