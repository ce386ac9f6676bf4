"""The trace of a run: the line of each document, counted from the start of its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack.encoding.piece import SOURCE_COLUMNS
from tokpack.errors import OutputError
from tokpack.files.durable import cannot_write, replace_file
from tokpack.indexed import FileDigest, HashingReader, Trace, trace_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tokpack.encoding.piece import Pieces

    Runs = npt.NDArray[np.int64]  # [r, 2]: first line, number of lines

_CHUNK = 1 << 20
_TO_LINES = np.array([-1, 1])  # a run of negative lines times this is one of lines


def write_trace(pieces: Pieces, index: int, rejected: Iterable[tuple[int, Runs]]) -> FileDigest:
    """Write the trace of key number ``index`` into the work folder.

    ``rejected`` are runs of the lines of bad records by input, in order. Raises OutputError.
    """
    job = pieces.job
    key = job.options.keys[index]
    sums = pieces.by_source()
    lines = sums[:, SOURCE_COLUMNS.index("lines")].tolist()
    lines[0] += pieces.lines_before
    documents = ((source, runs[runs[:, 0] > 0]) for source, runs in _noted(pieces, index))
    empty = ((source, runs[runs[:, 0] < 0] * _TO_LINES) for source, runs in _noted(pieces, index))
    path = job.path(job.folder.track(key, "trace"))
    chunks = HashingReader(trace_chunks(lines, (documents, empty, rejected)))
    replace_file(path, chunks)
    trace = Trace(path)
    count = trace.count("documents") + trace.count("empty")
    columns = [job.key_column(index, name) for name in ("documents", "empty")]
    expected = int(sums[:, columns].sum())
    if count != expected:
        raise OutputError(f"{path} has {count} records instead of {expected}; run again anew")
    return chunks.digest


def _noted(pieces: Pieces, index: int) -> Iterator[tuple[int, Runs]]:
    """(input, runs of its lines, from 1) in order; records that were left out have ``-line``."""
    job = pieces.job
    path = job.path(job.folder.track(job.options.keys[index], "lines"))
    column = job.key_column(index, "runs")
    with cannot_write(path), open(path, "rb") as file:
        for source, before, counts in pieces.rows():
            left = 2 * counts[column]
            while left:
                runs = np.fromfile(file, "<i8", min(left, _CHUNK)).reshape(-1, 2)
                if not runs.size:
                    raise OutputError(f"{file.name} is cut off; run again anew")
                left -= runs.size
                runs[:, 0] += np.where(runs[:, 0] >= 0, 1 + before, -before)
                yield source, runs
