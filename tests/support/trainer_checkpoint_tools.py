"""Runs in several processes, and runs that are killed, for the tests of checkpoints."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from support.faults import plant
from support.rank_server import server
from support.rounding import EXACT
from support.trainer_model_tools import SMALL, VOCAB, model_of
from tokpack.errors import FormatError, OutputError
from tokpack.trainer import checkpoint, parallel
from tokpack.trainer.checkpoints.files import RunState
from tokpack.trainer.checkpoints.folder import find
from tokpack.trainer.config.config import Config
from tokpack.trainer.engine import make_engine

if TYPE_CHECKING:
    import multiprocessing
    from collections.abc import Callable

    from tokpack.trainer.config.model import ModelConfig
    from tokpack.trainer.engine import Engine
    from tokpack.trainer.model import Batch

LIMIT = 100  # seconds


def make(**settings: Any) -> Engine:
    """An engine over the processes there are."""
    config = Config(**{**SMALL, "clip_grad": 0.3, **settings})
    topology = parallel.start(config) if not torch.distributed.is_initialized() else place(config)
    return make_engine(config, model_of(**settings), topology)


def load(
    engine: Engine, folder: str | Path, model: ModelConfig, *, finetune: bool = False
) -> RunState | None:
    """The state of the latest checkpoint of a folder, loaded, as a run does; None without one."""
    weights = checkpoint.open_latest(folder, model, finetune=finetune)
    return None if weights is None else checkpoint.load(engine, weights, finetune=finetune)


def place(config: Config) -> parallel.Topology:
    """A topology again, in processes that are connected already."""
    connect, parallel._connect = parallel._connect, lambda *_: None
    try:
        return parallel.start(config)
    finally:
        parallel._connect = connect


def batch(step: int, number: int) -> Batch:
    """Micro batch ``number`` of a step: two samples."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    ids = torch.randint(0, VOCAB, (2, 65), generator=generator)
    return {
        "tokens": ids[:, :-1],
        "labels": ids[:, 1:],
        "loss_mask": torch.ones(2, 64),
        "position_ids": torch.arange(64).expand(2, 64),
    }


def steps(engine: Engine, first: int, count: int) -> list[float]:
    """Losses of ``count`` steps of four micro batches, whatever the number of data ranks."""
    data = engine.topology
    own = range(data.data_rank, 4, data.data_size)
    return [
        float(engine.train_batch([batch(step, number) for number in own], 1e-3).loss)
        for step in range(first, first + count)
    ]


def state(engine: Engine, step: int, **settings: Any) -> RunState:
    """What the loop would say of the run."""
    return RunState(step, 8 * step, {}, {}, dataclasses.asdict(model_of(**settings)))


def begin(work: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """Start one process, for the caller to kill."""
    process = server().Process(target=work, args=args, daemon=True)
    process.start()
    return process


def resume_everywhere(argument: tuple[str, dict[str, Any], list[float]]) -> None:
    """From a checkpoint of one process; then a save and a bit-exact resume of this topology."""
    torch.set_num_threads(1)
    folder, settings, expected = argument
    model = model_of(**settings)
    engine = make(**settings)
    found = load(engine, f"{folder}/one", model)
    assert found is not None
    assert found.step == 3
    losses = steps(engine, 3, 3)
    assert max(abs(a - b) for a, b in zip(losses, expected[3:6], strict=True)) < EXACT, losses
    own = f"{folder}/many"
    for one in (own, f"{folder}/worn"):
        checkpoint.CheckpointWrite(engine, one, state(engine, 6, **settings)).finish()
    losses = steps(engine, 6, 3)
    again = make(**settings, seed=7)
    assert load(again, own, model) is not None
    assert steps(again, 6, 3) == losses
    assert max(abs(a - b) for a, b in zip(losses, expected[6:], strict=True)) < EXACT, losses
    full_disk(engine, f"{folder}/worn", settings)
    broken_for_all(engine, f"{folder}/worn", settings)


def full_disk(engine: Engine, folder: str, settings: dict[str, Any]) -> None:
    """One writer fails: all ranks raise the same error, and the checkpoint before stays."""
    name = "layer_002.safetensors"
    full = OutputError(f"cannot write {name}: No space left on device")
    with pytest.MonkeyPatch.context() as patch:
        plant(
            checkpoint, "write_tensors", full, when=lambda path, _: path.name == name, patch=patch
        )
        with pytest.raises(OutputError, match=name):
            checkpoint.CheckpointWrite(engine, folder, state(engine, 9, **settings)).finish()
    path = find(folder)
    assert path is not None
    assert path.name == "step_00000006"


def broken_for_all(engine: Engine, folder: str, settings: dict[str, Any]) -> None:
    """A broken file is one rank's to find, and every rank's error."""
    path = find(folder)
    assert path is not None
    if engine.topology.is_main:
        with open(path / "layer_001.safetensors", "r+b") as file:
            file.truncate(1000)
    parallel.gather(None)
    with pytest.raises(FormatError, match=r"layer_001\.safetensors"):
        load(engine, folder, model_of(**settings))


def save_for_ever(folder: str, told: str) -> None:
    """Resume, then save step after step, each of them twice; tell a file what is saved."""
    torch.set_num_threads(1)
    engine, model = make(num_layers=2), model_of(num_layers=2)
    found = load(engine, folder, model)
    step = 0 if found is None else found.step
    assert engine.steps == step
    with open(told, "a", buffering=1) as file:
        while True:
            steps(engine, step, 1)
            step += 1
            meta = state(engine, step, num_layers=2)
            checkpoint.CheckpointWrite(engine, folder, meta, keep=2).finish()
            checkpoint.CheckpointWrite(engine, folder, meta, keep=2).finish()
            file.write(f"{step}\n")


def claim_and_wait(folder: str, told: str) -> None:
    """Claim a folder, tell a file, and keep it."""
    checkpoint.claim(folder, None)
    Path(told).write_text("claimed")
    time.sleep(LIMIT)
