"""The piece that a part becomes.

A piece is a few raw files, its *tracks*: for each key the token ids, the tokens of each sequence
(int32), where a document is not just one sequence, the sequences of each document (int32), and for
a trace runs of records in consecutive lines (int64 [r, 2]: first line, counted as in Documents, and
number of lines; for records that were left out ``~line``).
``NNNNNN.json`` is written last, by rename: with it, the piece exists.
"""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.encoding.folder import create_own
from tokpack.files.durable import cannot_write
from tokpack.progress import Advance
from tokpack.sources import block_checksums

if TYPE_CHECKING:
    from tokpack.encoding.folder import WorkFolder
    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Batch, Part, Source
    from tokpack.tokenizers import Frame, Tokenizer


@dataclass(frozen=True)
class Job:
    """All that a worker needs; picklable."""

    folder: WorkFolder
    sources: tuple[Source, ...]
    parts: tuple[Part, ...]
    tokenizer: Tokenizer
    frame: Frame
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

    @functools.cached_property
    def parts_of(self) -> dict[int, range]:
        """The numbers of the parts of each source."""
        found: dict[int, range] = {}
        for number, part in enumerate(self.parts):
            first = found.get(part.source, range(number, number)).start
            found[part.source] = range(first, number + 1)
        return found

    def blocks_from(self, number: int) -> int:
        """The first byte of the blocks of the source whose checksums a part computes.

        A range of bytes has its own. Parts that read all of a file share them out.
        """
        part = self.parts[number]
        if part.kind == "bytes":
            return part.begin
        own = self.parts_of[part.source]
        return self.sources[part.source].size * (number - own.start) // len(own)

    def block_checksums(self, number: int) -> str:
        """The checksums of the blocks of the source that a part looks after: see there.

        For a range of bytes these are all that the part depends on. Raises InputError.
        """
        part = self.parts[number]
        begin, end = self.blocks_from(number), part.end
        if part.kind != "bytes":
            last = number + 1 == self.parts_of[part.source].stop
            end = self.sources[part.source].size if last else self.blocks_from(number + 1)
        return block_checksums(
            self.sources[part.source], begin, end, to_newline=part.kind == "bytes"
        )

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
    """Counts of one key: of a piece, of an input, or of a run."""

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
    rejects: str  # xxh3_64 of the bad records
    blocks: str | None  # checksums of the input: Job.block_checksums; None: not known

    @classmethod
    def nothing(cls, number: int, job: Job) -> Piece:
        """A piece without documents."""
        counts = [KeyCounts() for _ in job.options.keys]
        none = xxhash.xxh3_64().hexdigest()
        checksums = [none for _ in job.tracks]
        return cls(number, 0, 0, 0, 0, 0, (0.0, 0.0, 0.0), counts, [], checksums, none, None)

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
        """How far the piece is, for the join, which knows the extents before ``told``."""
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
    def read(cls, job: Job, number: int) -> Piece | None:
        """The piece that a description on disk describes; None where it is missing or damaged."""
        value = job.folder.read_json(f"{number:06d}.json")
        try:
            piece = cls.from_json(value or {})
            return piece if piece.number == number and piece.fits(job) else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

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

    def fits(self, job: Job) -> bool:
        """Whether the sizes of the tracks are what the counts say, and all of them are counts."""
        counts = [self.records, self.lines, self.rejected, self.bytes_read, self.text_bytes]
        counts += [count for key in self.keys for count in asdict(key).values()]
        if not all(type(count) is int and count >= 0 for count in counts):
            return False
        if any(len(extent) != 1 + len(job.tracks) for extent in self.extents):
            return False
        rising = (all(map(int.__le__, a, b)) for a, b in itertools.pairwise(self.extents))
        if not all(rising) or len(self.checksums) != len(job.tracks):
            return False
        widths = {"ids": np.dtype(job.dtype).itemsize, "lengths": 4}
        sizes = dict(zip(job.tracks, self.sizes(job), strict=True))
        return all(
            sizes[job.folder.track(name, kind)] == width * count
            for name, key in zip(job.options.keys, self.keys, strict=True)
            for (kind, width), count in zip(
                widths.items(), (key.tokens, key.sequences), strict=True
            )
        )

    def sizes(self, job: Job) -> tuple[int, ...]:
        """Bytes of each track."""
        return self.extents[-1][1:] if self.extents else (0,) * len(job.tracks)


class Tracks:
    """The open files of a piece."""

    def __init__(self, paths: list[str]) -> None:
        self.sizes = [0] * len(paths)
        self._paths = paths
        self._hashes = [xxhash.xxh3_64() for _ in paths]
        self._files: list[int] = []
        for path in paths:
            self._files.append(create_own(path))

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
