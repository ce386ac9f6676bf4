"""The self-check of a run: its first documents are encoded by the core and by the library."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tokpack.encoding.part import BESIDE_BYTES, no_memory
from tokpack.errors import InputError
from tokpack.sources import read
from tokpack.tokenizers import self_check

if TYPE_CHECKING:
    from tokpack.encoding.piece import Job

_BATCHES = 8  # how many batches are searched for one that has documents


class SelfCheck:
    """Checks in a thread of the run, while workers encode; no run is committed before its end.

    It leaves two kinds of documents to the encoder: those from a pipe, which can be read only once,
    and those over BESIDE_BYTES, which would be in memory twice.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="tokpack-check", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def poll(self) -> None:
        """Raise the TokenizerError of a check that failed."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for the end of the check, and raise its error."""
        self.stop()
        self.poll()

    def stop(self) -> None:
        """Wait until the check is over: Python must not exit while a thread is in native code."""
        if self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            self._run()
        except InputError:
            pass  # the worker that encodes this part reports the error, with its line
        except MemoryError as error:
            self._error = no_memory("the self-check of the first documents", error)
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        job = self._job
        part = next((p for p in job.parts if not job.sources[p.source].is_pipe), None)
        if part is None:
            return
        key = job.options.keys[0]
        batches = read(
            job.sources[part.source],
            part,
            job.options.keys,
            max_document_bytes=min(job.options.max_document_bytes, BESIDE_BYTES),
        )
        for _, batch in zip(range(_BATCHES), batches, strict=False):
            documents = batch.documents[key]
            if len(documents):
                mode = job.options.special_tokens
                self_check(job.tokenizer, documents.data, documents.spans, special_tokens=mode)
                return
