"""The stateless order: sample k is a pure function of the dataset, the settings and k.

Every epoch shuffles the sequences, cuts their tokens into samples, and shuffles the samples. No
order is stored: both are permutations that can be computed at any place; only sums of the permuted
lengths are kept in memory, for every 64th sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset.format import by_part, numbers_in
from tokpack.samples.orders.rows import EpochOrder, Epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokpack.samples.orders.rows import Counts, OrderInput, Rows

    Int64s = npt.NDArray[np.int64]


_SEQUENCES, _SAMPLES = 0, 1  # purposes of permutations, in their keys


class StatelessOrder(EpochOrder):
    """The samples of its data, epoch after epoch without end.

    An epoch has ``samples`` samples. No token occurs twice in one, except that the last token of a
    sample is the first of another if ``extra`` is 1. Fewer than ``seq_length`` tokens at the end of
    an epoch's order are left out, different ones in every epoch.
    """

    def __init__(self, data: OrderInput) -> None:
        part, extra = data.part, data.extra
        self._begin, self._count = data.begin, len(part)
        self.tokens = data.tokens
        self.samples = samples = max(self.tokens - extra, 0) // data.seq_length

        def make(epoch: int) -> tuple[_core.DocumentOrder, _core.Permutation]:
            """The shuffled sequences of an epoch, and the order of the samples cut from them."""
            sequences = _core.mix(*data.key, epoch, _SEQUENCES)
            order = _core.Permutation(samples, _core.mix(*data.key, epoch, _SAMPLES))
            return _core.DocumentOrder(part, data.seq_length, extra, sequences), order

        self._orders = Epochs(make)
        self._sequences = Epochs(
            lambda epoch: _core.Permutation(len(part), _core.mix(*data.key, epoch, _SEQUENCES))
        )

    def _locate_one(self, epoch: int, place: int) -> Rows:
        documents, samples = self._orders[epoch]
        return documents.locate(samples.at(place))

    def _locate_in(self, epoch: int, places: npt.NDArray[np.int64]) -> tuple[Rows, Counts]:
        documents, samples = self._orders[epoch]
        return documents.locate_many(samples.many(places))

    def _finder(self, sequences: range) -> Callable[[int], Iterator[int]]:
        part = range(sequences.start - self._begin, sequences.stop - self._begin)

        def places_in(epoch: int) -> Iterator[int]:
            order = self._orders[epoch][1]
            for sequence in part:
                yield from map(order.inverse, self._cut_from(sequence, epoch))

        return places_in

    def _cut_from(self, sequence: int, epoch: int) -> Iterator[int]:
        """The samples of an epoch that have tokens of a sequence, numbered as they were cut."""
        documents, place_of = self._orders[epoch][0], self._sequences[epoch].inverse
        if not 0 <= sequence < self._count:
            return
        place = place_of(sequence)

        def begins(number: int) -> int:
            return place_of(int(documents.locate(number)[0, 0]))

        # First sequences of samples have ascending places; the sample before may end here too.
        first = max(bisect_left(range(self.samples), place, key=begins) - 1, 0)
        for number in range(first, self.samples):
            rows = documents.locate(number)
            if place_of(int(rows[0, 0])) > place:
                return
            if sequence in rows[:, 0]:
                yield number


# The order of blocks is a stateless order in which consecutive samples are close together.
#
# Sequences are grouped into blocks of about half a million tokens. Every epoch shuffles the blocks
# and groups them into windows. The sequences of a window are shuffled, the tokens of all windows
# are joined and cut into samples, and the samples that begin in a window are shuffled. So a dataset
# on a store is read in whole blocks, one window at a time.

BLOCK_TOKENS = 1 << 19  # 1 MiB of uint16
WINDOW_BLOCKS = 256
# Purposes of permutations; the other orders have 0 to 3.
_BLOCKS, _BLOCK_SEQUENCES, _BLOCK_SAMPLES = 4, 5, 6
_STEP = 1 << 20  # lengths that are read together


class _Epoch(NamedTuple):
    """An epoch: its B blocks in order, cut into W windows.

    ``blocks`` int64 [B]. ``tokens`` and ``samples`` int64 [W + 1] are the numbers of tokens, and of
    samples that begin, before each window and in all.
    """

    blocks: Int64s
    tokens: Int64s
    samples: Int64s


class _Window(NamedTuple):
    """A window of an epoch.

    ``sequences`` int64 [n] are in the order that ``order`` makes; ``ends`` int64 [n] are the tokens
    up to the end of each. ``samples`` is the order in which the samples that begin here are taken.
    """

    sequences: Int64s
    ends: Int64s
    order: _core.Permutation
    samples: _core.Permutation


class BlockOrder(EpochOrder):
    """The samples of its data, epoch after epoch without end.

    A block has the sequences that begin in the same ``block_tokens`` tokens, a window has
    ``window_blocks`` blocks or fewer, about as many in all windows of an epoch. An epoch has
    ``samples`` samples, cut from ``tokens`` tokens, like one of StatelessOrder. A sample that
    begins in a window may end in the next.

    ``blocks`` int64 [B + 1] are the first sequences of the blocks, and the end.
    """

    def __init__(
        self, data: OrderInput, block_tokens: int, *, window_blocks: int = WINDOW_BLOCKS
    ) -> None:
        self._data = data
        self.blocks, self._before = _blocks(data, block_tokens)
        self.tokens = int(self._before[-1])
        self.samples = max(self.tokens - data.extra, 0) // data.seq_length
        count = len(self.blocks) - 1
        self._windows_each = windows = -(-count // window_blocks)
        self._edges = np.arange(windows + 1) * count // max(windows, 1)  # blocks before each window
        self._epochs = Epochs(self._epoch)
        self._windows = Epochs(self._window)  # numbered through all epochs

    def _locate_in(self, epoch: int, places: Int64s) -> tuple[Rows, Counts]:
        parts, owners = zip(*self._runs(epoch, places), strict=True)
        owner = np.concatenate(owners)
        # A sample's tokens in the next window follow those in its own.
        rows = np.concatenate(parts)[np.argsort(owner, kind="stable")]
        return rows, np.bincount(owner, minlength=len(places))

    def _finder(self, sequences: range) -> Callable[[int], Iterator[int]]:
        sequences_here = range(
            max(sequences.start, self._data.begin), min(sequences.stop, self._data.end)
        )

        def places_in(epoch: int) -> Iterator[int]:
            layout = self._epochs[epoch]
            for sequence in sequences_here:
                for number in self._cut_from(sequence, epoch):
                    window = int(np.searchsorted(layout.samples, number, side="right")) - 1
                    before = int(layout.samples[window])
                    mixed = self._windows[epoch * self._windows_each + window]
                    yield before + mixed.samples.inverse(number - before)

        return places_in

    def _epoch(self, epoch: int) -> _Epoch:
        count = len(self.blocks) - 1
        order = _core.Permutation(count, _core.mix(*self._data.key, epoch, _BLOCKS))
        blocks = order.many(np.arange(count))
        sums = np.concatenate([[0], np.cumsum(np.diff(self._before)[blocks])])
        tokens = sums[self._edges]
        samples = np.minimum(-(-tokens // self._data.seq_length), self.samples)
        samples[-1] = self.samples  # no sample begins in the rest at the end
        return _Epoch(blocks, tokens, samples)

    def _window(self, number: int) -> _Window:
        epoch, window = divmod(number, self._windows_each)
        layout = self._epochs[epoch]
        blocks = layout.blocks[self._edges[window] : self._edges[window + 1]]
        firsts, counts = self.blocks[blocks], self.blocks[blocks + 1] - self.blocks[blocks]
        total = int(counts.sum())
        key = (*self._data.key, epoch, window)
        order = _core.Permutation(total, _core.mix(*key, _BLOCK_SEQUENCES))
        sequences = numbers_in(firsts, counts)[order.many(np.arange(total))]
        ends = np.cumsum(self._data.lengths[sequences], dtype=np.int64)
        if ends[-1] != layout.tokens[window + 1] - layout.tokens[window]:
            raise ValueError("the lengths of the documents have changed")
        begun = int(layout.samples[window + 1] - layout.samples[window])
        samples = _core.Permutation(begun, _core.mix(*key, _BLOCK_SAMPLES))
        return _Window(sequences, ends, order, samples)

    def _runs(self, epoch: int, places: Int64s) -> Iterator[tuple[Rows, Int64s]]:
        """The rows of the samples at ``places``, and the place of each row."""
        layout, first = self._epochs[epoch], epoch * self._windows_each
        cut = np.empty_like(places)
        for window, here, inside in by_part(layout.samples, places):
            cut[here] = layout.samples[window] + self._windows[first + window].samples.many(inside)
        at, samples = cut * self._data.seq_length, np.arange(len(places))
        ends = at + self._data.seq_length + self._data.extra
        while len(at):
            windows = np.searchsorted(layout.tokens, at, side="right") - 1
            stops = np.minimum(ends, layout.tokens[windows + 1])
            for window, here, begins in by_part(layout.tokens, at):
                ends_here = stops[here] - layout.tokens[window]
                rows, counts = _rows(self._windows[first + window], begins, ends_here)
                yield rows, np.repeat(samples[here], counts)
            left = stops < ends
            at, ends, samples = stops[left], ends[left], samples[left]

    def _cut_from(self, sequence: int, epoch: int) -> Iterator[int]:
        """The samples of an epoch that have tokens of a sequence, numbered as they were cut."""
        layout = self._epochs[epoch]
        block = int(np.searchsorted(self.blocks, sequence, side="right")) - 1
        order = _core.Permutation(len(layout.blocks), _core.mix(*self._data.key, epoch, _BLOCKS))
        place = order.inverse(block)
        window = int(np.searchsorted(self._edges, place, side="right")) - 1
        before = layout.blocks[self._edges[window] : place]
        inside = int(np.sum(self.blocks[before + 1] - self.blocks[before]))
        mixed = self._windows[epoch * self._windows_each + window]
        place = mixed.order.inverse(inside + sequence - int(self.blocks[block]))
        end = int(layout.tokens[window] + mixed.ends[place])
        begin = end - int(self._data.lengths[sequence])
        if begin < end:
            first = max((begin - self._data.extra) // self._data.seq_length, 0)
            yield from range(first, min((end - 1) // self._data.seq_length + 1, self.samples))


def _blocks(data: OrderInput, block_tokens: int) -> tuple[Int64s, Int64s]:
    """The first sequences of the blocks, and the tokens before them; each with the end."""
    firsts, befores = [], []
    total, last = 0, -1
    for start in range(data.begin, data.end, _STEP):
        part = data.lengths[start : min(start + _STEP, data.end)]
        if len(part) and int(part.min()) < 0:
            wrong = start + int(np.argmax(part < 0))
            raise ValueError(f"document {wrong} has {data.lengths[wrong]} tokens")
        ends = total + np.cumsum(part, dtype=np.int64)
        begins = ends - part
        blocks = begins // block_tokens
        new = np.flatnonzero(np.diff(blocks, prepend=last))
        firsts.append(start + new)
        befores.append(begins[new])
        total, last = int(ends[-1]), int(blocks[-1])
    return np.concatenate([*firsts, [data.end]]), np.concatenate([*befores, [total]])


def _rows(window: _Window, begins: Int64s, ends: Int64s) -> tuple[Rows, Counts]:
    """The rows of the tokens ``begins`` to ``ends`` of a window, and the number of rows of each
    range.
    """
    first = np.searchsorted(window.ends, begins, side="right")
    behind = np.searchsorted(window.ends, ends, side="left") + 1
    counts = behind - first
    places = numbers_in(first, counts)
    lows = np.where(places > 0, window.ends[places - 1], 0)
    low = np.maximum(lows, np.repeat(begins, counts))
    high = np.minimum(window.ends[places], np.repeat(ends, counts))
    rows = np.stack([window.sequences[places], low - lows, high - low], axis=1)
    empty = np.flatnonzero(rows[:, 2] == 0)
    if not len(empty):
        return rows, counts
    owners = np.repeat(np.arange(len(counts)), counts)
    return np.delete(rows, empty, 0), counts - np.bincount(owners[empty], minlength=len(counts))
