"""The bad records of a piece, and of a run in the order of its inputs: a JSON object a line."""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.encoding.folder import checksum_of, create_own, open_own
from tokpack.encoding.trace import groups_with_base
from tokpack.files.durable import cannot_write
from tokpack.indexed import runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.piece import Job, Piece
    from tokpack.sources import BadRecord


class Rejects:
    """The file of a piece's bad records, which is made with the first one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._state = xxhash.xxh3_64()
        self._made = False

    def add(self, bad: Sequence[BadRecord]) -> None:
        """Append records. Raises OutputError."""
        lines = [
            {"line": record.line, "reason": record.reason, **_record_text(record.raw)}
            for record in bad
        ]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if not self._made:
            os.close(create_own(self._path))
            self._made = True
        with cannot_write(self._path), open(self._path, "ab") as file:
            file.write(data)
        self._state.update(data)

    @property
    def checksum(self) -> str:
        """xxh3_64 of what was added."""
        return self._state.hexdigest()


def rejects_are_whole(job: Job, piece: Piece) -> bool:
    """Whether a piece's bad records are those that its worker wrote."""
    if not piece.rejected:
        return True
    return checksum_of(job.folder.piece(piece.number, "rejects.jsonl")) == piece.rejects


def reject_lines(job: Job, pieces: Sequence[Piece]) -> Iterator[bytes]:
    """The file of all bad records of a run, line by line, in input order."""
    for source, record in _rejects(job, pieces):
        yield json.dumps({"source": job.sources[source].name, **record}).encode() + b"\n"


def rejected_lines(
    job: Job, pieces: Sequence[Piece]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(input, runs of the lines of its bad records, from 1), in input order."""
    for source, records in itertools.groupby(_rejects(job, pieces), key=lambda pair: pair[0]):
        yield source, runs_of(np.fromiter((record["line"] for _, record in records), np.int64))


def _rejects(job: Job, pieces: Sequence[Piece]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(input, bad record with its line in it, from 1), in input order."""
    for source, before, group in groups_with_base(job, pieces):
        own = [_of_piece(job, piece) for piece in group]
        for record in heapq.merge(*own, key=lambda record: int(record["line"])):
            yield source, {**record, "line": before + record["line"] + 1}


def _of_piece(job: Job, piece: Piece) -> Iterator[dict[str, Any]]:
    if not piece.rejected:
        return
    path = job.folder.piece(piece.number, "rejects.jsonl")
    with cannot_write(path), open(open_own(path, os.O_RDONLY), encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _record_text(raw: bytes) -> dict[str, str]:
    try:
        return {"record": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"record": raw.decode("utf-8", "replace"), "base64": base64.b64encode(raw).decode()}
