"""Encode one part into one piece: a pure function of (bytes, tokenizer, options)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.display import brief
from tokpack.encoding.piece import Job, KeyCounts, Piece, Tracks
from tokpack.encoding.rejects import Rejects
from tokpack.encoding.transforms import make_transform
from tokpack.errors import InputError, RecordError, WorkerError
from tokpack.indexed import runs_of
from tokpack.progress import Advance
from tokpack.sources import BadRecord, Batch, Documents, line_base, read
from tokpack.sources.base import RAW_BYTES_KEPT
from tokpack.tokenizers import DocumentsError, Frame, UnknownWordError, self_check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.sources import Source
    from tokpack.tokenizers import Encoded

Report = Callable[[Advance], None]
REPORT_SECONDS = 0.2
_SPECIAL = (
    "the document contains a special token of the tokenizer "
    "(--special-tokens, special_tokens=, says what becomes of it: text, encode, auto or error)"
)
_KEYS_SHOWN = 12
_SKIP = "--on-error skip (on_error='skip') puts bad records aside and goes on"


class _Text(NamedTuple):
    """Ids of the documents of a batch, or of their sentences, of which each has so many."""

    encoded: Encoded
    per_document: npt.NDArray[np.int64] | None


class PartEncoder:
    """Encodes parts, one after the other; one in each process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        options = job.options
        self._transform = make_transform(options)
        self._sentences = options.split_sentences
        self._encoder = job.tokenizer.encoder(
            dtype=job.dtype,
            special_tokens=options.special_tokens,
            frame=Frame() if self._sentences else job.frame,
        )

    def run(self, number: int, report: Report, limit: int | None = None) -> Piece:
        """Encode part ``number``, at most ``limit`` records of it.

        Raises RecordError for a bad record that the options do not allow, InputError for an input
        that is missing or changes while it is read, OutputError when the piece cannot be written,
        WorkerError where there is not enough memory.
        """
        job = self.job
        source = job.sources[job.parts[number].source]
        tracks = Tracks([job.folder.piece(number, track) for track in job.tracks])
        try:
            piece = self._encode(number, tracks, report, limit)
            if limit is None and not source.is_pipe:
                piece.blocks = job.block_checksums(number)
        except MemoryError as error:
            raise no_memory(job.describe(number), error) from error
        finally:
            tracks.close()
        check_unchanged(source)
        job.folder.write_json(f"{number:06d}.json", piece.to_json(), sync=False)
        return piece

    def _encode(self, number: int, tracks: Tracks, report: Report, limit: int | None) -> Piece:
        keys = self.job.options.keys
        piece = Piece.nothing(number, self.job)
        rejects = Rejects(self.job.folder.piece(number, "rejects.jsonl"))
        clock = _Clock()
        told = 0  # how many extents are complete and have been reported
        for batch in self._batches(number, limit):
            clock.add(0)
            batch, texts = self._encodable(number, batch)  # noqa: PLW2901
            if batch.bad:
                self._check_allowed(number, batch)
                rejects.add(batch.bad)
            for index, key in enumerate(keys):
                arrays = self._tokens(number, batch.documents[key], texts[index], piece.keys[index])
                clock.add(1)
                for track, values in enumerate(arrays, index * len(arrays)):
                    tracks.write(track, values)
                clock.add(2)
            piece.add(batch, tracks.sizes)
            if clock.is_time_to_report():
                report(piece.advance(clock.seconds, told))
                told = len(piece.extents) - 1
        piece.seconds = clock.seconds
        piece.checksums = tracks.checksums()
        piece.rejects = rejects.checksum
        return piece

    def _batches(self, number: int, limit: int | None) -> Iterator[Batch]:
        """The batches of a part, until there were ``limit`` records."""
        part = self.job.parts[number]
        source = self.job.sources[part.source]
        options = self.job.options
        unchecked = source.is_pipe  # SelfCheck cannot read it: it can be read once only
        for batch in read(
            source, part, options.keys, max_document_bytes=options.max_document_bytes
        ):
            documents = batch.documents[options.keys[0]]
            if unchecked and len(documents):
                mode = options.special_tokens
                self_check(self.job.tokenizer, documents.data, documents.spans, special_tokens=mode)
                unchecked = False
            if limit is None:
                yield batch
                continue
            yield first_records(batch, limit)
            limit -= batch.records
            if limit <= 0:
                return

    def _encodable(self, number: int, batch: Batch) -> tuple[Batch, list[_Text]]:
        """The batch without records that the tokenizer's library cannot encode, and its ids."""
        texts = []
        for key in self.job.options.keys:
            documents = batch.documents[key]
            data, spans, per_document = documents.data, documents.spans, None
            if self._transform is not None:
                data, spans, per_document = self._transform(data, spans)
            try:
                texts.append(_Text(self._encoder.encode(data, spans), per_document))
            except UnknownWordError as error:
                line = _line(documents, error.document, per_document)
                raise self._record_error(number, line, str(error)) from None
            except DocumentsError as error:
                found = {_line(documents, i, per_document): i for i in error.reasons}
                reasons = {line: error.reasons[i] for line, i in found.items()}
                return self._encodable(number, without_records(batch, documents, reasons))
        return batch, texts

    def _tokens(
        self, number: int, documents: Documents, text: _Text, counts: KeyCounts
    ) -> tuple[npt.NDArray[Any], ...]:
        """What goes into the tracks of one key for a batch of documents."""
        encoded, per_document = text
        counts.text_bytes += int((documents.spans[:, 1] - documents.spans[:, 0]).sum())
        if len(encoded.special):
            counts.special += len(encoded.special)
            if self.job.options.special_tokens == "error":
                line = _line(documents, int(encoded.special[0]), per_document)
                raise self._record_error(number, line, _SPECIAL)
        return self._lay_out(encoded.ids, encoded.lengths, per_document, documents.lines, counts)

    def _lay_out(
        self,
        ids: npt.NDArray[Any],
        lengths: npt.NDArray[np.int32],
        per_document: npt.NDArray[np.int64] | None,
        lines: npt.NDArray[np.int64],
        counts: KeyCounts,
    ) -> tuple[npt.NDArray[Any], ...]:
        """Count, and leave out what has no token."""
        sequences = lengths  # of each document; here it only matters whether there are any
        if self._sentences and per_document is not None:
            ids, lengths, sequences = join_sentences(ids, lengths, per_document, self.job.frame)
        elif self.job.has_document_track:
            sequences = (lengths > 0).astype(np.int32)
        with_tokens = int(np.count_nonzero(sequences))
        kept = int(np.count_nonzero(lengths))
        if kept != len(lengths):
            lengths = lengths[lengths > 0]
        counts.documents += with_tokens
        counts.empty += len(sequences) - with_tokens
        counts.sequences += kept
        counts.tokens += len(ids)
        tracks: list[npt.NDArray[Any]] = [ids, lengths]
        leaves_out = self.job.options.empty == "skip" and with_tokens != len(sequences)
        if self.job.has_document_track:
            tracks.append(sequences[sequences > 0] if leaves_out else sequences)
        if self.job.options.trace:
            tracks.append(_runs(lines, sequences > 0) if leaves_out else runs_of(lines))
        return tuple(tracks)

    def _record_error(self, number: int, line: int, reason: str, advice: str = "") -> RecordError:
        part = self.job.parts[number]
        source = self.job.sources[part.source]
        return RecordError(source.name, line_base(source, part) + line + 1, reason, advice)

    def _check_allowed(self, number: int, batch: Batch) -> None:
        if self.job.options.on_error == "fail":
            bad = batch.bad[0]
            raise self._record_error(number, bad.line, bad.reason, _advice(batch))


