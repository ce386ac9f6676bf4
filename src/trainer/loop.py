"""The training run, from the configuration to the exit code."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tokpack.errors import TrainingError, UsageError

from . import checkpoint
from .data import Data, Loader, open_data
from .engine import make_engine
from .metrics import Meter, peak_memory
from .model import ModelConfig
from .parallel import start, stop
from .report import Log, describe
from .schedule import Schedule

if TYPE_CHECKING:
    from types import FrameType

    from .config import Config
    from .data import Samples
    from .engine import Engine
    from .parallel import Topology

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
REASONS = ("", "a signal", "the kill switch", "exit_duration_in_mins", "exit_interval")


def train(config: Config) -> int:
    """Train as configured, together with the other processes of the run; the exit code.

    Raises TokpackError: before any step for what a user can cause, TrainingError where the run
    cannot go on.
    """
    topology = start(config)
    try:
        run = _prepare(config, topology)
        try:
            reason = _make_steps(run)
            _finish(run, reason)
        finally:
            run.log.close(run.entropy)
    except RuntimeError as error:
        if topology.world_size > 1 and ("gloo" in str(error) or isinstance(error, dist.DistError)):
            raise TrainingError(
                "another process of the run is gone, or does not answer: "
                + str(error).partition("\n")[0]
            ) from error
        raise
    stop()
    return 0


@dataclass
class Run:
    """All that a run is made of, and how far it has come."""

    config: Config
    topology: Topology
    data: Data
    model: ModelConfig
    schedule: Schedule
    engine: Engine
    log: Log
    meter: Meter
    entropy: float
    step: int
    consumed: int
    saved: int  # the step of the newest checkpoint

    def at(self) -> dict[str, Any]:
        return {"iteration": self.step, "consumed_samples": self.consumed}


def _prepare(config: Config, topology: Topology) -> Run:
    """Open, check, build and load everything, and say what will be done."""
    data = checkpoint.agree(lambda: open_data(config, config.micro_batch_size * topology.data_size))
    schedule = Schedule.of(config, len(data.train))
    _check_batches(config, schedule, topology)
    entropy = checkpoint.on_main(lambda: data.unigram_entropy(schedule.train_samples))
    model = ModelConfig.of(config, data.vocab_size)
    _claim(config)
    engine = make_engine(config, model, topology)
    step, consumed = _load(config, data, model, engine)
    steps = step + schedule.count_steps(consumed)
    log = checkpoint.agree(lambda: Log(config, topology, steps, step))
    meter = Meter(model.flops_per_token, config.seq_length, topology)
    for text in (*config.notes, *data.notes):
        log.say(f"note: {text}")
    plan = describe(config, topology, data, model, schedule, consumed=consumed, entropy=entropy)
    for text in plan:
        log.say(text)
    return Run(
        config, topology, data, model, schedule, engine, log, meter, entropy, step, consumed, step
    )


def _check_batches(config: Config, schedule: Schedule, topology: Topology) -> None:
    micro, ranks = config.micro_batch_size, topology.data_size
    for size in schedule.batch_sizes():
        if size % (micro * ranks):
            raise UsageError(
                f"a batch of {size} does not divide into micro batches of {micro} on {ranks} data "
                f"parallel ranks: use multiples of {micro * ranks}"
            )


def _claim(config: Config) -> None:
    """Take the folder that this run saves to; another run's checkpoints are not mixed with ours."""
    if not (folder := config.save):
        return
    checkpoint.agree(lambda: os.makedirs(folder, exist_ok=True))
    checkpoint.claim(folder)
    found = checkpoint.on_main(lambda: checkpoint.find(folder))
    if found and os.path.realpath(config.load or "") != os.path.realpath(folder):
        raise UsageError(
            f"save: {folder} holds {found.name} of another run: go on from it with --load "
            f"{folder}, or save to another folder"
        )


def _load(config: Config, data: Data, model: ModelConfig, engine: Engine) -> tuple[int, int]:
    """Steps made and samples consumed by the run that is continued; 0 and 0 for a new one."""
    if not config.load:
        return 0, 0
    state = checkpoint.load(engine, config.load, model, finetune=config.finetune)
    if state is None or not state.consumed_samples:
        return 0, 0
    data.check(state.data_state)
    return state.step, state.consumed_samples


