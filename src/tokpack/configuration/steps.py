"""Which samples the steps of a run take, and which process takes which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .schedule import Schedule


@dataclass(frozen=True)
class RampPhase:
    """A part of a run with one configuration, after ``steps`` steps and ``consumed`` samples.

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
        """The data parallel rank that takes a sample, and the number of its micro batch there.

        As MicroBatches has it: of each ``micro * ranks`` samples rank r takes the r-th ``micro``.
        """
        batch, within = divmod(sample - self.first, self.micro * self.ranks)
        return within // self.micro, batch


class Steps:
    """All steps of a run; it has a further stretch each time that it was stopped and went on."""

    def __init__(self, stretches: Sequence[RampPhase]) -> None:
        self._stretches = list(stretches)

    def __len__(self) -> int:
        """The number of steps until the end, by the last configuration."""
        last = self._stretches[-1]
        return last.steps + last.schedule.count_steps(last.consumed)

    @property
    def samples(self) -> int:
        """The samples of all steps."""
        return self[len(self)].samples.stop if len(self) else 0

    def __getitem__(self, number: int) -> Step:
        """Step ``number``, from 1. UsageError where there is none."""
        stretch = next((one for one in reversed(self._stretches) if one.steps < number), None)
        found = None
        if stretch is not None:
            found = stretch.schedule.step(number - stretch.steps - 1, stretch.consumed)
        if stretch is None or found is None:
            first = self._stretches[0].steps + 1
            raise UsageError(f"there is no step {number:,}: there are {first:,} to {len(self):,}")
        return Step(number, *found, stretch.micro, stretch.ranks)

    def taking(self, sample: int) -> Step | None:
        """The step that takes a sample; None where none does, as behind the last whole batch."""
        for stretch in reversed(self._stretches):
            if stretch.consumed <= sample:
                number = stretch.schedule.step_with(sample, stretch.consumed)
                return None if number is None else self[stretch.steps + number + 1]
        return None
