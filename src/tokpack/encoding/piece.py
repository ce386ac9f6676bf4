"""The piece that a part becomes.

A piece is a few raw files, its *tracks*: for each key the token ids, the tokens of each sequence
(int32), where a document is not just one sequence, the sequences of each document (int32), and for
a trace runs of records in consecutive lines (int64 [r, 2]: first line, counted as in Documents, and
number of lines; for records that were left out ``~line``).
``NNNNNN.json`` is written last, by rename: with it, the piece exists.
"""

from __future__ import annotations

import functools
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.files.durable import cannot_write
from tokpack.progress import Advance

if TYPE_CHECKING:
    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Batch, Part, Source
    from tokpack.tokenizers import Tokenizer


@dataclass(frozen=True)
class Job:
    """All that a worker needs; picklable."""

    folder: WorkFolder
    sources: tuple[Source, ...]
    parts: tuple[Part, ...]
    tokenizer: Tokenizer
    dtype: str
    options: EncodeOptions

    @property
    def has_document_track(self) -> bool:
        """Whether a document can be other than exactly one sequence."""
        return self.options.split_sentences or self.options.empty == "document"

    @functools.cached_property
    def tracks(self) -> tuple[str, ...]:
        """Names of the raw files of a piece, key by key."""
        kinds = ["ids", "lengths"]
        if self.has_document_track:
            kinds.append("documents")
        if self.options.trace:
            kinds.append("lines")
        return tuple(self.folder.track(key, kind) for key in self.options.keys for kind in kinds)

    def describe(self, number: int) -> str:
        """A part in words, for messages."""
        part = self.parts[number]
        name = self.sources[part.source].name
        if part.kind == "whole":
            return name
        if part.kind == "stripes":
            return f"{name} (part {part.begin + 1} of {part.end})"
        return f"{name} ({part.kind} {part.begin} to {part.end})"


@dataclass
class KeyCounts:
    """What one key of a piece, an input or a run came to."""

    documents: int = 0  # with at least one token
    sequences: int = 0
    tokens: int = 0
    empty: int = 0  # documents without a token
    special: int = 0  # special tokens found inside documents
    text_bytes: int = 0  # UTF-8 text of the documents, as read

    def add(self, other: KeyCounts) -> None:
        """Add another's counts to these."""
        self.documents += other.documents
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.empty += other.empty
        self.special += other.special
        self.text_bytes += other.text_bytes


@dataclass
class Piece:
    """What is known about a finished piece: the content of its NNNNNN.json."""

    number: int
    records: int
    lines: int
    rejected: int
    bytes_read: int
    text_bytes: int
    seconds: tuple[float, ...]
    keys: list[KeyCounts]
    extents: list[tuple[int, ...]]  # (segment, end of each track in bytes), ascending
    checksums: list[str]  # xxh3_64 of each track

    @classmethod
    def nothing(cls, number: int, keys: int) -> Piece:
        """The piece of a part of which nothing is wanted."""
        counts = [KeyCounts() for _ in range(keys)]
        return cls(number, 0, 0, 0, 0, 0, (0.0, 0.0, 0.0), counts, [], [])

    def add(self, batch: Batch, ends: list[int]) -> None:
        """Count a batch, of which the tracks hold all up to ``ends``."""
        self.records += batch.records
        self.lines += batch.lines
        self.rejected += len(batch.bad)
        self.bytes_read += batch.bytes_read
        self.text_bytes += batch.text_bytes
        extent = (batch.segment, *ends)
        if self.extents and self.extents[-1][0] == batch.segment:
            self.extents[-1] = extent
        else:
            self.extents.append(extent)

    def advance(self, seconds: tuple[float, ...], told: int) -> Advance:
        """What to say about the piece so far; the extents before ``told`` are known."""
        return Advance(
            self.number,
            self.bytes_read,
            self.text_bytes,
            self.keys[0].documents,
            sum(key.tokens for key in self.keys),
            self.rejected,
            seconds,
            tuple(self.extents[told:]),
        )

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Piece:
        """The piece written by ``to_json``."""
        return cls(
            **{
                **value,
                "seconds": tuple(value["seconds"]),
                "keys": [KeyCounts(**counts) for counts in value["keys"]],
                "extents": [tuple(extent) for extent in value["extents"]],
            }
        )


class Tracks:
    """The open files of a piece."""

    def __init__(self, paths: list[str]) -> None:
        self.sizes = [0] * len(paths)
        self._paths = paths
        self._hashes = [xxhash.xxh3_64() for _ in paths]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._files: list[int] = []
        for path in paths:
            with cannot_write(path):
                self._files.append(os.open(path, flags, 0o666))

    def write(self, track: int, values: npt.NDArray[Any]) -> None:
        """Append an array to a track. Raises OutputError."""
        if not values.size:
            return
        data = np.ascontiguousarray(values).data.cast("B")
        self._hashes[track].update(data)
        self.sizes[track] += len(data)
        done = 0
        try:
            while done < len(data):
                done += os.write(self._files[track], data[done:])
        except OSError:
            with cannot_write(self._paths[track]):
                raise

    def checksums(self) -> list[str]:
        """xxh3_64 of each track."""
        return [state.hexdigest() for state in self._hashes]

    def close(self) -> None:
        """Close the files, without making them durable: that is for the join."""
        for file in self._files:
            os.close(file)
        self._files = []