def _make_steps(run: Run) -> str:
    """Train to the end, or until something asks to stop: what did, or an empty string."""
    config, schedule, first_step = run.config, run.schedule, run.step
    loader = Loader(
        run.data,
        run.data.train,
        schedule.steps(run.consumed),
        config.micro_batch_size,
        run.topology,
    )
    stops = Stops(config, run.topology)
    try:
        run.meter.restart(loader.waited)
        for first, size in schedule.steps(run.consumed):
            if reason := stops.asked(run.step, run.step - first_step):
                return reason
            lr = schedule.lr(first)
            result = run.engine.train_batch(next(loader), lr)
            run.step, run.consumed = run.step + 1, first + size
            run.meter.add(result, size)
            run.log.progress(run.step)
            if run.step % config.log_interval == 0:
                _look(run, loader, lr, size)
            if run.data.valid and run.step % config.eval_interval == 0:
                _look(run, loader, lr, size)
                _evaluate(run, run.data.valid)
                run.meter.restart(loader.waited)
            if config.save_interval and run.step % config.save_interval == 0:
                _look(run, loader, lr, size)
                _save(run)
                run.meter.restart(loader.waited)
        return ""
    finally:
        stops.close()
        loader.close()


def _look(run: Run, loader: Loader, lr: float, size: int) -> None:
    """Log the steps that nobody has looked at; TrainingError where a loss is not finite."""
    if run.meter.results:
        values = run.at() | {"batch_size": size, "lr": lr} | run.meter.read(loader.waited)
        peak = checkpoint.gather(peak_memory(run.topology.device))
        run.log.step(values | {"peak_memory_bytes": max(peak), "device": run.topology.device.type})
        run.meter.restart(loader.waited)


def _finish(run: Run, reason: str) -> None:
    """Save, and evaluate a run that came to its end."""
    if reason:
        run.log.say(f"stopped at iteration {run.step:,} by {reason}")
    if run.config.save and run.saved != run.step:
        _save(run)
    if not reason:
        _evaluate(run, {**run.data.valid, **run.data.test})


def _evaluate(run: Run, sets: dict[str, Samples]) -> None:
    """Loss over the first samples of each set: eval_iters batches, or as many as it has."""
    batch = run.config.global_batch_size
    step = run.config.micro_batch_size * run.topology.data_size
    for name, samples in sets.items():
        count = min(run.config.eval_iters * batch, len(samples)) // step * step
        parts = [(first, min(batch, count - first)) for first in range(0, count, batch)]
        loader = Loader(run.data, samples, parts, run.config.micro_batch_size, run.topology)
        try:
            losses = [run.engine.evaluate(batches) for batches in loader]
        finally:
            loader.close()
        sizes = torch.tensor([size for _, size in parts], device=losses[0].device)
        mean = float((torch.stack(losses) * sizes).sum() / count)
        run.log.evaluation(name, mean, run.at())


def _save(run: Run) -> None:
    folder = run.config.save
    assert folder is not None
    begin = time.perf_counter()
    state = checkpoint.RunState(
        step=run.step,
        consumed_samples=run.consumed,
        data_state=run.data.state(run.consumed),
        config=run.config.to_dict(),
        model=dataclasses.asdict(run.model),
        tokenizer=run.data.train.tokenizer,
    )
    checkpoint.save(run.engine, folder, state, keep=run.config.keep_checkpoints)
    run.saved = run.step
    seconds = time.perf_counter() - begin
    run.log.say(f"saved iteration {run.step:,} to {folder} in {seconds:.1f} s")
    run.log.record("save", folder=folder, seconds=seconds, **run.at())


class Stops:
    """Why a run should stop: a signal to any of its processes, or what rank 0 sees."""

    def __init__(self, config: Config, topology: Topology) -> None:
        self._config, self._topology = config, topology
        self._begin = time.monotonic()
        self._signalled = False
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        gpu = topology.world_size > 1 and topology.device.type == "cuda"
        self._group = dist.new_group(backend="gloo") if gpu else None  # asks without a GPU's help

    def close(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self, step: int, made: int) -> str:
        """Who asks to stop before the next step, if anybody; collective, the same on every rank."""
        reason = torch.tensor(self._own(step, made))
        if self._topology.world_size > 1:
            dist.all_reduce(reason, dist.ReduceOp.MAX, group=self._group)
        return REASONS[int(reason)]

    def _own(self, step: int, made: int) -> int:
        config, minutes = self._config, (time.monotonic() - self._begin) / 60
        if self._signalled:
            return 1
        if self._topology.is_main and os.path.exists(config.kill_switch_path or ""):
            return 2
        limit = config.exit_duration_in_mins
        if self._topology.is_main and limit is not None and minutes > limit:
            return 3
        return 4 if made and config.exit_interval and step % config.exit_interval == 0 else 0

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True
