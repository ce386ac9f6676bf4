"""The trace of a run: the lines that the pieces noted, counted from the start of each input."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tokpack.encoding.join import groups_of
from tokpack.errors import OutputError
from tokpack.indexed import FileDigest, digest_file, replace_file, trace_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack.encoding.piece import Job, Piece

    Lines = npt.NDArray[np.int64]

_CHUNK = 1 << 20


def groups_with_base(job: Job, pieces: Sequence[Piece]) -> Iterator[tuple[int, int, list[Piece]]]:
    """(input, lines of it before those that are noted, pieces) of what was joined together.

    Parts in stripes count lines from the start of the file, the others from their own.
    """
    by_number = {piece.number: piece for piece in pieces}
    lines = [0] * len(job.sources)
    for group in groups_of(job.parts):
        part = job.parts[group[0]]
        own = [by_number[number] for number in group]
        yield part.source, 0 if part.kind == "stripes" else lines[part.source], own
        lines[part.source] += sum(piece.lines for piece in own)


def write_trace(
    job: Job, pieces: Sequence[Piece], index: int, rejected: Iterable[tuple[int, Lines]]
) -> FileDigest:
    """Write the trace of key number ``index`` into the work folder.

    ``rejected`` are the lines of bad records by input, in order. Raises OutputError.
    """
    key = job.options.keys[index]
    lines = [0] * len(job.sources)
    for source, _, group in groups_with_base(job, pieces):
        lines[source] += sum(piece.lines for piece in group)
    documents = ((source, own[own > 0]) for source, own in _noted(job, key, pieces, index))
    empty = ((source, -own[own < 0]) for source, own in _noted(job, key, pieces, index))
    path = job.folder.joined(job.folder.track(key, "trace"))
    replace_file(path, trace_chunks(lines, (documents, empty, rejected)))
    return digest_file(path)


def _noted(job: Job, key: str, pieces: Sequence[Piece], index: int) -> Iterator[tuple[int, Lines]]:
    """(input, lines from 1) of the good records, in order; those left out as negative numbers."""
    path = job.folder.joined(job.folder.track(key, "lines"))
    expected = 8 * sum(p.keys[index].documents + p.keys[index].empty for p in pieces)
    if os.path.getsize(path) != expected:
        found = os.path.getsize(path)
        raise OutputError(f"{path} has {found} bytes instead of {expected}; run again anew")
    with open(path, "rb") as file:
        for source, before, group in groups_with_base(job, pieces):
            left = sum(p.keys[index].documents + p.keys[index].empty for p in group)
            while left:
                own = np.fromfile(file, "<i8", min(left, _CHUNK))
                left -= len(own)
                yield source, np.where(own >= 0, own + 1 + before, own - before)
