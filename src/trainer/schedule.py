"""Batch sizes and learning rates: pure functions of the samples consumed, as Megatron has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import Config


@dataclass(frozen=True)
class Schedule:
    """The steps of a run. All lengths are samples; warm-up and decay need not be whole.

    A step takes the samples from ``consumed`` to ``consumed + batch_size(consumed)``, at the
    learning rate ``lr(consumed)``; steps are made while a whole one fits into ``train_samples``.
    """

    train_samples: int
    global_batch_size: int
    rampup: tuple[int, int, int] | None  # first batch size, increment, samples
    max_lr: float
    min_lr: float
    style: str
    warmup: float
    decay: float

    @classmethod
    def of(cls, config: Config, epoch: int) -> Schedule:
        """The schedule that a configuration asks for; ``epoch`` samples where it names no end.

        Raises UsageError for a run without a step, and for a warm-up that has no end.
        """
        batch, rampup = config.global_batch_size, config.rampup_batch_size
        if rampup is not None and config.train_iters is not None:
            raise UsageError(
                f"train_iters {config.train_iters} cannot be counted in samples with "
                f"rampup_batch_size {' '.join(map(str, rampup))}: give train_samples"
            )
        samples = config.train_samples or (config.train_iters or 0) * batch or epoch
        decay = config.lr_decay_samples or (config.lr_decay_iters or 0) * batch or samples
        warmup: float = config.lr_warmup_samples or config.lr_warmup_iters * batch
        if config.lr_warmup_fraction is not None:
            warmup = config.lr_warmup_fraction * decay
        if config.lr_decay_style != "constant" and warmup >= decay:
            raise UsageError(
                f"the warm-up of {warmup:,.0f} samples does not end before the decay of "
                f"{decay:,} samples does: shorten it"
            )
        made = cls(
            samples, batch, rampup, config.lr, config.min_lr, config.lr_decay_style, warmup, decay
        )
        if made.batch_size(0) > samples:
            raise UsageError(
                f"{samples:,} samples do not fill the first batch of {made.batch_size(0):,}: "
                "ask for more, or for a smaller batch"
            )
        return made

    def batch_size(self, consumed: int) -> int:
        """Samples of the step that begins at ``consumed``."""
        if self.rampup is None:
            return self.global_batch_size
        start, increment, samples = self.rampup
        rises = (self.global_batch_size - start) // increment
        if consumed > samples or rises == 0 or samples == 0:
            return self.global_batch_size
        return start + int(consumed / (samples / rises)) * increment

    def steps(self, consumed: int = 0) -> Iterator[tuple[int, int]]:
        """(first sample, batch size) of every step from ``consumed`` to the end."""
        while consumed + (size := self.batch_size(consumed)) <= self.train_samples:
            yield consumed, size
            consumed += size

    def count_steps(self, consumed: int = 0) -> int:
        """How many steps there are from ``consumed`` to the end."""
        count = 0
        rising = 0 if self.rampup is None else self.rampup[2]
        for first, _ in self.steps(consumed):
            if first > rising:  # from here on all batches are alike
                return count + (self.train_samples - first) // self.global_batch_size
            count += 1
        return count

    def lr(self, consumed: int) -> float:
        """The learning rate of the step that begins at ``consumed``: at 0 of a warm-up it is 0."""
        if self.warmup > 0 and consumed <= self.warmup:
            return self.max_lr * consumed / self.warmup
        if self.style == "constant":
            return self.max_lr
        if consumed > self.decay:
            return self.min_lr
        if self.style == "inverse-square-root":
            scale = math.sqrt(max(self.warmup, 1)) / math.sqrt(max(consumed, 1))
            return max(self.min_lr, self.max_lr * scale)
        part = (consumed - self.warmup) / (self.decay - self.warmup)
        left = 1 - part if self.style == "linear" else (math.cos(math.pi * part) + 1) / 2
        return self.min_lr + left * (self.max_lr - self.min_lr)
