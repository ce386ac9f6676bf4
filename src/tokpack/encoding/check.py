"""The self-check of a run: its first documents are encoded by the core and by the library."""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

from tokpack.encoding.part import BESIDE_BYTES, no_memory
from tokpack.errors import InputError, TokenizerError
from tokpack.sources import read
from tokpack.tokenizers import self_check
from tokpack.tokenizers.check import first_documents

if TYPE_CHECKING:
    from tokpack.encoding.piece import Job
    from tokpack.sources import Documents
    from tokpack.tokenizers import Tokenizer

_log = logging.getLogger(__name__)
_TIMED_BYTES = 1 << 17  # of documents that a slow tokenizer is timed on
_BATCHES = 8  # how many batches are searched for one that has documents


def check_first_documents(job: Job) -> None:
    """Raise TokenizerError where the core does not encode as the library does; WorkerError.

    It warns of a tokenizer that is not native, with its speed. It runs beside the workers; no run
    is committed before its end.
    """
    try:
        documents = _first_documents(job)
        tokenizer, mode = job.setup.tokenizer, job.options.special_tokens
        if not tokenizer.native:
            _warn_slow(tokenizer, documents, mode)
        elif documents is not None:
            self_check(tokenizer, documents.data, documents.spans, special_tokens=mode)
    except MemoryError as error:
        raise no_memory("the self-check of the first documents", error) from error


def _first_documents(job: Job) -> Documents | None:
    """The first batch that has documents.

    Two kinds of documents are left to the encoder: those from a pipe, which can be read only once,
    and those over BESIDE_BYTES, which would be in memory twice.
    """
    part = next((part for part in job.parts if not job.sources[part.source].is_pipe), None)
    if (
        part is None or job.types is not None or job.chat is not None
    ):  # what is encoded is not yet known
        return None
    key = job.options.keys[0]
    reading = read(
        job.sources[part.source],
        part,
        job.options.keys,
        max_document_bytes=min(job.options.max_document_bytes, BESIDE_BYTES),
    )
    # The worker that encodes this part says which is wrong, with its line.
    with suppress(InputError), closing(reading) as batches:
        for batch in islice(batches, _BATCHES):
            documents = batch.documents[key]
            if len(documents):
                return documents
    return None


def _warn_slow(tokenizer: Tokenizer, documents: Documents | None, mode: str) -> None:
    """Say that a tokenizer is slow, and how slow where there are documents enough."""
    speed = None if documents is None else _speed(tokenizer, documents, mode)
    _log.warning(
        "the tokenizer %s takes the slow path%s, not the native one: %s",
        tokenizer.name,
        f" (about {speed:.1f} MB/s a worker)" if speed else "",
        tokenizer.why_not_native,
    )


def _speed(tokenizer: Tokenizer, documents: Documents, mode: str) -> float | None:
    """MB/s over the first documents; None where they are too few to tell."""
    sample = first_documents(documents.data, documents.spans, _TIMED_BYTES)
    size = int((sample[:, 1] - sample[:, 0]).sum())
    if size < _TIMED_BYTES // 8:
        return None
    with suppress(TokenizerError):  # of a document that cannot be encoded the encoder says more
        encoder = tokenizer.encoder(dtype="int32", special_tokens=mode)
        began = time.perf_counter()
        encoder.encode(documents.data, sample)
        return size / 1e6 / (time.perf_counter() - began)
    return None
