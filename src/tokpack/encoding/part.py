"""Encode a part, or a segment of a stream: a pure function of (bytes, tokenizer, options)."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.counts import OF_RECORDS
from tokpack.encoding.conversations import (
    OTHER_OF_PAIR,
    ConversationMaker,
    Conversations,
    fit,
    said,
)
from tokpack.encoding.kept import pack
from tokpack.encoding.piece import SAID_COLUMNS, SOURCE_COLUMNS
from tokpack.encoding.setup import join_sentences, make_transform
from tokpack.encoding.table import lines_of, rows_of, tokens_of_each
from tokpack.errors import RecordError, WorkerError, option
from tokpack.sources import (
    RAW_BYTES_KEPT,
    BadRecord,
    DocumentBatch,
    Part,
    block_checksums,
    line_base,
    parse,
    read,
)
from tokpack.sources.rows import take
from tokpack.tokenizers import (
    DocumentsError,
    Frame,
    MarkedIds,
    MarkingEncoder,
    UnencodableError,
    self_check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.encoding.choose import Chooser
    from tokpack.encoding.coordinator import EncodeDocuments
    from tokpack.encoding.piece import Job, Piece
    from tokpack.encoding.worker import Counters, Tracks
    from tokpack.sources import Documents, LineBlock, Source
    from tokpack.tokenizers import Encoded


_CONVERSATIONS = frozenset(["messages", "conversations", "conversation"])  # their usual keys
_LIST = re.compile(rb'"([^"\\]+)"\s*:\s*\[\s*\{')  # a key with objects under it
_OPEN = (b"{", b"[", b",")  # the end of a line that stops inside of a value
_SKIP = f"{option('on_error', 'skip')} puts bad records aside and goes on"


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
    read = batch.rows if batch.rows is not None else next(iter(batch.documents.values()))
    lines = np.concatenate([read.lines, [record.line for record in batch.bad]])
    first = np.zeros(len(lines), np.bool_)  # a line may have several records
    first[np.argsort(lines, kind="stable")[:limit]] = True
    good, is_first = first[: len(read.lines)], first[len(read.lines) :].tolist()
    documents = {key: docs.select(good) for key, docs in batch.documents.items()}
    rows = None if batch.rows is None else take(batch.rows, good)
    bad = list(compress(batch.bad, is_first))
    return replace(batch, documents=documents, bad=bad, records=limit, rows=rows)


def without_records(
    batch: DocumentBatch, documents: Documents, reasons: dict[int, str]
) -> DocumentBatch:
    """The batch with some records turned into bad ones; ``reasons`` are by number of document.

    ``documents`` are those of the key at fault. The documents of the other keys are of the same
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


def line_of(documents: Documents, index: int, per_document: npt.NDArray[np.int64] | None) -> int:
    """The line of the document that the encoder calls ``index``."""
    return int(documents.lines[number_of(index, per_document)])


def number_of(index: int, per_document: npt.NDArray[np.int64] | None) -> int:
    """The number of the document that the encoder calls ``index``."""
    if per_document is None:
        return index
    return int(np.searchsorted(np.cumsum(per_document), index, side="right"))


def advice_for(batch: DocumentBatch) -> str:
    """The advice about the first bad record of a batch."""
    first = batch.bad[0]
    keys = first.keys_there
    if first.reason.startswith("malformed JSON") and first.raw.rstrip().endswith(_OPEN):
        return f"{option('input_format', 'json')} reads values over several lines, or {_SKIP}"
    if not keys:
        return _SKIP
    advice = f"{keys}: name one with {option('keys')}"
    lists = _LIST.findall(first.raw)
    if lists and batch.records == 1:
        asked = option("json_path", lists[0].decode("utf-8", "replace"))
        advice = f"{advice}, or the list that has the records with {asked}"
    if not _CONVERSATIONS.isdisjoint(first.keys or ()):
        advice = f"{keys}: conversations are encoded with {option('chat', True)}"
    # If no record so far has the key, skipping is no help: it would skip them all.
    others_have_it = any(len(documents) for documents in batch.documents.values())
    return f"{advice}, or {_SKIP}" if others_have_it else advice


BESIDE_BYTES = 1 << 24  # a longer document is not in the self-check beside the first parts
_SAID = slice(SOURCE_COLUMNS.index(SAID_COLUMNS[0]), SOURCE_COLUMNS.index(SAID_COLUMNS[-1]) + 1)
_READ, _ENCODE, _WRITE = range(3)
_SPECIAL = (
    "the document contains a special token of the tokenizer "
    f"({option('special_tokens')} says what becomes of it: text, encode, auto or error)"
)


class _Text(NamedTuple):
    """Ids of a batch's documents; or of their sentences, with the number of them in each."""

    encoded: Encoded
    per_document: npt.NDArray[np.int64] | None


