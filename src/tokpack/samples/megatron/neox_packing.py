"""GPT-NeoX's packing of whole documents, equal to what it builds, array by array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import UsageError
from tokpack.samples.orders import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tokpack._core import RandomState
    from tokpack.samples.orders import Counts, Numbers, OrderInput, Rows
    from tokpack.samples.tracks import Values

_IGNORED = -100


class NeoxPackedOrder(Order):
    """``num_samples`` samples of the sequences of ``data``, from the first on, as NeoX's
    ``pack_impl`` makes them.

    - "pack_until_overflow": shuffled sequences, as many in a row as fit into ``seq_length`` + 1
    - "unpacked": one sequence a sample, in the order of the dataset

    Both also read the first token of the next sample's first sequence if there is room, and cut off
    tokens beyond ``seq_length`` + 1 (NeoX's ``allow_chopped``). With ``labels``, which "unpacked"
    needs, sequences are left out if all labels that would be read are -100.

    The last sample of "pack_until_overflow" has no next one: NeoX fails there, and continues with
    the first sample of the shuffled order, as does this. If the next sequence is empty NeoX reads a
    token of the one after it; this order reads none.

    - ``document_index`` int64: sequences, one sample after another
    - ``sample_index`` int64 [num_samples + 1, 2]: where samples begin in it, and 0
    - ``shuffle_index`` int64 [num_samples]: the sample that comes k-th

    UsageError if NeoX itself would stop with an error.
    """

    # It is ``joined``: NeoX has a loss for the label that leads from one document to the next.

    def __init__(
        self,
        data: OrderInput,
        num_samples: int,
        *,
        packing: str,
        labels: Values | None = None,
    ) -> None:
        end, seq_length = data.end, data.seq_length
        self._lengths = data.lengths
        self._capacity = seq_length + 1
        self.tokens = data.tokens
        self.samples = num_samples
        random = _core.RandomState(data.seed)
        self.shuffle_index = np.arange(num_samples)
        random.shuffle(self.shuffle_index)
        if packing == "unpacked":
            if labels is None:
                raise UsageError("packing='unpacked' reads labels, as NeoX does: give labels=")
            documents = _in_turn(self._lengths[:end], labels, seq_length, None)
            sequences = [next(documents) for _ in range(num_samples + 1)]
            begins = list(range(num_samples + 1))
        else:
            sequences, begins = self._pack(
                _in_turn(self._lengths[:end], labels, self._capacity, random)
            )
        self.document_index = np.array(sequences, np.int64)
        self.sample_index = np.zeros((num_samples + 1, 2), np.int64)
        self.sample_index[:, 0] = begins

    def locate(self, sample: int) -> Rows:
        """The places of a sample's tokens: int64 [k, 3], sequence, 0 and number of tokens.

        The numbers, which can be 0, add up to ``seq_length`` + 1 or less.
        """
        if not 0 <= sample < self.samples:
            raise IndexError(f"sample {sample} of {self.samples}")
        number = int(self.shuffle_index[sample])
        if int(self.sample_index[number + 1, 0]) == len(self.document_index):
            number = int(self.shuffle_index[0])
        first, last = self.sample_index[number : number + 2, 0].tolist()
        documents = self.document_index[first : last + 1]
        rows = np.zeros((len(documents), 3), np.int64)
        rows[:, 0] = documents
        rows[:, 2] = self._lengths[documents]
        rows[last - first :, 2] = np.minimum(rows[last - first :, 2], 1)
        ends = np.minimum(np.cumsum(rows[:, 2]), self._capacity)
        rows[:, 2] = np.diff(ends, prepend=0)
        return rows

    def locate_many(self, samples: Numbers) -> tuple[Rows, Counts]:
        """``locate`` of each sample: all rows, one after the other, and int64 [B], rows of each."""
        rows = [self.locate(int(sample)) for sample in samples]
        counts = np.array([len(some) for some in rows], np.int64)
        return np.concatenate([np.empty((0, 3), np.int64), *rows]), counts

    def _pack(self, documents: Iterator[int]) -> tuple[list[int], list[int]]:
        """The documents, and the index among them where each sample begins, then the end."""
        sequences: list[int] = []
        begins: list[int] = []
        filled = 0
        while len(begins) < self.samples:
            document = next(documents)
            length = int(self._lengths[document])
            if filled == 0 or filled + length > self._capacity:
                begins.append(len(sequences))
                filled = 0
            filled += length
            sequences.append(document)
        return sequences, [*begins, len(sequences)]


def _in_turn(
    lengths: npt.NDArray[np.int32], labels: Values | None, read: int, random: RandomState | None
) -> Iterator[int]:
    """The documents with a label that counts among the first ``read``, pass after pass.

    As in NeoX, each pass shuffles the order of the last one again; without ``random`` it is the
    dataset's order.
    """
    count = len(lengths)
    usable = np.ones(count, np.bool_)
    if labels is not None:
        for number, length in enumerate(lengths.tolist()):
            of_document = labels.get(number, 0, min(read, length))
            usable[number] = (of_document != _IGNORED).any()
    if not usable.any():
        raise UsageError(f"all labels of {count} sequences are {_IGNORED}: there are no samples")
    order = np.arange(count)
    while True:
        if random is not None:
            random.shuffle(order)
        yield from order[usable[order]].tolist()
