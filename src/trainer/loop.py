"""The training run, from the configuration to the exit code."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tokpack.errors import TrainingError, UsageError

from . import checkpoint
from .data import Data, open_data, stream
from .engine import make_engine
from .metrics import Meter, peak_memory
from .model import ModelConfig
from .parallel import start, stop
from .report import Log, describe
from .schedule import Schedule

if TYPE_CHECKING:
    from types import FrameType

    from tokpack.samples import SampleIterator

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
        stops = Stops(config, topology)
        try:
            _finish(run, _make_steps(run, stops))
        finally:
            stops.close()
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
    stream: SampleIterator
    log: Log
    meter: Meter
    entropy: float
    step: int
    saved: int  # the step of the newest checkpoint

    @property
    def consumed(self) -> int:
        return self.stream.consumed_samples

    def at(self) -> dict[str, Any]:
        return {"iteration": self.step, "consumed_samples": self.consumed}


def _prepare(config: Config, topology: Topology) -> Run:
    """Open, check, build and load everything, and say what will be done."""
    least = config.micro_batch_size * topology.data_size
    data = checkpoint.agree(lambda: open_data(config, least))
    schedule = Schedule.of(config, len(data.train), least)
    entropy = checkpoint.on_main(lambda: data.unigram_entropy(schedule.train_samples))
    model = ModelConfig.of(config, data.vocab_size)
    _claim(config)
    engine = make_engine(config, model, topology)
    samples, step = stream(data, data.train, config, topology), 0
    if config.load:
        state = checkpoint.load(engine, config.load, model, finetune=config.finetune)
        if state is not None and state.consumed_samples:
            samples.load_state_dict(state.data_state)
            step = state.step
    consumed = samples.consumed_samples
    steps = step + schedule.count_steps(consumed)
    log = checkpoint.agree(lambda: Log(config, topology, steps, step))
    for text in (*config.notes, *data.notes):
        log.say(f"note: {text}")
    for text in describe(config, topology, data, model, schedule, consumed, entropy):
        log.say(text)
    meter = Meter(model.flops_per_token, config.seq_length, topology)
    return Run(
        config, topology, data, model, schedule, engine, samples, log, meter, entropy, step, step
    )


def _claim(config: Config) -> None:
    """Take the folder that this run saves to; another run's checkpoints are not mixed with ours."""
    if not (folder := config.save):
        return
    checkpoint.agree(lambda: os.makedirs(folder, exist_ok=True))
    checkpoint.claim(folder)
    found = checkpoint.on_main(lambda: checkpoint.find(folder))
    loaded = os.path.realpath(config.load) if config.load else ""
    if found and os.path.realpath(folder) not in (loaded, os.path.dirname(loaded)):
        raise UsageError(
            f"save: {folder} holds {found.name} of another run: go on from it with --load "
            f"{folder}, or save to another folder"
        )


def _make_steps(run: Run, stops: Stops) -> str:
    """Train to the end, or until something asks to stop: what did, or an empty string."""
    config, least = run.config, run.config.micro_batch_size * run.topology.data_size
    begun = run.step
    run.meter.restart()
    for first, size in run.schedule.steps(run.consumed):
        if reason := stops.asked(run.step, run.step - begun):
            return reason
        lr = run.schedule.lr(first)
        begin = time.perf_counter()
        batches = list(islice(run.stream, size // least))
        run.meter.waited += time.perf_counter() - begin
        run.meter.add(run.engine.train_batch(batches, lr), size, lr)
        run.step += 1
        run.log.progress(run.step)
        evaluates = run.data.valid and run.step % config.eval_interval == 0
        every = config.save_interval if config.save else None
        saves = every is not None and run.step % every == 0
        if evaluates or saves or run.step % config.log_interval == 0:
            _look(run)
        if evaluates:
            _evaluate(run, run.data.valid)
        if saves:
            _save(run)
        if evaluates or saves:
            run.meter.restart()
    return ""


def _look(run: Run) -> None:
    """Log the steps since the last look; TrainingError where a loss is not finite."""
    values = run.at() | run.meter.read()
    peak = checkpoint.gather(peak_memory(run.topology.device))
    run.log.step(values | {"peak_memory_bytes": max(peak), "device": run.topology.device.type})
    run.meter.restart()


def _finish(run: Run, reason: str) -> None:
    """Save, and evaluate a run that came to its end."""
    if reason:
        run.log.say(f"stopped at iteration {run.step:,} by {reason}")
    if run.meter.results:
        _look(run)
    if run.config.save and run.saved != run.step:
        _save(run)
    if not reason:
        _evaluate(run, {**run.data.valid, **run.data.test})


def _evaluate(run: Run, sets: dict[str, Samples]) -> None:
    """Loss over the first samples of each set: eval_iters batches, or as many as it has."""
    config, least = run.config, run.config.micro_batch_size * run.topology.data_size
    for name, samples in sets.items():
        count = min(config.eval_iters * config.global_batch_size, len(samples)) // least
        batches = islice(stream(run.data, samples, config, run.topology), count)
        loss = 0.0
        while part := list(islice(batches, config.global_batch_size // least)):
            loss += float(run.engine.evaluate(part)) * len(part) / count
        run.log.evaluation(name, loss, run.at())


def _save(run: Run) -> None:
    folder, begin = run.config.save or "", time.perf_counter()
    state = checkpoint.RunState(
        step=run.step,
        consumed_samples=run.consumed,
        data_state=run.stream.state_dict(),
        config=run.config.to_dict(),
        model=dataclasses.asdict(run.model),
        tokenizer=run.data.train.tokenizer,
    )
    checkpoint.save(run.engine, folder, state, keep=run.config.keep_checkpoints)
    run.saved, seconds = run.step, time.perf_counter() - begin
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
        if made and self._topology.is_main and limit is not None and minutes > limit:
            return 3
        return 4 if made and config.exit_interval and step % config.exit_interval == 0 else 0

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True
