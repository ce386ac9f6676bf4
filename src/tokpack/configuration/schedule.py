"""Batch sizes and learning rates: functions of the samples consumed alone, as Megatron has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import Config


class Schedule:
    """The steps that a configuration asks for; ``epoch`` samples where it names no end.

    A step takes the samples from ``consumed`` to ``consumed + batch_size(consumed)``, at the
    learning rate ``lr(consumed)``; steps are made while a whole one fits into ``train_samples``.
    ``warmup`` and ``decay`` are samples too, and need not be whole; ``ending`` are those of WSD's
    decay, the last of ``decay``. Raises UsageError for a run without a step, for a warm-up that has
    no end, and for a WSD without a decay.
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
                f"{self.batch_size(0):,}: ask for more, or for a smaller batch"
            )

    def batch_size(self, consumed: int) -> int:
        """Samples of the step that begins at ``consumed``."""
        batch = self._config.global_batch_size
        start, increment, samples = self._config.rampup_batch_size or (batch, 1, 0)
        if consumed > samples or samples == 0 or start == batch:
            return batch
        rises = (batch - start) // increment
        return start + int(consumed / (samples / rises)) * increment

    def steps(self, consumed: int = 0) -> Iterator[tuple[int, int]]:
        """(first sample, batch size) of every step from ``consumed`` to the end."""
        while consumed + (size := self.batch_size(consumed)) <= self.train_samples:
            yield consumed, size
            consumed += size

    def count_steps(self, consumed: int = 0) -> int:
        """How many steps there are from ``consumed`` to the end."""
        count = 0
        for first, size in self.steps(consumed):
            if self._is_level(first):
                return count + (self.train_samples - first) // size
            count += 1
        return count

    def step(self, number: int, consumed: int = 0) -> tuple[int, int] | None:
        """(first sample, batch size) of step ``number``, from 0, behind ``consumed``, or None."""
        for first, size in self.steps(consumed):
            if self._is_level(first):
                found = first + number * size
                return (found, size) if found + size <= self.train_samples else None
            if number == 0:
                return first, size
            number -= 1
        return None

    def step_with(self, sample: int, consumed: int = 0) -> int | None:
        """The number of the step from ``consumed`` on that takes ``sample`` >= ``consumed``."""
        number = 0
        for first, size in self.steps(consumed):
            if self._is_level(first):
                number += (sample - first) // size
                return number if self.step(number, consumed) else None
            if sample < first + size:
                return number
            number += 1
        return None

    def _is_level(self, consumed: int) -> bool:
        """Whether from ``consumed`` on all batches are alike."""
        ramp = self._config.rampup_batch_size
        return ramp is None or consumed > ramp[2]

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