class _Origin(NamedTuple):
    """The origin of a batch: its source, its part, and the number of lines before that.

    ``lines`` is None if they have not been counted; then ``lines_before`` counts them.
    """

    source: Source
    lines: int | None
    part: Part

    @property
    def lines_before(self) -> int:
        """Lines of the source before the part or the segment; counting them reads the source."""
        return line_base(self.source, self.part) if self.lines is None else self.lines

    def place(self, lines: npt.NDArray[np.int64]) -> str:
        """The records on some lines, in words."""
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
        self._transform = make_transform(options)
        self._choose: Chooser | None = None
        if job.types is not None:
            from tokpack.encoding.choose import Chooser

            self._choose = Chooser(options, job.types["chosen"])
        self._conversations: ConversationMaker | None = None
        if job.chat is not None:
            key, kept = options.keys[0], tuple(options.kept.values())
            name, limits = job.setup.tokenizer.name, counters.limits
            self._conversations = ConversationMaker(job.chat, name, key, kept, limits)
        self._is_checked = False  # the self-check of documents that only a worker gets to see
        self._sentences = options.split_sentences
        self._columns = tuple(options.kept.values())
        setup = job.setup
        self._encoder: Any = (
            MarkingEncoder(setup.tokenizer, dtype=setup.dtype, frame=setup.frame)
            if job.chat is not None
            else setup.tokenizer.encoder(
                dtype=setup.dtype,
                special_tokens=options.special_tokens,
                frame=Frame() if self._sentences else setup.frame,
            )
        )

    def encode_part(self, piece: Piece, tracks: Tracks, limit: int | None) -> None:
        """Encode the part of a piece, at most ``limit`` records of it.

        Raises RecordError for a bad record that the options do not allow, InputError for an input
        that is missing or changes while it is read, OutputError if the piece cannot be written,
        WorkerError if there is not enough memory.
        """
        job = self.job
        part = job.parts[piece.number]
        whole = part.kind in ("whole", "files")
        for row, number in enumerate(job.sources_of(piece.number)):
            source = job.sources[number]
            to_read = Part(number, "whole", 0, 0, 0) if whole else part
            sums: list[str] = []
            reading = read(
                source,
                to_read,
                job.options.keys,
                columns=job.columns_read,
                max_document_bytes=job.options.max_document_bytes,
                # Not of an object, which would have to be fetched as a whole, and not with a limit,
                # which may leave some of the file unread.
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
                piece.blocks[row] = (
                    block_checksums(source, 0, source.size)
                    if whole
                    else job.block_checksums(piece.number)
                )
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
        # The self-check of the run does not see documents from a pipe, nor long ones, nor those
        # that ``map`` and templates make: they are checked here. ``over`` is the size beyond which.
        over = 0 if origin.source.is_pipe and not piece.segment else BESIDE_BYTES
        if self._choose is not None:
            batches = self._choose(batches, origin.source.name, origin.place)
            over = 0
        if self._conversations is not None:
            self._counters.place(piece.number, origin.part.source, origin.lines)
            batches, over = self._conversations(batches), 0
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
        batch, texts = self._encodable(batch, origin)
        unfit: list[BadRecord] = []
        if self.job.chat is not None:
            batch, texts, unfit = self._fitted(batch, texts[0])
            documents, encoded = next(iter(batch.documents.values())), texts[0].encoded
            assert isinstance(documents, Conversations)
            assert isinstance(encoded, MarkedIds)
            counts[_SAID] += said(documents, encoded, self.job.setup.frame)
        if batch.bad or unfit:
            lines = np.frombuffer(lines_of(batch.bad, unfit), np.uint8)
            tracks.write(len(tracks.sizes) - 1, lines)
        self._counters.spent(_ENCODE)
        of_batch = (
            *(batch.records, batch.lines, len(batch.bad), batch.bytes_read, batch.text_bytes),
            *(batch.counts.get(name, 0) for name in OF_RECORDS),
        )
        counts[: len(of_batch)] += of_batch
        count = tokens = 0
        job = self.job
        for index, key in enumerate(job.options.keys):
            arrays, of_key = self._tokens(batch.documents[key], texts[index], job.setup.frame)
            counts[job.columns_of_key(index)] += of_key
            count += 0 if index else of_key[0]
            tokens += of_key[2]
            for track, values in enumerate(arrays, index * len(arrays)):
                tracks.write(track, values)
        self._counters.add(batch, count, tokens)

    def _checked(self, batches: Iterable[DocumentBatch], over: int) -> Iterator[DocumentBatch]:
        """The batches; the first with a document of more than ``over`` bytes is self-checked."""
        job = self.job
        for batch in batches:
            documents = batch.documents[job.options.keys[0]]
            if not self._is_checked and len(documents) and len(documents.data) > over:
                begins, ends = documents.spans.T
                if (ends - begins).max() > over:
                    mode = job.options.special_tokens
                    if isinstance(documents, Conversations):
                        documents.check(self._encoder)
                    else:
                        spans, tokenizer = documents.spans, job.setup.tokenizer
                        self_check(tokenizer, documents.data, spans, special_tokens=mode)
                    self._is_checked = True
            yield batch

    def _encodable(
        self, batch: DocumentBatch, origin: _Origin
    ) -> tuple[DocumentBatch, list[_Text]]:
        """The batch without records that the tokenizer's library cannot encode, and its ids.

        A record goes from all keys if one of its documents cannot be encoded. So after one is
        found, the smaller batch is encoded again. RecordError for the first record that ends the
        run.
        """
        texts = []
        wrong: list[tuple[int, str, str]] = []  # line, reason, advice
        for key in self.job.options.keys:
            documents = batch.documents[key]
            data, spans, per_document = documents.data, documents.spans, None
            if self._transform is not None:
                data, spans, per_document = self._transform(data, spans)
            try:
                if isinstance(documents, Conversations):
                    encoded = documents.encode(self._encoder)
                else:
                    encoded = self._encoder.encode(data, spans)
                texts.append(_Text(encoded, per_document))
                if len(encoded.special) and self.job.options.special_tokens == "error":
                    line = line_of(documents, int(encoded.special[0]), per_document)
                    wrong.append((line, _SPECIAL, ""))
            except UnencodableError as error:
                wrong.append((line_of(documents, error.document, per_document), str(error), ""))
            except DocumentsError as error:
                reasons = {number_of(i, per_document): why for i, why in error.reasons.items()}
                if (
                    self.job.chat is not None and self.job.chat["pairs"]
                ):  # an answer is of no use without the other one
                    others = {number ^ 1: OTHER_OF_PAIR for number in reasons}
                    reasons = {**others, **reasons}
                return self._encodable(without_records(batch, documents, reasons), origin)
        if batch.bad and self.job.options.on_error == "fail":
            wrong.append((batch.bad[0].line, batch.bad[0].reason, advice_for(batch)))
        if wrong:
            line, reason, advice = min(wrong)
            before = origin.lines_before
            place = origin.source.name, before + line + 1
            raise RecordError(*place, reason, advice, origin.source.unit)
        return batch, texts

    def _fitted(
        self, batch: DocumentBatch, text: _Text
    ) -> tuple[DocumentBatch, list[_Text], list[BadRecord]]:
        """The batch without conversations that are too long or have no trained token, its ids, and
        the conversations that were left out.
        """
        chat, (key, documents) = self.job.chat, next(iter(batch.documents.items()))
        assert chat is not None
        assert isinstance(documents, Conversations)
        assert isinstance(text.encoded, MarkedIds)
        fitted = fit(
            documents,
            text.encoded,
            max_length=chat["max_length"],
            truncate=chat["truncate"],
            in_pairs=chat["pairs"] is not None,
            frame=self.job.setup.frame,
        )
        batch = replace(
            batch,
            documents={key: fitted.documents},
            counts=batch.counts | {"mapped_out": len(fitted.unfit), "truncated": fitted.truncated},
        )
        return batch, [_Text(fitted.encoded, None)], fitted.unfit

    def _tokens(
        self, documents: Documents, text: _Text, frame: Frame
    ) -> tuple[tuple[npt.NDArray[Any], ...], tuple[int, ...]]:
        """The arrays for the tracks of one key, in their order, and the counts of its columns."""
        encoded, per_document = text
        ids, lengths = encoded.ids, encoded.lengths
        sequences = lengths  # stands for the sequences of each document: only zero or not matters
        if self._sentences and per_document is not None:
            ids, lengths, sequences = join_sentences(ids, lengths, per_document, frame)
        elif self.job.has_document_track:
            sequences = (lengths > 0).astype(np.int32)
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
            tokens = tokens_of_each(encoded.lengths, lengths, sequences, self._sentences)
            tracks.append(rows_of(with_rows, ids, tokens if chosen is None else tokens[chosen]))
            tracks.append(documents.lines[:0] if chosen is None else documents.lines[~chosen])
        if self._columns:
            columns = [with_rows.columns.get(name) for name in self._columns]
            values, kinds = pack(columns, len(with_rows))
            tracks.append(np.frombuffer(values, np.uint8))
        if isinstance(documents, Conversations) and isinstance(encoded, MarkedIds):
            tracks += documents.tracks(encoded, weighted=self.job.options.weight_key is not None)
        key_bytes = int((documents.spans[:, 1] - documents.spans[:, 0]).sum())
        empty = len(sequences) - with_tokens
        counts = (
            with_tokens,
            kept,
            len(ids),
            empty,
            len(encoded.special),
            key_bytes,
            *kinds,
        )
        return tuple(tracks), counts


def no_memory(what: str, error: MemoryError) -> WorkerError:
    """The error if there was not enough memory for a part, given in words."""
    detail = f" ({error})" if str(error) else ""
    return WorkerError(
        f"a worker had not enough memory for {what}{detail}: use fewer {option('workers')}, or "
        f"allow only shorter documents ({option('max_document_bytes')}); run again to continue"
    )
