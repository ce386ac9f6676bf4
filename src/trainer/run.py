"""A training run: its parts, how it begins, and how far it is."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import ResumeError, UsageError, option

from . import checkpoint
from .blocks import described
from .checkpoints.files import DTYPES, differences
from .checkpoints.folder import find
from .checkpoints.history import TrainingResult
from .config.model import ModelConfig
from .config.schedule import Schedule
from .data import open_data, stream
from .engine import make_engine
from .log import Log, telling_of_a_wait
from .metrics import StepMeter
from .parallel import agree, on_main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .checkpoints.files import Checkpoint
    from .config.config import Config
    from .parallel import Topology

SILENT = 2.0  # seconds of drawing weights before a line says so
OF_RATES = (
    "lr min_lr lr_decay_style lr_decay_samples lr_decay_iters lr_wsd_decay_samples "
    "lr_wsd_decay_iters lr_wsd_decay_style lr_warmup_samples lr_warmup_iters lr_warmup_fraction "
    "train_samples train_iters global_batch_size"
)
OF_SAMPLES = "data_path train_data_path split order seed seq_length"  # settings that decide samples


@dataclass(frozen=True)
class AsyncSave:
    """A checkpoint that is being written: the place of the run at that time, and when writing
    began.
    """

    saving: checkpoint.CheckpointWrite
    at: dict[str, int]
    samples: str  # their fingerprint
    begin: float


class TrainingRun:
    """The parts of a run, and how far it is."""

    def __init__(self, config: Config, topology: Topology, inputs: Sequence[str] = ()) -> None:
        """Open and check everything; collective."""
        self.config, self.topology, self._inputs = config, topology, inputs
        self.smallest = config.micro_batch_size * topology.data_size  # samples
        self.data = agree(lambda: open_data(config, self.smallest))
        self.schedule = Schedule(config, len(self.data.train))
        samples = self.schedule.train_samples
        self.entropy = on_main(lambda: self.data.unigram_entropy(samples))
        self.model = ModelConfig.of(config, self.data.vocab_size)
        self.meter = StepMeter(self.model.flops_per_token, config.seq_length, topology)
        self.load, self.finetune = checkpoint.origin(config)
        if config.save:
            checkpoint.claim(config.save, self.load)
        self.evaluated = -1  # the step of the last evaluation
        self.saving: AsyncSave | None = None
        self.saved_at = time.monotonic()  # when the last save began, or the run
        self.losses: dict[str, float] = {}  # the last ones, by "training" or the name of a set

    def begin(self) -> None:
        """Build and load everything; collective."""
        config, topology = self.config, self.topology
        self._rates = ""  # a note on the learning rate
        weights = None  # before weights are drawn, which may take minutes
        if self.load:
            weights = checkpoint.open_latest(self.load, self.model, finetune=self.finetune)
        text = f"initialising {self.model.parameters:,} weights, which can take minutes"
        with telling_of_a_wait(text, SILENT) if topology.is_main else nullcontext():
            self.engine = make_engine(config, self.model, topology)
        self.stream = stream(self.data, self.data.train, config, topology)
        self.step = self.saved = self._resumed(weights)
        left = self.schedule.count_steps(self.consumed)
        steps = self.step, self.step + left
        state, entropy, inputs = self.stream.state_dict(), self.entropy, self._inputs
        self.log = agree(
            lambda: Log(config, topology, entropy, steps, data_state=state, inputs=inputs)
        )
        dtype = DTYPES[config.precision_on(topology.device.type)]
        documents = "cu_seqlens" in self.data.train.batch([0])
        kernel = self.engine.model.attention_kernel(dtype, config.micro_batch_size, documents)
        self.log.say(described(kernel, topology.device))
        if self.load != config.load:
            self.log.say(f"{self.load} has checkpoints of this run from {config.load}: it goes on")
        if self.consumed:
            self.log.say(f"resumed: {self.consumed:,} samples are consumed, {left:,} steps left")
        if self._rates:
            self.log.say(self._rates)

    def _resumed(self, weights: Checkpoint | None) -> int:
        """The step to continue from, after loading a checkpoint and finding its place in the
        samples.
        """
        if weights is None:
            return 0
        config, folder = self.config, self.load
        state = checkpoint.load(self.engine, weights, finetune=self.finetune)
        if not state.consumed_samples:
            return 0
        if state.consumed_samples > self.schedule.train_samples:
            end = option("train_iters" if config.train_iters else "train_samples")
            raise UsageError(
                f"{folder}: its {state.step:,} steps have consumed {state.consumed_samples:,} "
                f"samples, this run ends at {self.schedule.train_samples:,}: raise {end}"
            )
        try:
            self.stream.load_state_dict(state.data_state)
        except ResumeError as error:
            changed = differences(state.config, config.to_dict(), OF_SAMPLES)
            reason = changed or f"the data has changed: {error}"
            raise ResumeError(f"{folder}: was trained on other samples: {reason}") from error
        self._rates = self._rate_note(state.config, state.consumed_samples)
        return state.step

    @property
    def consumed(self) -> int:
        """How many samples all processes together have used."""
        return self.stream.consumed_samples

    def result(self) -> TrainingResult:
        """The result of the run so far."""
        folder = self.config.save
        saved = find(folder) if folder and self.saved == self.step else None
        return TrainingResult(self.step, self.consumed, dict(self.losses), saved)

    def at(self) -> dict[str, int]:
        """How far the run is, as the fields of a log record."""
        return {"iteration": self.step, "consumed_samples": self.consumed}

    def _rate_note(self, before: dict[str, Any], consumed: int) -> str:
        """A note if the run continues at other learning rates than the checkpoint's schedule had,
        else "".
        """
        same = {name: before[name] for name in OF_RATES.split() if name in before}
        config = replace(self.config, micro_batch_size=1, rampup_batch_size=None, **same)
        old = Schedule(config, len(self.data.train))
        ends = (old.train_samples, self.schedule.train_samples)
        for sample in sorted({consumed, *(one for one in ends if one > consumed)}):
            there, here = (one.lr(sample) for one in (old, self.schedule))
            if not math.isclose(there, here, rel_tol=1e-6):
                when = f"at sample {sample:,} the learning rate will be"
                if sample == consumed:
                    when = "the learning rate goes on at"
                changed = differences(before, self.config.to_dict(), OF_RATES)
                advice = "" if config.lr_decay_style == "constant" else _advice(old, consumed)
                return f"note: {when} {here:.4g}, not {there:.4g}: {changed}{advice}"
        return ""


def _advice(old: Schedule, consumed: int) -> str:
    """How to continue at the rates of an old schedule; or that this schedule has ended."""
    last = old.lr(old.decay + 1)
    if consumed < old.decay:
        return (
            f"; {option('lr_decay_samples')} {old.decay} keeps the old rates, which are {last:.4g} "
            f"from sample {old.decay:,} on"
        )
    return (
        f"; the old rates have ended, at {last:.4g}: {option('lr_decay_style')} constant with a "
        f"small {option('lr')} goes on without another decay"
    )
