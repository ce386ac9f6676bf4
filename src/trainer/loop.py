"""The training run, from its configuration to its exit code."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import re
import signal
import threading
import time
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tokpack.display import tell
from tokpack.errors import OutputError, TrainingError, option, worded
from tokpack.machine import interrupts

from . import checkpoint
from .blocks import fastest_kernel
from .checkpoints.files import RunState
from .data import stream, weigh
from .log import describe
from .metrics import peak_memory
from .parallel import gather, start, stop
from .profile import profiled
from .run import AsyncSave, TrainingRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .checkpoints.history import TrainingResult
    from .config.config import Config
    from .data import Samples

COLLECTED = 100  # steps between two garbage collections of Python
INTERRUPT = "Ctrl-C"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


def train(config: Config, inputs: Sequence[str] = (), again: str = "") -> TrainingResult:
    """The result of a run, trained as configured, together with the other processes of the run.

    ``inputs`` are files that the configuration was read from: the run does not replace them. A run
    that stops before its end says that ``again`` goes on. Raises TokpackError: before the first
    step for mistakes of the user, TrainingError if the run cannot continue; KeyboardInterrupt after
    a run that Ctrl-C stopped.
    """
    topology = start(config)
    try:
        run = TrainingRun(config, topology, inputs)
        if topology.is_main:
            for text in describe(run):
                tell(worded(text, config.flags))
        run.begin()
        fastest = fastest_kernel(topology.device)
        with (
            closing(run.log),
            fastest,
            _collected_at_once(),
            _received_signals(topology.is_main) as signals,
        ):
            try:
                with profiled(run) as before:
                    reason = _make_steps(run, signals, before)
                reason = _finish(run, signals, reason)
            except TrainingError:  # raised on all ranks: a checkpoint that was begun is completed
                _end_save(run)
                raise
        if reason and run.saved == run.step and config.save:
            run.log.say(again)
        # All ranks meet here: the first one that exits with an error, as after Ctrl-C, makes the
        # launcher end the others.
        gather(None)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise TrainingError(
                f"out of memory on rank {topology.rank}: lower {option('micro_batch_size')}, "
                f"recompute with {option('checkpoint_activations')}, or share the model among more "
                "processes"
            ) from error
        if topology.world_size > 1 and ("gloo" in str(error) or isinstance(error, dist.DistError)):
            reason = re.sub(r"^\[[^]]*\] ", "", str(error)).splitlines()[0].partition(". ")[0]
            raise TrainingError(
                f"another process of the run is gone, or does not answer: {reason}"
            ) from error
        raise
    stop()
    if reason == INTERRUPT:
        raise KeyboardInterrupt
    return run.result()


def _make_steps(run: TrainingRun, signals: list[int], before: Callable[[int], None]) -> str:
    """The reason to stop before the end, or "" if training came to its end.

    ``before`` is called before each step, with its number.
    """
    config, begun, begin = run.config, run.step, time.monotonic()

    def due(interval: int | None) -> bool:
        return interval is not None and run.step % interval == 0

    extra = config.extra_save_iters if config.save else ()
    if run.step == 0 and 0 in extra:
        _try_to_save(run)
    run.meter.restart()
    for first, size in run.schedule.steps(run.consumed):
        minutes = (time.monotonic() - begin) / 60 if run.step > begun else -1.0
        reason, timed = _asked(run, signals, minutes)
        if reason:
            return reason
        before(run.step + 1)
        lr, began = run.schedule.lr(first), time.perf_counter()
        batches = list(islice(run.stream, size // run.smallest))
        run.meter.waited += time.perf_counter() - began
        run.meter.labels.append(sum(int(one["loss_mask"].count_nonzero()) for one in batches))
        if config.calculate_per_token_loss:
            weigh(batches, run.topology)
        run.meter.add(run.engine.train_batch(batches, lr), size, lr)
        run.step += 1
        if run.step % COLLECTED == 0:
            gc.collect()
        run.log.progress(run.step)
        evaluates = due(config.eval_interval) and run.data.valid
        saves = (due(config.save_interval) and config.save) or timed or run.step in extra
        if evaluates or saves or due(config.log_interval):
            _look(run)
        if evaluates and (reason := _evaluate(run, signals, run.data.valid)):
            return reason
        if saves:
            _try_to_save(run)
        if evaluates or saves:
            run.meter.restart()
    return ""


def _asked(run: TrainingRun, signals: list[int], minutes: float) -> tuple[str, bool]:
    """The reason to stop before the next step, or batch of an evaluation, or ""; and whether it is
    time to save after that step.

    Collective, and the same on every rank. ``minutes`` is the time since the first step, -1 before
    it and in an evaluation. A checkpoint that all ranks have written by now is completed here.
    """
    config, main = run.config, run.topology.is_main
    every = config.save_interval_in_mins if config.save else None
    timed = main and every is not None and time.monotonic() - run.saved_at >= 60 * every
    requests = {
        INTERRUPT: signal.SIGINT in signals,
        "a signal": bool(signals),
        "the kill switch": main and os.path.exists(config.kill_switch_path or ""),
        option("exit_duration_in_mins"): main
        and minutes > (config.exit_duration_in_mins or math.inf),
        option("exit_interval"): minutes >= 0
        and run.step % (config.exit_interval or math.inf) == 0,
    }
    writes = run.saving is not None and not run.saving.saving.is_written
    votes = torch.tensor([*requests.values(), timed, writes], dtype=torch.uint8)
    if run.topology.world_size > 1:
        dist.all_reduce(votes, dist.ReduceOp.MAX)
    if not votes[-1]:  # all ranks have written what they were writing
        _try(run, _end_save)
    reasons = (reason for reason, vote in zip(requests, votes, strict=False) if vote)
    return next(reasons, ""), bool(votes[-2])


@contextmanager
def _collected_at_once() -> Iterator[None]:
    """A context in which only the loop collects garbage, at the same step on all ranks.

    Otherwise one rank would collect in the middle of a step, and all others would wait for it.
    Objects from before the first step are not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _received_signals(main: bool) -> Iterator[list[int]]:
    """A context with a list of the signals received that ask this process to stop. A second Ctrl-C
    raises KeyboardInterrupt at once. The ``main`` process answers the first.

    Python delivers signals to the main thread only: in another thread the list stays empty. Signals
    that this process was told to ignore, as in the background of a script, stay ignored.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    is_again = interrupts()

    def receive(number: int, _: object) -> None:
        if number == signal.SIGINT and is_again():
            raise KeyboardInterrupt
        if number == signal.SIGINT and main and number not in received:
            # Not by print: the signal may have interrupted one.
            begin = b"\n" if os.isatty(2) else b""
            with suppress(OSError):
                os.write(2, begin + b"stopping after this step; a second Ctrl-C ends at once\n")
        received.append(number)

    caught = (n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN)
    before = {n: signal.signal(n, receive) for n in caught}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _look(run: TrainingRun) -> None:
    """Log the steps since the last look. TrainingError if a loss is not finite."""
    values, last = run.at() | run.meter.read(), run.meter.results[-1]
    if last.norms is not None and not last.skipped:
        values["grad_norms"] = dict(zip(run.engine.rooms, last.norms.tolist(), strict=True))
    if values["loss"] is not None:
        run.losses["training"] = values["loss"]
    peaks, counts = zip(*gather((peak_memory(run.topology.device), run.meter.labels)), strict=True)
    labels = [sum(step) for step in zip(*counts, strict=True)]
    if empty := labels.count(0):
        run.log.say(
            f"warning: {empty} of the last {len(labels)} steps had no trained token: their loss is "
            "0, and only weight decay and moments changed the weights"
        )
    values["labels"] = sum(labels) // (run.topology.world_size // run.topology.data_size)
    run.log.step(values | {"peak_memory_bytes": max(peaks), "device": run.topology.device.type})
    run.meter.restart()


def _finish(run: TrainingRun, signals: list[int], reason: str) -> str:
    """Save, and evaluate unless the run was stopped for a ``reason``; that reason, or the one that
    stopped the evaluation.
    """
    if reason:
        run.log.say(f"stopped at iteration {run.step:,} by {reason}")
    if run.meter.results:
        _look(run)
    _try(run, _end_save)
    if run.config.save and run.saved != run.step:
        _begin_save(run)
        _end_save(run)
    if not reason:
        valid = {} if run.evaluated == run.step else run.data.valid
        reason = _evaluate(run, signals, valid | run.data.test)
    return reason


def _evaluate(run: TrainingRun, signals: list[int], sets: dict[str, Samples]) -> str:
    """Log the mean loss of a label over the first eval_iters batches of each set, or over the whole
    set if it has fewer.

    The result is the reason to stop before the end, without a loss of that set, or "".
    """
    size = run.config.global_batch_size
    for name, samples in sets.items():
        count = min(run.config.eval_iters * size, len(samples)) // run.smallest
        batches = islice(stream(run.data, samples, run.config, run.topology), count)
        loss = labels = 0.0
        while part := list(islice(batches, size // run.smallest)):
            if reason := _asked(run, signals, -1.0)[0]:
                run.log.say(f"no loss of {name}: its evaluation was stopped by {reason}")
                return reason
            counted = weigh(part, run.topology)
            loss += float(run.engine.evaluate(part)) * counted
            labels += counted
        if not labels:
            run.log.say(f"warning: {name} has no trained token: its loss is 0")
        run.losses[name] = loss / labels if labels > 0 else 0.0
        run.log.evaluation(name, run.losses[name], run.at())
    run.evaluated = run.step
    return ""


def _try_to_save(run: TrainingRun) -> None:
    """Save, or with async_save only begin to."""
    _try(run, _end_save)
    _try(run, _begin_save)
    if not run.config.async_save:
        _try(run, _end_save)


def _try(run: TrainingRun, work: Callable[[TrainingRun], None]) -> None:
    """Call ``work``, which begins or ends a save. If the disk is full the run continues without
    this checkpoint.
    """
    at = run.at() if run.saving is None else run.saving.at
    try:
        work(run)
    except OutputError as error:
        if not error.no_space:
            raise
        run.saved = -1
        run.log.say(
            f"warning: iteration {at['iteration']:,} was not saved: {error}; its files are "
            "removed, and training goes on until the next checkpoint is due"
        )
        run.log.record("not saved", folder=run.config.save, reason=str(error), **at)


def _begin_save(run: TrainingRun) -> None:
    """Write a checkpoint, or with async_save begin to."""
    begin, run.saved_at = time.perf_counter(), time.monotonic()
    state = RunState(
        step=run.step,
        consumed_samples=run.consumed,
        data_state=run.stream.state_dict(),
        config=run.config.to_dict(),
        model=dataclasses.asdict(run.model),
        tokenizer=run.data.tokenizer,
    )
    folder, keep, later = run.config.save or "", run.config.keep_checkpoints, run.config.async_save
    saving = checkpoint.CheckpointWrite(run.engine, folder, state, keep=keep, later=later)
    run.saving = AsyncSave(saving, run.at(), state.data_state["fingerprint"], begin)
    run.saved = run.step


def _end_save(run: TrainingRun) -> None:
    """Wait for the checkpoint that is being written, if any, and make it the latest."""
    pending, run.saving = run.saving, None
    if pending is None:
        return
    pending.saving.finish()
    folder, seconds = run.config.save, time.perf_counter() - pending.begin
    run.log.say(f"saved iteration {pending.at['iteration']:,} to {folder} in {seconds:.1f} s")
    more = {"seconds": seconds, "fingerprint": pending.samples, **pending.at}
    run.log.record("save", folder=folder, **more)
