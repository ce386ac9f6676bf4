"""Passes over the documents of a dataset, on all cores: whole documents, results in order."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tokpack.files.blocks import BlockSums, checksum_of_sums
from tokpack.indexed.format import bin_path
from tokpack.indexed.scan import scan
from tokpack.indexed.table import plain_ids
from tokpack.indexed.track import are_trained, read_tracks
from tokpack.indexed.view_tokens import ViewTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tokpack.indexed.dataset import MMapIndexedDataset
    from tokpack.indexed.scan import ByteBlock
    from tokpack.indexed.shard import Shard

Result = TypeVar("Result")
Int64s = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]

RUN_BYTES = 1 << 21  # stays in the cache of a core


def scan_documents(
    dataset: MMapIndexedDataset,
    ends: Int64s,
    look: Callable[[int, Ids, Int64s], Result],
    *,
    threads: int = 0,
    tracks: Sequence[str] = (),
    sums: dict[str, str] | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Call ``look(first, tokens, spans)`` for runs of documents, in threads.

    ``ends`` are the tokens before each document, and all of them at the end: int64 [documents + 1].
    A run is of whole documents, about RUN_BYTES or one that is longer; ``first`` is the number of
    its first, document i of it has the tokens [spans[i, 0], spans[i, 1]), of the dtypes that
    ``plain_ids`` gives. With ``tracks``, which say what is trained, only trained tokens are there.
    The checksums of .bin files that no manifest tells are written to ``sums``, by their prefixes.
    Gives, in order, the bytes of a run and what ``look`` returned; documents without a token at the
    end of a shard may be in no run. InputError where a file cannot be read or is replaced.
    """
    first = 0
    for shard in dataset.shards():
        stop = first + shard.index.header.entries - 1
        bounds = ends[first : stop + 1] - ends[first]
        has_none = sums is not None and shard.manifest is None
        blocks = BlockSums() if has_none else None
        runs = _scan_shard(shard, bounds, first, look, threads=threads, tracks=tracks)
        for block, result in runs:
            if blocks is not None:
                blocks.add(block.data)
            yield len(block), result
        shard.check_current("read")
        if blocks is not None and sums is not None:
            sums[shard.prefix] = checksum_of_sums(blocks.finish())
        first = stop


def _scan_shard(
    shard: Shard,
    ends: Int64s,
    first: int,
    look: Callable[[int, Ids, Int64s], Result],
    *,
    threads: int,
    tracks: Sequence[str],
) -> Iterator[tuple[ByteBlock, Result]]:
    width, size = shard.dtype.itemsize, shard.tokens.nbytes
    if not size:
        return
    numbers = np.searchsorted(ends, np.arange(0, size, RUN_BYTES) // width)
    numbers[0] = 0
    numbers = np.unique(numbers)
    numbers = np.append(numbers[ends[numbers] * width < size], len(ends) - 1)
    cuts = ends[numbers] * width

    def look_at(begin: int, block: ByteBlock) -> Result:
        run = int(np.searchsorted(cuts, begin, side="right")) - 1
        bounds = ends[numbers[run] : numbers[run + 1] + 1] - begin // width
        spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
        tokens = plain_ids(block.view(shard.dtype))
        if tracks:
            at = begin // width
            parts = map(are_trained, read_tracks(shard, tracks, at, at + len(tokens)))
            trained = np.concatenate([*parts])
            spans = np.concatenate([[0], np.cumsum(trained)])[spans]
            tokens = tokens[trained]
        return look(first + int(numbers[run]), tokens, spans)

    view = shard.tokens if isinstance(shard.tokens, ViewTokens) else None
    path = bin_path(shard.prefix)
    with closing(scan(path, size, look_at, threads=threads, cuts=cuts, tokens=view)) as runs:
        for _, block, result in runs:
            yield block, result


def trained_tracks(dataset: MMapIndexedDataset) -> tuple[str, ...]:
    """The tracks of a dataset by which its tokens are trained or not; none: all of them are."""
    return tuple(name for name in ("mask", "labels") if name in dataset.tracks)
