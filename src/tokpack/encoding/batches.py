"""Batches of documents that are cut short, lose some of their records, or end a run."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from tokpack.errors import option
from tokpack.sources import BadRecord, DocumentBatch
from tokpack.sources.base import RAW_BYTES_KEPT
from tokpack.sources.rows import take

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tokpack.sources import Documents

_CONVERSATIONS = frozenset(["messages", "conversations", "conversation"])  # keys of them
_LIST = re.compile(rb'"([^"\\]+)"\s*:\s*\[\s*\{')  # a key with objects under it
_OPEN = (b"{", b"[", b",")  # where a line ends inside of a value
_SKIP = f"{option('on_error', 'skip')} puts bad records aside and goes on"


def first_batches(batches: Iterable[DocumentBatch], limit: int | None) -> Iterator[DocumentBatch]:
    """The batches, until there were ``limit`` records."""
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
    """The batch with some documents, by number, as bad records.

    ``documents`` are those of the key at fault; those of all keys are of the same records.
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
    """What to do about the first bad record of a batch."""
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
