"""Encode a part, or a segment of a stream: a pure function of (bytes, tokenizer, options)."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.chat import LISTS
from tokpack.counts import OF_RECORDS
from tokpack.encoding.kept import pack
from tokpack.encoding.makers import SAID_COLUMNS, SentenceMaker, TextMaker
from tokpack.encoding.table import lines_of, rows_of, tokens_of_each
from tokpack.errors import RecordError, WorkerError, option
from tokpack.sources import (
    RAW_BYTES_KEPT,
    BadRecord,
    DocumentBatch,
    Part,
    line_base,
    parse,
    read,
)
from tokpack.tokenizers import DocumentsError, UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.encoding.choose import Chooser
    from tokpack.encoding.coordinator import EncodeDocuments
    from tokpack.encoding.makers import EncodedDocuments, Maker
    from tokpack.encoding.piece import Job, Piece
    from tokpack.encoding.worker import Counters, Tracks
    from tokpack.sources import Documents, LineBlock, Source


_LIST = re.compile(rb'"([^"\\]+)"\s*:\s*\[\s*\{')  # a key with objects under it
_OPEN = (b"{", b"[", b",")  # how a line ends that stops inside a value
_SKIP = f"{option('on_error', 'skip')} sets bad records aside and goes on"


def first_batches(batches: Iterable[DocumentBatch], limit: int | None) -> Iterator[DocumentBatch]:
    """The batches up to the first ``limit`` records; the last one may be cut."""
    for batch in batches:
        if limit is None:
            yield batch
            continue
        yield first_records(batch, limit)
        limit -= batch.records
        if limit <= 0:
            return


def first_records(batch: DocumentBatch, limit: int) -> DocumentBatch:
    """The batch cut after its first ``limit`` records."""
    if batch.records <= limit:
        return batch
    read = batch.first.lines
    lines = np.concatenate([read, [record.line for record in batch.bad]])
    first = np.zeros(len(lines), np.bool_)  # a line may have several records
    first[np.argsort(lines, kind="stable")[:limit]] = True
    good, is_first = first[: len(read)], first[len(read) :].tolist()
    documents = {key: docs.select(good) for key, docs in batch.documents.items()}
    bad = list(compress(batch.bad, is_first))
    return replace(batch, documents=documents, bad=bad, records=limit)


def without_records(
    batch: DocumentBatch, documents: Documents, reasons: dict[int, str]
) -> DocumentBatch:
    """The batch with some records turned into bad ones; ``reasons`` are by document number.

    ``documents`` are those of the key at fault. The documents of other keys come from the same
    records, so they are removed too.
    """
    bad = [
        BadRecord(int(documents.lines[i]), reason, documents.text(i)[:RAW_BYTES_KEPT])
        for i, reason in reasons.items()
    ]
    good = np.ones(len(documents), np.bool_)
    good[list(reasons)] = False
    kept = {key: docs.select(good) for key, docs in batch.documents.items()}
    every = sorted([*batch.bad, *bad], key=lambda record: record.line)
    return replace(batch, documents=kept, bad=every)


def advice_for(batch: DocumentBatch) -> str:
    """The advice about the first bad record of a batch."""
    first = batch.bad[0]
    keys = first.keys_there
    if first.reason.startswith("malformed JSON") and first.raw.rstrip().endswith(_OPEN):
        return f"{option('input_format', 'json')} reads values that span lines, or {_SKIP}"
    if not keys:
        return _SKIP
    advice = f"{keys}: name one with {option('keys')}"
    lists = _LIST.findall(first.raw)
    if lists and batch.records == 1:
        asked = option("json_path", lists[0].decode("utf-8", "replace"))
        advice = f"{advice}, or the list of records with {asked}"
    if not set(LISTS).isdisjoint(first.keys or ()):
        advice = f"{keys}: conversations are encoded with {option('chat', True)}"
    # If no record so far has the key, skipping does not help: it would skip all of them.
    others_have_it = any(len(documents) for documents in batch.documents.values())
    return f"{advice}, or {_SKIP}" if others_have_it else advice


BESIDE_BYTES = 1 << 24  # a longer document is not in the run's self-check
_READ, _ENCODE, _WRITE = range(3)
_SPECIAL = (
    "the document contains a special token of the tokenizer "
    f"({option('special_tokens')} says how to encode it: text, encode, auto or error)"
)


class _Origin(NamedTuple):
    """The origin of a batch: its source and part, and the number of lines before the part.

    ``lines`` is None until ``lines_before`` has counted them.
    """

    source: Source
    lines: int | None
    part: Part

    @property
    def lines_before(self) -> int:
        """The lines of the source before the part or segment; counting them reads the source."""
        return line_base(self.source, self.part) if self.lines is None else self.lines

    def place(self, lines: npt.NDArray[np.int64]) -> str:
        """Some records by their lines, in words."""
        name = self.source.name
        if not len(lines):
            return name
        first, last = (self.lines_before + 1 + int(line) for line in (lines[0], lines[-1]))
        unit = ", document number " if self.source.memory is not None else ":"
        return f"{name}{unit}{first}" + (f"-{last}" if last > first else "")


class PartEncoder:
    """Encodes parts, one after the other. Each process has one.

    ``attend`` is called between two batches.
    """

    def __init__(self, job: Job, counters: Counters, attend: Callable[[], None]) -> None:
        self.job = job
        options = job.options
        self._counters = counters
        self._attend = attend
        self._choose: Chooser | None = None
        if job.types is not None:
            from tokpack.encoding.choose import Chooser

            self._choose = Chooser(options, job.types["chosen"])
        self._maker: Maker
        if job.chat is not None:
            from tokpack.encoding.conversations import ConversationMaker

            self._maker = ConversationMaker(job.chat, options, job.setup, counters.limits)
        else:
            kind = SentenceMaker if options.split_sentences else TextMaker
            self._maker = kind(options, job.setup)
        self._is_checked = False  # the self-check of documents that only a worker sees
        self._columns = tuple(options.kept.values())

    def encode_part(self, piece: Piece, tracks: Tracks, limit: int | None) -> None:
        """Encode the part of a piece, at most ``limit`` records of it.

        Raises RecordError for a bad record that the options do not allow, InputError for an input
        that is missing or changes while it is read, OutputError if the piece cannot be written,
        WorkerError if there is not enough memory.
        """
        job = self.job
        part = job.parts[piece.number]
        for row, number in enumerate(part.sources):
            source = job.sources[number]
            to_read = Part(number, "whole", 0, 0, 0) if part.kind == "files" else part
            sums: list[str] = []
            reading = read(
                source,
                to_read,
                job.options.keys,
                columns=job.columns_read,
                max_document_bytes=job.options.max_document_bytes,
                # Not for an object, which would have to be fetched completely, and not with a
                # limit, which may leave part of the file unread.
                tell_sums=sums.append if source.is_on_disk and limit is None else None,
            )
            origin = _Origin(source, None, to_read)
            with closing(reading) as batches:
                first = first_batches(batches, limit)
                self._encode(piece, piece.counts[row], tracks, first, origin)
            if limit is not None:
                limit -= int(piece.counts[row, 0])
            elif sums:
                piece.blocks[row] = sums[0]
            elif source.is_on_disk and not job.is_of_frames(piece.number):
                piece.blocks[row] = job.block_checksums(piece.number, number)
            source.check_unchanged()
            if limit is not None and limit <= 0:
                return

    def encode_blocks(
        self,
        piece: Piece,
        tracks: Tracks,
        blocks: Iterable[LineBlock],
        line: int,
        limit: int | None,
    ) -> None:
        """Encode a segment of a stream with ``line`` lines before it. Raises as ``encode_part``."""
        options = self.job.options
        source = self.job.sources[self.job.parts[piece.number].source]
        most, columns = options.max_document_bytes, self.job.columns_read
        batches = parse(source, options.keys, blocks, most, columns)
        origin = _Origin(source, line, self.job.parts[piece.number])
        self._encode(piece, piece.counts[0], tracks, first_batches(batches, limit), origin)

    def encode_documents(self, piece: Piece, tracks: Tracks, task: EncodeDocuments) -> None:
        """Encode a segment of an iterable. Raises as ``encode_part``."""
        part = self.job.parts[piece.number]
        origin = _Origin(self.job.sources[part.source], task.line, part)
        piece.blocks[0] = task.checksum
        self._encode(piece, piece.counts[0], tracks, task.batches, origin)

    def _encode(
        self,
        piece: Piece,
        counts: npt.NDArray[np.int64],
        tracks: Tracks,
        batches: Iterable[DocumentBatch],
        origin: _Origin,
    ) -> None:
        """Encode and count the batches of one source of a piece."""
        # The run's self-check does not see documents from a pipe, long ones, or those that ``map``
        # and templates make. They are checked here, if longer than ``over``.
        is_seen = self._maker.is_seen and not (origin.source.is_pipe and not piece.segment)
        if self._choose is not None:
            batches = self._choose(batches, origin.source.name, origin.place)
            is_seen = False
        self._counters.place(piece.number, origin.part.source, origin.lines)
        batches, over = self._maker.documents(batches), BESIDE_BYTES if is_seen else 0
        try:
            self._counters.start()
            for batch in self._checked(batches, over):
                self._counters.spent(_READ)
                self._encode_batch(counts, tracks, batch, origin)
                self._counters.spent(_WRITE)
                self._attend()
                self._counters.start()
        except MemoryError as error:
            raise no_memory(self.job.describe(piece.number), error) from error

    def _encode_batch(
        self, counts: npt.NDArray[np.int64], tracks: Tracks, batch: DocumentBatch, origin: _Origin
    ) -> None:
        batch, every = self._encodable(batch, origin)
        left_out = [record for encoded in every for record in encoded.left_out]
        if batch.bad or left_out:
            lines = np.frombuffer(lines_of(batch.bad, left_out), np.uint8)
            tracks.write(len(tracks.sizes) - 1, lines)
        self._counters.spent(_ENCODE)
        of_batch = (
            *(batch.records, batch.lines, len(batch.bad), batch.bytes_read, batch.text_bytes),
            *(batch.counts.get(name, 0) for name in (*OF_RECORDS, *SAID_COLUMNS)),
        )
        counts[: len(of_batch)] += of_batch
        count = tokens = 0
        for index, encoded in enumerate(every):
            arrays, of_key = self._tokens(encoded)
            counts[self.job.columns_of_key(index)] += of_key
            count += 0 if index else of_key[0]
            tokens += of_key[2]
            for track, values in enumerate(arrays, index * len(arrays)):
                tracks.write(track, values)
        self._counters.add(batch, count, tokens)

    def _checked(self, batches: Iterable[DocumentBatch], over: int) -> Iterator[DocumentBatch]:
        """The batches; the first with a document of more than ``over`` bytes is self-checked."""
        for batch in batches:
            documents = batch.documents[self.job.options.keys[0]]
            if not self._is_checked and len(documents) and len(documents.data) > over:
                begins, ends = documents.spans.T
                if (ends - begins).max() > over:
                    self._maker.check(documents)
                    self._is_checked = True
            yield batch

    def _encodable(
        self, batch: DocumentBatch, origin: _Origin
    ) -> tuple[DocumentBatch, list[EncodedDocuments]]:
        """The batch without records that the tokenizer's library cannot encode, and its ids by key.

        If a document cannot be encoded, its record is removed from all keys, and the smaller batch
        is encoded again. RecordError for the first record that ends the run.
        """
        every = []
        wrong: list[tuple[int, str, str]] = []  # line, reason, advice
        for key in self.job.options.keys:
            documents = batch.documents[key]
            try:
                encoded = self._maker.encode(documents)
                every.append(encoded)
                if len(encoded.special) and self.job.options.special_tokens == "error":
                    wrong.append((int(documents.lines[encoded.special[0]]), _SPECIAL, ""))
            except UnencodableError as error:
                wrong.append((int(documents.lines[error.document]), str(error), ""))
            except DocumentsError as error:
                return self._encodable(without_records(batch, documents, error.reasons), origin)
        if batch.bad and self.job.options.on_error == "fail":
            wrong.append((batch.bad[0].line, batch.bad[0].reason, advice_for(batch)))
        if wrong:
            line, reason, advice = min(wrong)
            number = origin.lines_before + line + 1
            raise RecordError(origin.source.name, number, reason, advice, origin.source.unit)
        for encoded in every:
            batch.counts |= encoded.counts
        return batch, every

    def _tokens(
        self, made: EncodedDocuments
    ) -> tuple[tuple[npt.NDArray[Any], ...], tuple[int, ...]]:
        """The arrays for the tracks of one key, in track order, and the counts of its columns."""
        documents, ids, lengths, sequences = made[:4]
        with_tokens = int(np.count_nonzero(sequences))
        kept = int(np.count_nonzero(lengths))
        if kept != len(lengths):
            lengths = lengths[lengths > 0]
        tracks: list[npt.NDArray[Any]] = [ids, lengths]
        leaves_out = self.job.options.empty == "skip" and with_tokens != len(sequences)
        if self.job.has_document_track:
            tracks.append(sequences[sequences > 0] if leaves_out else sequences)
        kinds: list[int] = []
        if self.job.options.has_table:
            chosen = sequences > 0 if leaves_out else None
            with_rows = documents if chosen is None else documents.select(chosen)
            tokens = tokens_of_each(lengths, sequences)
            tracks.append(rows_of(with_rows, ids, tokens if chosen is None else tokens[chosen]))
            tracks.append(documents.lines[:0] if chosen is None else documents.lines[~chosen])
        if self._columns:
            columns = [with_rows.columns.get(name) for name in self._columns]
            values, kinds = pack(columns, len(with_rows))
            tracks.append(np.frombuffer(values, np.uint8))
        tracks += made.values
        key_bytes = int((documents.spans[:, 1] - documents.spans[:, 0]).sum())
        empty = len(sequences) - with_tokens
        counts = (with_tokens, kept, len(ids), empty, len(made.special), key_bytes, *kinds)
        return tuple(tracks), counts


def no_memory(what: str, error: MemoryError) -> WorkerError:
    """The error if there is not enough memory for a part, which is given in words."""
    detail = f" ({error})" if str(error) else ""
    return WorkerError(
        f"a worker had not enough memory for {what}{detail}: use fewer {option('workers')}, or "
        f"allow only shorter documents ({option('max_document_bytes')}); run again to continue"
    )
