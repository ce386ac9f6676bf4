"""Reads the documents of an iterable in the process of the run, as tasks for its workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tokpack.encoding.messages import EncodeDocuments
from tokpack.errors import ResumeError
from tokpack.sources.base import Limits
from tokpack.sources.read import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.encoding.piece import Job, Piece, PieceId

_TURN_SECONDS = 0.02  # of reading, before the run looks after its workers again


class DocumentFeed:
    """The segments of the one part of a job over an iterable.

    Segments that an earlier run has, as ``pieces``, are read past, and compared.
    """

    def __init__(self, job: Job, pieces: Mapping[PieceId, Piece]) -> None:
        self._job = job
        self._checksums = {key: piece.blocks[0] for key, piece in pieces.items()}
        options = job.options
        limits = Limits(BLOCK_BYTES, options.max_document_bytes)
        reader = job.sources[0].memory
        self._read = reader.segments(
            options.keys, job.parts[0].end, limits, options.limit, job.columns_read
        )
        self.segments = 0  # that were read
        self.ended = False

    def read(self) -> EncodeDocuments | None:
        """Read on for a moment: the next task, where one is complete. What the iterable raises.

        ResumeError where it gives other documents than before.
        """
        until = time.monotonic() + _TURN_SECONDS
        for segment in self._read:
            if segment is None:
                if time.monotonic() > until:
                    return None
                continue
            key = 0, self.segments
            self.segments += 1
            if key not in self._checksums:
                return EncodeDocuments(*key, segment.batches, segment.line, segment.checksum)
            if self._checksums[key] != segment.checksum:
                last = segment.line + segment.records
                raise self._others(f"the documents number {segment.line + 1} to {last}")
        if any(segment >= self.segments for _, segment in self._checksums):
            raise self._others("the documents end sooner, so they")
        self.ended = True
        return None

    def _others(self, which: str) -> ResumeError:
        return ResumeError(
            f"{which} are not those of the run in {self._job.folder.path}: give what gave these, "
            "choose another output, or discard that run with overwrite=True"
        )
