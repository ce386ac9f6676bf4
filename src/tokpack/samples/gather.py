"""The tokens of rows, copied out of a dataset by the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core
from tokpack.errors import FormatError
from tokpack.indexed.format import sequence_span
from tokpack.indexed.lengths import by_part
from tokpack.indexed.stored import Fetch, LazyTokens, Span, StoredTokens, as_integers
from tokpack.samples.fetch import BlockFetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.indexed.shard import Shard
    from tokpack.indexed.view import ViewIndex
    from tokpack.samples.orders.rows import Counts, Rows

    Int64s = npt.NDArray[np.int64]


_MOST_ASKED = 256  # requests that are kept; older ones were probably for nothing


class Gatherer:
    """Copies the tokens of rows out of ``dataset``; rows are checked before they are read.

    With ``track`` the values of that track are copied in their place; of float16 the bits.

    ``blocks``, int64 [B + 1], are the first sequences of the blocks of the order, if it has any:
    from a dataset on a store whole blocks are read then, and kept in the cache. Rows begin at
    multiples of ``multiple`` in a sample.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        blocks: Int64s | None = None,
        track: str | None = None,
        multiple: int = 1,
    ) -> None:
        self._dataset = dataset
        self._track, self._multiple = track, multiple
        self._view = view = dataset.view
        # Of a view the datasets are read whose documents it lists, where no block lies together.
        self._blocks = blocks if view is None else None
        self._starts = dataset.starts if view is None else view.base.starts
        self._shard = dataset.shard if view is None else view.base.open
        self._on_store = dataset.on_store
        self._asked: dict[bytes, Fetch | BlockFetch] = {}
        # A single shard is opened here, several when they are needed.
        alone = len(self._starts) == 2 and not self._on_store
        # Of a view of it the core looks up the sequences, where every document is one.
        looks_up = alone and view is not None and view.is_simple
        self._file = None
        if alone and (view is None or looks_up):
            self._file = self._shard(0).token_file(track, None if view is None else view.numbers)

    def fill(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        """Write the tokens of samples into ``text`` (int64 [B, S + 1]).

        Sample i has ``counts[i]`` of the rows; its tokens go to the beginning of
        ``text[places[i]]``, and what they leave becomes 0. FormatError for rows that are not
        in the dataset or do not fit, and for a sequence whose entry in the index is wrong.
        """
        try:
            if self._file is None:
                self._fill_from_shards(text, rows, counts, places)
                return
            wrong = self._file.gather_samples(rows, counts, places, text, self._multiple)
        except ValueError as error:
            name = self._dataset.path_prefix
            raise FormatError(f"{name}: {error}: the order does not fit the samples") from None
        if wrong >= 0:
            raise _broken(self._dataset, *rows[wrong].tolist())

    def ask(self, rows: Rows) -> None:
        """Begin to read the tokens of rows from the store, if they lie on one, for ``fill``."""
        if self._on_store and (key := rows.tobytes()) not in self._asked:
            self._asked[key] = self._fetch(rows)
            if len(self._asked) > _MOST_ASKED:
                self._asked.pop(next(iter(self._asked))).close()

    def _fill_from_shards(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        dataset = self._dataset
        targets = _core.lay_out(rows, counts, places, text, self._multiple)
        if self._on_store:
            fetch = self._asked.pop(rows.tobytes(), None) or self._fetch(rows)
            flat = text.reshape(-1)
            for row, tokens in fetch.take():
                flat[targets[row] : targets[row] + len(tokens)] = as_integers(tokens)
        for shard, here, shard_rows in self._by_shard(rows):
            values = shard.values(self._track)
            if isinstance(values, StoredTokens):
                continue
            if isinstance(values, LazyTokens):
                for place, begin, count in self._spans(shard, here, shard_rows, rows):
                    at = targets[place]
                    text.reshape(-1)[at : at + count] = as_integers(values[begin : begin + count])
                continue
            wrong = shard.token_file(self._track).gather(shard_rows, targets[here], text)
            if wrong >= 0:
                raise _broken(dataset, *rows[here][wrong].tolist())

    def _by_shard(self, rows: Rows) -> Iterator[tuple[Shard, Int64s, Rows]]:
        """Each shard, the places of its rows, and these rows as the shard numbers sequences."""
        based = rows if self._view is None else self._base_rows(self._view, rows)
        inside = (based[:, 0] >= 0) & (based[:, 0] < self._starts[-1])
        if not inside.all():
            raise _broken(self._dataset, *rows[~inside][0].tolist())
        for number, here, sequences in by_part(self._starts, based[:, 0]):
            shard_rows = based[here]
            shard_rows[:, 0] = sequences
            yield self._shard(number), here, shard_rows

    def _base_rows(self, view: ViewIndex, rows: Rows) -> Rows:
        """Rows with the numbers that their sequences have in the datasets of a view."""
        try:
            return view.base_rows(rows)
        except IndexError:
            wrong = (rows[:, 0] < 0) | (rows[:, 0] >= len(self._dataset))
            raise _broken(self._dataset, *rows[wrong][0].tolist()) from None

    def _fetch(self, rows: Rows) -> Fetch | BlockFetch:
        spans, blocks = [], []
        for shard, here, shard_rows in self._by_shard(rows):
            values = shard.values(self._track)
            if not isinstance(values, StoredTokens):
                continue
            if self._blocks is not None:
                blocks += self._blocks_of(shard, rows[here], shard_rows)
            for place, begin, count in self._spans(shard, here, shard_rows, rows):
                spans.append(Span(place, values, begin, count))
        if self._blocks is None:
            return Fetch(spans)
        return BlockFetch((s, *block) for s, block in zip(spans, blocks, strict=True))

    def _spans(
        self, shard: Shard, here: Int64s, shard_rows: Rows, rows: Rows
    ) -> Iterator[tuple[int, int, int]]:
        """The place of each row of a shard, its first token in the .bin, and how many it has."""
        for place, (sequence, first, count) in zip(here.tolist(), shard_rows.tolist(), strict=True):
            begin, length = sequence_span(shard.index, sequence, shard.tokens.nbytes)
            if first < 0 or not 0 <= count <= length - first:
                raise _broken(self._dataset, *rows[place].tolist())
            yield place, begin + first, count

    def _blocks_of(self, shard: Shard, rows: Rows, shard_rows: Rows) -> list[tuple[int, int]]:
        """The range [first, end) of tokens of a shard that is the block of each row.

        ``rows`` have sequence numbers of the dataset, ``own`` those of the shard.
        """
        assert self._blocks is not None
        places = np.searchsorted(self._blocks, rows[:, 0], side="right") - 1
        before = rows[:, 0] - shard_rows[:, 0]
        firsts = np.maximum(self._blocks[places] - before, 0)
        lasts = np.minimum(self._blocks[places + 1] - before, len(shard)) - 1
        size = shard.tokens.nbytes
        ranges = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            begin, length = sequence_span(shard.index, last, size)
            ranges.append((sequence_span(shard.index, first, size)[0], begin + length))
        return ranges


def _broken(dataset: MMapIndexedDataset, sequence: int, first: int, count: int) -> Exception:
    """The error that reading a row gives, which says what is wrong with it."""
    try:
        if sequence >= 0:
            dataset.get(sequence, first, count)
    except (FormatError, IndexError) as error:
        return FormatError(f"{error}: the order does not fit the dataset")
    return FormatError(
        f"{dataset.path_prefix}: tokens {first} to {first + count} of sequence {sequence}, which "
        "does not exist: the order does not fit the dataset"
    )
