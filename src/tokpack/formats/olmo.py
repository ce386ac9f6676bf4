"""Token ids as dolma and OLMo-core have them: ``X.npy``, raw, and ``X.csv.gz`` for documents.

In spite of its name X.npy has no numpy header. A line of X.csv.gz begins with ``start,end``, in
ids; dolma adds the document's id, file and line. OLMo-core reads these lines if X.npy is on a
store; on a disk it ends a document at each EOS instead.

open-instruct has ids in token_ids_part_0000.npy and so on, each with a mask
labels_mask_part_0000.npy: a byte for each id, 1 if it is trained. It cuts parts at 1 GiB, even
inside documents.
"""

from __future__ import annotations

import csv
import glob
import gzip
import os
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, UsageError, option
from tokpack.formats.foreign import (
    STEP,
    ForeignDataset,
    cut_at_ends,
    masks_of,
    open_raw,
    parts_of,
    raw_dtype,
    short_enough,
    size_of,
)
from tokpack.storage.disk import cannot_read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.formats.export import Content
    from tokpack.formats.foreign import Arrays

_IDS, _MASK = "token_ids", "labels_mask"
_LINE = 1 << 20  # characters of a line that are read at once


def olmo_paths(name: str) -> list[str]:
    """The files of a dataset ``X.npy``: the documents, and the ids. UsageError for another name."""
    if not name.endswith(".npy"):
        raise UsageError(f"{name}: OLMo-core finds the documents of X.npy in X.csv.gz: name a .npy")
    return [name.removesuffix(".npy") + ".csv.gz", name]


def olmo_mask(name: str) -> str:
    """The file with the mask of ``X.npy``, by open-instruct's name."""
    folder, base = os.path.split(name)
    masked = base.replace(_IDS, _MASK, 1) if _IDS in base else f"{_MASK}_{base}"
    return os.path.join(folder, masked)


def olmo_parts(folder: str) -> list[str]:
    """The files of ids in a folder that open-instruct made, part by part."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), f"{_IDS}_part_*.npy")))


def open_olmo(path: str, dtype: str | None, eod: int | None) -> ForeignDataset:
    """The ids of ``X.npy``, cut as ``X.csv.gz`` says, or without one at each ``eod``.

    A folder has all parts that open-instruct made.
    """
    paths = olmo_parts(path) if os.path.isdir(path) else [path]
    parts = [_open_part(one, dtype, eod) for one in paths]
    if len(parts) == 1:
        return parts[0]
    if eod is None:
        raise UsageError(
            f"{path}: has {len(parts)} parts, which may cut a document: add {option('eod')}, the "
            "id that ends a document"
        )
    for part in parts:
        if part.dtype != parts[0].dtype:
            raise FormatError(
                f"{path}: its parts hold {parts[0].dtype} and {part.dtype}: give one with "
                f"{option('input_dtype')}"
            )
        if part.tracks.keys() != parts[0].tracks.keys():
            raise FormatError(f"{path}: only some of its parts have a {_MASK} file")
    joined, goes_on = [np.zeros(0, np.int64)], False
    for part in parts:  # a document may continue from a part to the next
        lengths = np.concatenate([np.zeros(0, np.int64), *part.lengths()])
        if goes_on and len(lengths):
            lengths[0] += joined[-1][-1]
            joined[-1] = joined[-1][:-1]
        if len(lengths):
            joined.append(lengths)
            (*_, last) = part.ids()
            goes_on = bool(last[-1] != eod)
    whole = short_enough(np.concatenate(joined), 0, path)
    return ForeignDataset(
        path,
        parts[0].dtype,
        len(whole),
        lambda: parts_of(whole),
        lambda: (ids for part in parts for ids in part.ids()),
        tracks={
            name: lambda: (values for part in parts for values in part.tracks["mask"]())
            for name in parts[0].tracks
        },
    )


def _open_part(path: str, dtype: str | None, eod: int | None) -> ForeignDataset:
    index, mask = olmo_paths(path)[0], olmo_mask(path)
    if os.path.exists(index):
        try:
            ends = np.fromiter(_ends(index, size_of(path)), np.int64)
        except (EOFError, zlib.error, csv.Error) as error:
            raise FormatError(f"{index}: not a valid .csv.gz file: {error}") from None
        opened = cut_at_ends(path, index, ends, raw_dtype(path, dtype) if dtype else None)
    else:
        opened = open_raw(path, dtype, eod)
    if not os.path.exists(mask):
        return opened
    count = size_of(path) // opened.dtype.itemsize
    return replace(opened, tracks={"mask": masks_of(mask, count)})


def _ends(path: str, most: int) -> Iterator[int]:
    """The ends of documents, in ids; each document begins at the end of the one before."""
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
                    "where the previous document ends, and an end in the .npy"
                )
            yield (last := end)


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def checked_ids(content: Content) -> Arrays:
    """All ids. UsageError if a document does not end with the EOD."""
    if content.eod is None:
        raise UsageError(
            f"{content.name}: OLMo-core ends a document at each EOD, and its id is not known here: "
            f"add it with {option('eod')}, or encode with `tokpack encode --append-eod`"
        )
    begin, ends = 0, content.ends
    for ids in content.ids():
        inside = ends[slice(*np.searchsorted(ends, [begin, begin + len(ids)], "right"))]
        wrong = inside[ids[inside - begin - 1] != content.eod]
        if wrong.size:
            number = int(np.searchsorted(ends, wrong[0]))
            raise UsageError(
                f"{content.name}: document {number} does not end with the EOD {content.eod}, by "
                "which OLMo-core finds where documents end: encode with `tokpack encode "
                f"--append-eod`, or give the right {option('eod')}"
            )
        yield ids
        begin += len(ids)


def write_documents(file: BinaryIO, ends: npt.NDArray[np.int64]) -> int:
    """Write begins and ends of documents. Returns how many were left out, without ids.

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
