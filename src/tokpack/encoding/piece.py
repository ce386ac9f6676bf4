"""Encode one part into one piece: a pure function of (bytes, tokenizer, options).

A piece is a few raw files, its *tracks*: for each key the token ids, the tokens of each sequence
(int32) and, where a document is not just one sequence, the sequences of each document (int32).
``NNNNNN.json`` is written last, by rename: with it, the piece exists.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack.encoding.folder import WorkFolder, cannot_write
from tokpack.encoding.progress import Advance
from tokpack.encoding.transforms import make_transform
from tokpack.errors import InputError, RecordError
from tokpack.sources import BadRecord, Batch, Documents, line_base, read
from tokpack.tokenizers import UnknownWordError

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions
    from tokpack.sources import Part, Source
    from tokpack.tokenizers import Tokenizer

Report = Callable[[Advance], None]
REPORT_SECONDS = 0.2
_SPECIAL = (
    "the document contains a special token of the tokenizer "
    "(special_tokens says what becomes of it: text, encode, auto or error)"
)


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
        kinds = ("ids", "lengths", *(("documents",) if self.has_document_track else ()))
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


class _Tracks:
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
        return [state.hexdigest() for state in self._hashes]

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


class PartEncoder:
    """Encodes parts, one after the other; one in each process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        options = job.options
        self._transform = make_transform(options)
        self._sentences = options.split_sentences
        self._eod = job.tokenizer.eod_id if options.append_eod else None
        self._encoder = job.tokenizer.encoder(
            dtype=job.dtype,
            append_eod=options.append_eod and not self._sentences,
            special_tokens=options.special_tokens,
        )

    def run(self, number: int, report: Report, limit: int | None = None) -> Piece:
        """Encode part ``number``, at most ``limit`` records of it.

        Raises RecordError for a bad record that the options do not allow, InputError for an input
        that is missing or changes while it is read, OutputError when the piece cannot be written.
        """
        job = self.job
        source = job.sources[job.parts[number].source]
        tracks = _Tracks([job.folder.piece(number, track) for track in job.tracks])
        try:
            piece = self._encode(number, tracks, report, limit)
        finally:
            tracks.close()
        check_unchanged(source)
        job.folder.write_json(f"{number:06d}.json", piece.to_json(), sync=False)
        return piece

    def _encode(self, number: int, tracks: _Tracks, report: Report, limit: int | None) -> Piece:
        job = self.job
        part = job.parts[number]
        source = job.sources[part.source]
        keys = job.options.keys
        piece = Piece.nothing(number, len(keys))
        counts = piece.keys
        extents: list[tuple[int, ...]] = []
        told = 0  # extents before this one were reported and are closed
        clock = time.perf_counter
        reading = encoding = writing = 0.0
        begin = reported = clock()
        batches = iter(read(source, part, keys, max_document_bytes=job.options.max_document_bytes))
        while (batch := next(batches, None)) is not None:
            if limit is not None:
                batch = first_records(batch, limit - piece.records)
            now = clock()
            reading += now - begin
            if batch.bad:
                self._reject(number, batch.bad, piece.rejected)
            for index, key in enumerate(keys):
                begin = now
                arrays = self._tokens(number, batch.documents[key], counts[index])
                now = clock()
                encoding += now - begin
                first = index * len(arrays)
                for track, values in enumerate(arrays, first):
                    tracks.write(track, values)
                begin, now = now, clock()
                writing += now - begin
            piece.records += batch.records
            piece.lines += batch.lines
            piece.rejected += len(batch.bad)
            piece.bytes_read += batch.bytes_read
            piece.text_bytes += batch.text_bytes
            extent = (batch.segment, *tracks.sizes)
            if extents and extents[-1][0] == batch.segment:
                extents[-1] = extent
            else:
                extents.append(extent)
            begin = now
            if now - reported >= REPORT_SECONDS:
                reported = now
                report(
                    Advance(
                        number,
                        piece.bytes_read,
                        piece.text_bytes,
                        counts[0].documents,
                        sum(count.tokens for count in counts),
                        piece.rejected,
                        (reading, encoding, writing),
                        tuple(extents[told:]),
                    )
                )
                told = len(extents) - 1
            if limit is not None and piece.records >= limit:
                break
        piece.seconds = (reading, encoding, writing)
        piece.extents = extents
        piece.checksums = tracks.checksums()
        return piece

    def _tokens(
        self, number: int, documents: Documents, counts: KeyCounts
    ) -> tuple[npt.NDArray[Any], ...]:
        """What goes into the tracks of one key for a batch of documents."""
        data, spans = documents.data, documents.spans
        per_document = None
        counts.text_bytes += int((spans[:, 1] - spans[:, 0]).sum())
        if self._transform is not None:
            data, spans, per_document = self._transform(data, spans)
        try:
            encoded = self._encoder.encode(data, spans)
        except UnknownWordError as error:
            line = self._line(documents, error.document, per_document)
            raise self._record_error(number, line, str(error)) from None
        ids, lengths = encoded.ids, encoded.lengths
        if len(encoded.special):
            counts.special += len(encoded.special)
            if self.job.options.special_tokens == "error":
                line = self._line(documents, int(encoded.special[0]), per_document)
                raise self._record_error(number, line, _SPECIAL)
        if self._sentences and per_document is not None:
            ids, lengths, sequences = join_sentences(ids, lengths, per_document, self._eod)
        else:
            sequences = (lengths > 0).astype(np.int32)
        kept = int(np.count_nonzero(lengths))
        if kept != len(lengths):
            lengths = lengths[lengths > 0]
        with_tokens = kept if not self._sentences else int(np.count_nonzero(sequences))
        counts.documents += with_tokens
        counts.empty += len(documents.spans) - with_tokens
        counts.sequences += kept
        counts.tokens += len(ids)
        if not self.job.has_document_track:
            return ids, lengths
        if self.job.options.empty == "skip":
            sequences = sequences[sequences > 0]
        return ids, lengths, sequences

    def _line(
        self, documents: Documents, index: int, per_document: npt.NDArray[np.int64] | None
    ) -> int:
        """The line of the document that the encoder calls ``index``."""
        if per_document is not None:
            index = int(np.searchsorted(np.cumsum(per_document), index, side="right"))
        return int(documents.lines[index])

    def _record_error(self, number: int, line: int, reason: str) -> RecordError:
        part = self.job.parts[number]
        source = self.job.sources[part.source]
        return RecordError(source.name, line_base(source, part) + line + 1, reason)

    def _reject(self, number: int, bad: list[BadRecord], before: int) -> None:
        """Fail for a bad record, or note it in the piece's rejects file."""
        if self.job.options.on_error == "fail":
            raise self._record_error(number, bad[0].line, bad[0].reason)
        path = self.job.folder.piece(number, "rejects.jsonl")
        with cannot_write(path), open(path, "ab" if before else "wb") as file:
            for record in bad:
                line = {"line": record.line, "reason": record.reason, **_record_text(record.raw)}
                file.write(json.dumps(line).encode() + b"\n")


