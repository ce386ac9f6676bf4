"""The trace of a run: the lines that the pieces noted, counted from the start of each input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack.encoding.join import groups_of
from tokpack.errors import OutputError
from tokpack.files.durable import cannot_write, replace_file
from tokpack.indexed import Digested, FileDigest, Trace, trace_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tokpack.encoding.piece import Job, Piece

    Runs = npt.NDArray[np.int64]  # [r, 2]: first line, number of lines

_CHUNK = 1 << 20
_BACK = np.array([-1, 1])  # negative lines -> lines


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
    job: Job, pieces: Sequence[Piece], index: int, rejected: Iterable[tuple[int, Runs]]
) -> FileDigest:
    """Write the trace of key number ``index`` into the work folder.

    ``rejected`` are runs of the lines of bad records by input, in order. Raises OutputError.
    """
    key = job.options.keys[index]
    lines = [0] * len(job.sources)
    for source, _, group in groups_with_base(job, pieces):
        lines[source] += sum(piece.lines for piece in group)
    documents = ((source, own[own[:, 0] > 0]) for source, own in _noted(job, key, pieces))
    empty = ((source, own[own[:, 0] < 0] * _BACK) for source, own in _noted(job, key, pieces))
    path = job.folder.joined(job.folder.track(key, "trace"))
    chunks = Digested(trace_chunks(lines, (documents, empty, rejected)))
    replace_file(path, chunks)
    trace = Trace(path)
    found = trace.count("documents") + trace.count("empty")
    expected = sum(piece.keys[index].documents + piece.keys[index].empty for piece in pieces)
    if found != expected:
        raise OutputError(f"{path} has {found} records instead of {expected}; run again anew")
    return chunks.digest


def _noted(job: Job, key: str, pieces: Sequence[Piece]) -> Iterator[tuple[int, Runs]]:
    """(input, runs of its lines from 1) in order; what was left out has negative lines."""
    track = job.folder.track(key, "lines")
    number = job.tracks.index(track)
    path = job.folder.joined(track)
    with cannot_write(path), open(path, "rb") as file:
        for source, before, group in groups_with_base(job, pieces):
            left = sum(piece.extents[-1][1 + number] for piece in group if piece.extents) // 8
            while left:
                runs = np.fromfile(file, "<i8", min(left, _CHUNK)).reshape(-1, 2)
                if not runs.size:
                    raise OutputError(f"{file.name} is cut off; run again anew")
                left -= runs.size
                runs[:, 0] += np.where(runs[:, 0] >= 0, 1 + before, -before)
                yield source, runs
