"""The self-check of a run: its first documents are encoded by the core and by the library."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

from tokpack.encoding.part import BESIDE_BYTES, no_memory
from tokpack.errors import InputError
from tokpack.sources import read
from tokpack.tokenizers import self_check

if TYPE_CHECKING:
    from tokpack.encoding.piece import Job

_BATCHES = 8  # how many batches are searched for one that has documents


def check_first_documents(job: Job) -> None:
    """Raise TokenizerError where the core does not encode as the library does; WorkerError.

    It runs beside the workers; no run is committed before its end. Two kinds of documents it leaves
    to the encoder: those from a pipe, which can be read only once, and those over BESIDE_BYTES,
    which would be in memory twice.
    """
    part = next((part for part in job.parts if not job.sources[part.source].is_pipe), None)
    if (
        part is None or job.types is not None or job.chat is not None
    ):  # what is encoded is not yet known
        return
    key = job.options.keys[0]
    reading = read(
        job.sources[part.source],
        part,
        job.options.keys,
        max_document_bytes=min(job.options.max_document_bytes, BESIDE_BYTES),
    )
    try:
        # The worker that encodes this part says which, with its line.
        with suppress(InputError), closing(reading) as batches:
            for batch in islice(batches, _BATCHES):
                documents = batch.documents[key]
                if len(documents):
                    mode = job.options.special_tokens
                    for one in job.setups:
                        spans = documents.spans
                        self_check(one.tokenizer, documents.data, spans, special_tokens=mode)
                    return
    except MemoryError as error:
        raise no_memory("the self-check of the first documents", error) from error