def join_sentences(
    ids: npt.NDArray[Any],
    lengths: npt.NDArray[np.int32],
    per_document: npt.NDArray[np.int64],
    eod: int | None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sentences -> (ids, lengths, sequences of each document): none is empty, EOD ends the last."""
    owner = np.repeat(np.arange(len(per_document)), per_document)
    owner = owner[lengths > 0]
    lengths = lengths[lengths > 0]
    sequences = np.bincount(owner, minlength=len(per_document)).astype(np.int32)
    if eod is not None and len(lengths):
        last = np.cumsum(sequences)[sequences > 0] - 1
        ends = np.cumsum(lengths, dtype=np.int64)[last]
        ids = np.insert(ids, ends, eod)
        lengths = lengths.copy()
        lengths[last] += 1
    return ids, lengths, sequences


def first_records(batch: Batch, limit: int) -> Batch:
    """The batch cut after its first ``limit`` records."""
    if batch.records <= limit:
        return batch
    lines = np.concatenate(
        [next(iter(batch.documents.values())).lines, [record.line for record in batch.bad]]
    )
    end = np.partition(lines, limit)[limit]
    documents = {}
    for key, docs in batch.documents.items():
        keep = docs.lines < end
        documents[key] = Documents(docs.data, docs.spans[keep], docs.lines[keep])
    bad = [record for record in batch.bad if record.line < end]
    return replace(batch, documents=documents, bad=bad, records=limit)


def check_unchanged(source: Source) -> None:
    """Raise InputError when the source's file is not the one that was planned."""
    if source.path == "-" or not os.path.isfile(source.path):
        return
    status = os.stat(source.path)
    if (status.st_size, status.st_mtime_ns) != (source.size, source.mtime_ns):
        raise InputError(
            f"{source.name} changed while it was read; run again when nothing writes to it"
        )


def _record_text(raw: bytes) -> dict[str, str]:
    try:
        return {"record": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"record": raw.decode("utf-8", "replace"), "base64": base64.b64encode(raw).decode()}
