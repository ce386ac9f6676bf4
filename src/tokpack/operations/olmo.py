"""Token ids as dolma and OLMo-core have them: ``X.npy``, raw, and ``X.csv.gz`` for documents.

In spite of its name X.npy has no numpy header. A line of X.csv.gz begins with ``start,end``, in
ids; dolma adds the id of the document, its file and its line. OLMo-core reads the lines where X.npy
lies on a store; on a disk it ends a document at each EOS instead.
"""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, UsageError
from tokpack.files.durable import cannot_read
from tokpack.operations.foreign import (
    STEP,
    ForeignDataset,
    cut_at_ends,
    open_raw,
    raw_dtype,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.operations.export import Content
    from tokpack.operations.foreign import Arrays

_LINE = 1 << 20  # characters of a line that are read at once


def olmo_paths(name: str) -> list[str]:
    """The files of a dataset ``X.npy``: the documents, and the ids. UsageError for another name."""
    if not name.endswith(".npy"):
        raise UsageError(f"{name}: OLMo-core finds the documents of X.npy in X.csv.gz: name a .npy")
    return [name.removesuffix(".npy") + ".csv.gz", name]


def open_olmo(path: str, dtype: str | None, eod: int | None) -> ForeignDataset:
    """The ids of ``X.npy``, cut as ``X.csv.gz`` says, or, where there is none, at each ``eod``."""
    index = olmo_paths(path)[0]
    if not os.path.exists(index):
        return open_raw(path, dtype, eod)
    try:
        ends = np.fromiter(_ends(index, size_of(path)), np.int64)
    except (EOFError, zlib.error, csv.Error) as error:
        raise FormatError(f"{index}: not a right .csv.gz file: {error}") from None
    return cut_at_ends(path, index, ends, raw_dtype(path, dtype) if dtype else None)


def _ends(path: str, most: int) -> Iterator[int]:
    """Where documents end, in ids; each begins where the one before ended."""
    last = 0
    with (
        cannot_read(path),
        gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="") as file,
    ):
        lines = iter(lambda: file.readline(_LINE), "")
        for number, row in enumerate(csv.reader(lines), 1):
            begin, end = (_count(cell) for cell in [*row, "", ""][:2])
            if not begin == last < end <= most:
                raise FormatError(
                    f"{path}: line {number} begins with {','.join(row[:2])!r}, expected {last}, "
                    "where the document before ends, and an end in the .npy"
                )
            yield (last := end)


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def checked_ids(content: Content) -> Arrays:
    """All ids; UsageError where a document does not end with the EOD."""
    if content.eod is None:
        raise UsageError(
            f"{content.name}: OLMo-core ends a document at each EOD, and nothing says which id "
            "that is here: add --eod ID, or encode with --append-eod"
        )
    begin, ends = 0, content.ends
    for ids in content.ids():
        inside = ends[slice(*np.searchsorted(ends, [begin, begin + len(ids)], "right"))]
        wrong = inside[ids[inside - begin - 1] != content.eod]
        if wrong.size:
            number = int(np.searchsorted(ends, wrong[0]))
            raise UsageError(
                f"{content.name}: document {number} does not end with the EOD {content.eod}, by "
                "which OLMo-core knows where documents end: encode with --append-eod, or give the "
                "right --eod ID"
            )
        yield ids
        begin += len(ids)


def write_documents(file: BinaryIO, ends: npt.NDArray[np.int64]) -> int:
    """Write where documents begin and end; how many are left out, because they have no ids.

    ``ends`` int64 [D], in ids, ascending.
    """
    filled = np.unique(ends[ends > 0])
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        begin = 0
        for start in range(0, len(filled), STEP):
            part = filled[start : start + STEP].tolist()
            rows = zip([begin, *part], part, strict=False)
            packed.write("".join(f"{first},{end}\n" for first, end in rows).encode())
            begin = part[-1]
    return len(ends) - len(filled)
