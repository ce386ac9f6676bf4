"""Map-style datasets, as torch's DataLoader takes them: a length, and samples by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import index as as_integer
from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.samples.batch import Batch, Sample
    from tokpack.samples.orders.rows import Numbers


class MapStyle(ABC):
    """A map-style dataset of ``_size`` samples that are written into the arrays of a batch."""

    _size: int
    _kind = ""  # what messages say before the number of samples

    @abstractmethod
    def empty(self, samples: int) -> Batch:
        """Arrays of a batch whose values are not set yet."""

    @abstractmethod
    def fill(self, batch: Batch, numbers: Numbers, places: Numbers | None = None) -> None:
        """Write samples ``numbers`` to ``places`` of a batch, by default one after the other."""

    def __len__(self) -> int:
        """Number of samples."""
        return self._size

    def __getitem__(self, index: SupportsIndex) -> Sample:
        return self.sample(self._number(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples at once, as torch's DataLoader asks for them: views of one batch."""
        batch = self._filled([self._number(index) for index in indices])
        return [batch.sample(place) for place in range(len(indices))]

    def sample(self, number: int) -> Sample:
        """Sample ``number`` >= 0, also beyond the length: the order goes on, epoch after epoch."""
        return self._filled([number]).sample(0)

    def batch(self, numbers: Numbers) -> Sample:
        """Samples as ``sample`` gives them, stacked: new arrays [B, ...], all made at once."""
        return self._filled(numbers).arrays()

    def _filled(self, numbers: Numbers) -> Batch:
        batch = self.empty(len(numbers))
        self.fill(batch, numbers)
        return batch

    def _number(self, index: SupportsIndex) -> int:
        number = as_integer(index)
        if not -self._size <= number < self._size:
            raise IndexError(f"sample {number} of {self._kind}{self._size}")
        return number % self._size
