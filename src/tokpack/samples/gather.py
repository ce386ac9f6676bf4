"""The tokens of rows, copied out of a dataset by the native core."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokpack import _core
from tokpack.dataset.format import by_part, sequence_span
from tokpack.dataset.mapped import (
    MOST_BYTES,
    Fetch,
    LazyTokens,
    Span,
    StoredTokens,
    as_integers,
    read,
)
from tokpack.errors import FormatError
from tokpack.storage import KeptRanges
from tokpack.storage.objects.cache import kept_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack.dataset import MMapIndexedDataset, Shard
    from tokpack.dataset.mapped import Tokens
    from tokpack.samples.orders import Counts, Rows
    from tokpack.storage import StoredObject

    Cell = tuple[StoredObject, int, int]  # bytes [begin, end) of a .bin, one file in the cache
    Int64s = npt.NDArray[np.int64]


# Tokens on a store are requested ahead, all at once, in few requests.

AHEAD_BYTES = 64 << 20  # about this many bytes of samples are requested ahead
MOST_AHEAD = 32  # batches at most

_MOST_FILES = 1 << 14
_files: dict[Cell, str] = {}  # cached files known to this process

Numbers = TypeVar("Numbers", bound="Sequence[int]")


class BlockFetch:
    """Spans read from copies of whole blocks in the local cache.

    A block is copied once for all processes. Each span has its block, the range [first, end) of
    tokens in the .bin.
    """

    def __init__(self, spans: Iterable[tuple[Span, int, int]]) -> None:
        self._spans = [(span, list(_cut(span, first, end))) for span, first, end in spans]
        cells = dict.fromkeys(cell for _, parts in self._spans for cell, _, _ in parts)
        missing = [cell for cell in cells if _file_of(cell) is None]
        self._coming = KeptRanges(missing) if missing else None

    def take(self) -> Iterator[tuple[int, Tokens]]:
        """Each row with its tokens, once. InputError, OutputError."""
        if self._coming is not None:
            self._coming.take()
        for span, parts in self._spans:
            data = b"".join(_kept_bytes(*part) for part in parts)
            yield span.row, np.frombuffer(data, span.tokens.dtype)

    def close(self) -> None:
        """Cancel the requests that are not answered."""
        if self._coming is not None:
            self._coming.close()


def _cut(span: Span, first: int, end: int) -> Iterator[tuple[Cell, int, int]]:
    """The cells with the bytes of a span: (cell, first byte in it, bytes)."""
    width, stored = span.tokens.dtype.itemsize, span.tokens.stored
    at, stop = span.begin * width, (span.begin + span.length) * width
    while at < stop:
        begin = at - (at - first * width) % MOST_BYTES
        until = min(begin + MOST_BYTES, end * width)
        yield (stored, begin, until), at - begin, min(until, stop) - at
        at = until


def _file_of(cell: Cell) -> str | None:
    path = _files.get(cell)
    if path is None and (path := kept_range(*cell)) is not None:
        if len(_files) == _MOST_FILES:
            _files.clear()
        _files[cell] = path
    return path


def _kept_bytes(cell: Cell, at: int, size: int) -> bytes:
    path = _file_of(cell)
    if path is not None:
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, at)
            if len(data) == size:
                return data
    _files.pop(cell, None)  # the cache has removed it to make space
    stored, begin, _ = cell
    return read(stored, begin + at, begin + at + size)


def asked_ahead(samples: Any, batches: Iterable[Numbers]) -> Iterable[Numbers]:
    """The same lists of sample numbers, each after the next ones were requested.

    ``samples`` is a GPTDataset or a blend. Only data on a store are requested.
    """
    return _asking(samples, batches) if getattr(samples, "on_store", False) else batches


def _asking(samples: Any, batches: Iterable[Numbers]) -> Iterator[Numbers]:
    coming: deque[Numbers] = deque()
    for numbers in batches:
        samples.ask(numbers)
        coming.append(numbers)
        size = max(1, 4 * samples.seq_length * len(numbers))
        while len(coming) > min(MOST_AHEAD, AHEAD_BYTES // size):
            yield coming.popleft()
    yield from coming


_MOST_ASKED = 256  # requests to keep; older ones are probably no longer needed


class Gatherer:
    """Copies the tokens of rows out of ``dataset``; rows are checked before they are read.

    With ``track`` the values of that track are copied instead, float16 as bits. ``blocks``, int64
    [B + 1], are the first sequences of the order's blocks, if any: then whole blocks of a dataset
    on a store are read and cached. Rows begin at multiples of ``multiple`` in a sample.
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
        # For a view, the datasets under it are read, and no block is in one place there.
        self._blocks = blocks if view is None else None
        self._starts = dataset.starts if view is None else view.base.starts
        self._shard = dataset.shard if view is None else view.base.open
        self._on_store = dataset.on_store
        self._asked: dict[bytes, Fetch | BlockFetch] = {}
        # A single shard is opened now, several on demand.
        alone = len(self._starts) == 2 and not self._on_store
        # For a view of one shard the core maps sequences, if every document is one sequence.
        looks_up = alone and view is not None and view.is_simple
        self._file = None
        if alone and (view is None or looks_up):
            self._file = self._shard(0).token_file(track, None if view is None else view.numbers)

    def fill(self, text: Int64s, rows: Rows, counts: Counts, places: Int64s) -> None:
        """Write the tokens of samples into ``text`` (int64 [B, S + 1]).

        Sample i has ``counts[i]`` of the rows; its tokens go to the beginning of
        ``text[places[i]]``, and the rest of that becomes 0. FormatError for rows that are not in
        the dataset or do not fit, and for a sequence whose entry in the index is wrong.
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
        """Request the tokens of rows, if they are on a store, before ``fill`` needs them."""
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
        """For each shard: the places of its rows, and these rows with the shard's numbers of
        sequences.
        """
        try:
            based = rows if self._view is None else self._view.base_rows(rows)
        except IndexError:
            wrong = (rows[:, 0] < 0) | (rows[:, 0] >= len(self._dataset))
            raise _broken(self._dataset, *rows[wrong][0].tolist()) from None
        inside = (based[:, 0] >= 0) & (based[:, 0] < self._starts[-1])
        if not inside.all():
            raise _broken(self._dataset, *rows[~inside][0].tolist())
        for number, here, sequences in by_part(self._starts, based[:, 0]):
            shard_rows = based[here]
            shard_rows[:, 0] = sequences
            yield self._shard(number), here, shard_rows

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
        """For each row of a shard: its place, its first token in the .bin, and its number of
        tokens.
        """
        for place, (sequence, first, count) in zip(here.tolist(), shard_rows.tolist(), strict=True):
            begin, length = sequence_span(shard.index, sequence, shard.tokens.nbytes)
            if first < 0 or not 0 <= count <= length - first:
                raise _broken(self._dataset, *rows[place].tolist())
            yield place, begin + first, count

    def _blocks_of(self, shard: Shard, rows: Rows, shard_rows: Rows) -> list[tuple[int, int]]:
        """The range [first, end) of a shard's tokens that is the block of each row.

        ``rows`` have sequence numbers of the dataset, ``shard_rows`` those of the shard.
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
    """The error from reading a row, which says what is wrong with it."""
    try:
        if sequence >= 0:
            dataset.get(sequence, first, count)
    except (FormatError, IndexError) as error:
        return FormatError(f"{error}: the order does not fit the dataset")
    return FormatError(
        f"{dataset.path_prefix}: tokens {first} to {first + count} of sequence {sequence}, which "
        "does not exist: the order does not fit the dataset"
    )
