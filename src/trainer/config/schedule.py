"""Batch sizes and learning rates, which depend only on the samples consumed, as in Megatron.

Also the steps of a run, with the processes that take their samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config import Config


class Schedule:
    """The steps that a configuration asks for, up to ``epoch`` samples if it names no end.

    A step takes the samples from ``consumed`` to ``consumed + batch_size(consumed)``, at the
    learning rate ``lr(consumed)``; steps are made while a whole one fits into ``train_samples``.
    ``warmup`` and ``decay`` are samples too, and need not be integers; ``ending`` is the length of
    WSD's decay, the last part of ``decay``. Raises UsageError for a run without a step, for a
    warm-up without an end, and for a WSD without a decay.
    """

    def __init__(self, config: Config, epoch: int) -> None:
        self._config, batch = config, config.global_batch_size
        if config.rampup_batch_size is not None and config.train_iters is not None:
            raise UsageError(
                f"{option('train_iters')} {config.train_iters} cannot be counted in samples with "
                f"{option('rampup_batch_size')} {' '.join(map(str, config.rampup_batch_size))}: "
                f"give {option('train_samples')}"
            )
        self.train_samples = config.train_samples or (config.train_iters or 0) * batch or epoch
        decay = config.lr_decay_samples or (config.lr_decay_iters or 0) * batch
        self.decay = decay or self.train_samples
        self.ending = config.lr_wsd_decay_samples or (config.lr_wsd_decay_iters or 0) * batch
        self.warmup: float = config.lr_warmup_samples or config.lr_warmup_iters * batch
        if config.lr_warmup_fraction is not None:
            self.warmup = config.lr_warmup_fraction * self.decay
        if config.lr_decay_style != "constant" and self.warmup >= self.decay:
            raise UsageError(
                f"the warm-up of {self.warmup:,.0f} samples does not end before the decay of "
                f"{self.decay:,} samples does: shorten it"
            )
        if config.lr_decay_style == "WSD" and not 0 < self.ending <= self.decay:
            raise UsageError(
                f"{option('lr_decay_style')} WSD decays in the last {self.ending:,} of "
                f"{self.decay:,} samples: give {option('lr_wsd_decay_samples')}, or "
                f"{option('lr_wsd_decay_iters')}, of at least 1 and at most all"
            )
        if self.batch_size(0) > self.train_samples:
            raise UsageError(
                f"{self.train_samples:,} samples do not fill the first batch of "
                f"{self.batch_size(0):,}: raise {option('train_samples')}, or lower "
                f"{option('global_batch_size')}"
            )

    def batch_size(self, consumed: int) -> int:
        """The number of samples in the step that begins at ``consumed``."""
        batch = self._config.global_batch_size
        start, increment, samples = self._config.rampup_batch_size or (batch, 1, 0)
        if consumed > samples or samples == 0 or start == batch:
            return batch
        rises = (batch - start) // increment
        return start + int(consumed / (samples / rises)) * increment

    def steps(self, consumed: int = 0) -> Iterator[tuple[int, int]]:
        """The steps from ``consumed`` to the end, as (first sample, batch size)."""
        for first, size, count in self._equal(consumed):
            yield from ((first + number * size, size) for number in range(count))

    def count_steps(self, consumed: int = 0) -> int:
        """The number of steps from ``consumed`` to the end."""
        return sum(count for _, _, count in self._equal(consumed))

    def step(self, number: int, consumed: int = 0) -> tuple[int, int] | None:
        """The step ``number``, from 0, after ``consumed``, as (first sample, batch size); or
        None.
        """
        for first, size, count in self._equal(consumed):
            if number < count:
                return first + number * size, size
            number -= count
        return None

    def step_with(self, sample: int, consumed: int = 0) -> int | None:
        """The number, counted from ``consumed``, of the step that takes ``sample`` >= ``consumed``;
        or None.
        """
        number = 0
        for first, size, count in self._equal(consumed):
            if sample < first + size * count:
                return number + (sample - first) // size
            number += count
        return None

    def _equal(self, consumed: int) -> Iterator[tuple[int, int, int]]:
        """The runs of steps with equal batches, to the end, as (first sample, batch size, number of
        steps).
        """
        ramp = self._config.rampup_batch_size
        while consumed + (size := self.batch_size(consumed)) <= self.train_samples:
            level = ramp is None or consumed > ramp[2]
            count = (self.train_samples - consumed) // size if level else 1
            yield consumed, size, count
            consumed += count * size

    def lr(self, consumed: int) -> float:
        """The learning rate of the step that begins at ``consumed``; a warm-up begins with 0."""
        style, top, bottom = self._config.lr_decay_style, self._config.lr, self._config.min_lr
        if self.warmup > 0 and consumed <= self.warmup:
            return top * consumed / self.warmup
        if style == "constant":
            return top
        if consumed > self.decay:
            return bottom
        if style == "inverse-square-root":
            return max(bottom, top * math.sqrt(max(self.warmup, 1) / max(consumed, 1)))
        part = (consumed - self.warmup) / (self.decay - self.warmup)
        if style == "WSD":
            part = max(0.0, consumed - (self.decay - self.ending)) / self.ending
            style = self._config.lr_wsd_decay_style
        left: dict[str, float] = {
            "linear": 1 - part,
            "cosine": (math.cos(math.pi * part) + 1) / 2,
            "exponential": 2 * 0.5**part - 1,
            "minus_sqrt": 1 - math.sqrt(part),
        }
        return bottom + left[style] * (top - bottom)


@dataclass(frozen=True)
class RunPhase:
    """A part of a run with one configuration, which begins after ``steps`` steps and ``consumed``
    samples.

    ``ranks`` data parallel processes take micro batches of ``micro`` samples.
    """

    steps: int
    consumed: int
    schedule: Schedule
    micro: int
    ranks: int


@dataclass(frozen=True)
class Step:
    """Step ``number``, from 1, takes the samples ``first`` to ``first + size - 1``."""

    number: int
    first: int
    size: int
    micro: int
    ranks: int

    @property
    def samples(self) -> range:
        """The numbers of its samples."""
        return range(self.first, self.first + self.size)

    def place(self, sample: int) -> tuple[int, int]:
        """The data parallel rank that takes a sample, and the number of its micro batch on that
        rank.

        As in MicroBatches: of each ``micro * ranks`` samples, rank r takes the r-th ``micro``
        samples.
        """
        batch, within = divmod(sample - self.first, self.micro * self.ranks)
        return within // self.micro, batch


class Steps:
    """All steps of a run; each time that it was stopped and resumed, a new phase begins."""

    def __init__(self, phases: Sequence[RunPhase]) -> None:
        self._phases = list(phases)

    def __len__(self) -> int:
        """The number of steps until the end, under the last configuration."""
        last = self._phases[-1]
        return last.steps + last.schedule.count_steps(last.consumed)

    @property
    def samples(self) -> int:
        """The number of samples of all steps."""
        return self[len(self)].samples.stop if len(self) else 0

    def __getitem__(self, number: int) -> Step:
        """Step ``number``, from 1. UsageError if there is no such step."""
        for phase in reversed(self._phases):
            if phase.steps < number:
                place = phase.schedule.step(number - phase.steps - 1, phase.consumed)
                if place is None:
                    break
                return Step(number, *place, phase.micro, phase.ranks)
        first = self._phases[0].steps + 1
        raise UsageError(f"there is no step {number:,}: there are {first:,} to {len(self):,}")

    def taking(self, sample: int) -> Step | None:
        """The step that takes a sample, or None: no step takes samples after the last whole
        batch.
        """
        for phase in reversed(self._phases):
            if phase.consumed <= sample:
                number = phase.schedule.step_with(sample, phase.consumed)
                return None if number is None else self[phase.steps + number + 1]
        return None