class _Clock:
    """Where the time of a part goes: reading, encoding, writing."""

    def __init__(self) -> None:
        self._busy = [0.0, 0.0, 0.0]
        self._at = self._reported = time.perf_counter()

    def add(self, stage: int) -> None:
        """Count the time since the last call for a stage."""
        now = time.perf_counter()
        self._busy[stage] += now - self._at
        self._at = now

    def is_time_to_report(self) -> bool:
        if self._at - self._reported < REPORT_SECONDS:
            return False
        self._reported = self._at
        return True

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(self._busy)


def join_sentences(
    ids: npt.NDArray[Any],
    lengths: npt.NDArray[np.int32],
    per_document: npt.NDArray[np.int64],
    frame: Frame,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sentences -> (ids, lengths, sequences of each document), and none of them is empty.

    The frame goes before the first sentence of a document and behind the last.
    """
    owner = np.repeat(np.arange(len(per_document)), per_document)
    owner = owner[lengths > 0]
    lengths = lengths[lengths > 0]
    sequences = np.bincount(owner, minlength=len(per_document)).astype(np.int32)
    before, after = frame.before, frame.after
    if (before or after) and len(lengths):
        stop = np.cumsum(sequences)[sequences > 0]
        first = stop - sequences[sequences > 0]
        ends = np.cumsum(lengths, dtype=np.int64)
        begin = (ends - lengths)[first]
        places = [begin] * len(before) + [ends[stop - 1]] * len(after)
        ids = np.insert(ids, np.stack(places, axis=1).ravel(), (*before, *after) * len(first))
        lengths = lengths.copy()
        lengths[first] += len(before)
        lengths[stop - 1] += len(after)
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


def without_records(batch: Batch, documents: Documents, reasons: dict[int, str]) -> Batch:
    """The batch with some lines as bad records; ``documents`` are those of the key at fault."""
    raw = {
        int(line): documents.text(index)[:RAW_BYTES_KEPT]
        for index, line in enumerate(documents.lines)
        if int(line) in reasons
    }
    kept = {}
    for key, docs in batch.documents.items():
        keep = ~np.isin(docs.lines, list(reasons))
        kept[key] = Documents(docs.data, docs.spans[keep], docs.lines[keep])
    bad = [*batch.bad, *(BadRecord(line, reasons[line], text) for line, text in raw.items())]
    return replace(batch, documents=kept, bad=sorted(bad, key=lambda record: record.line))


def check_unchanged(source: Source) -> None:
    """Raise InputError when the source's file is not the one that was planned."""
    if source.is_pipe:
        return
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InputError(f"{source.name}: {error.strerror}, after it was read") from error
    if (status.st_size, status.st_mtime_ns) != (source.size, source.mtime_ns):
        raise InputError(
            f"{source.name} changed while it was read; run again when nothing writes to it"
        )


def no_memory(what: str, error: MemoryError) -> WorkerError:
    """The error of a part, in words, for which there was not enough memory."""
    detail = f" ({error})" if str(error) else ""
    return WorkerError(
        f"a worker had not enough memory for {what}{detail}: use fewer workers (--workers), or "
        "allow only shorter documents (--max-document-bytes); run again to continue"
    )


def _advice(batch: Batch) -> str:
    """What to do about the first bad record of a batch."""
    keys = batch.bad[0].keys
    if keys is None:
        return _SKIP
    names = ", ".join(map(brief, keys[:_KEYS_SHOWN])) or "none"
    more = f" and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
    advice = f"its keys are {names}{more}: name one with --json-keys (keys=)"
    # Where no other record has the key either, to skip such records would leave nothing.
    others_have_it = any(len(documents) for documents in batch.documents.values())
    return f"{advice}, or {_SKIP}" if others_have_it else advice


def _line(documents: Documents, index: int, per_document: npt.NDArray[np.int64] | None) -> int:
    """The line of the document that the encoder calls ``index``."""
    if per_document is not None:
        index = int(np.searchsorted(np.cumsum(per_document), index, side="right"))
    return int(documents.lines[index])


def _runs(lines: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Runs of the lines that are kept, and of the others, whose first lines are ``~line``."""
    others = runs_of(lines[~kept])
    others[:, 0] = ~others[:, 0]
    return np.concatenate((runs_of(lines[kept]), others))
