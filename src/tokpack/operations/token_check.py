"""What is wrong with the tokens of a dataset whose index is right: looked for chunk by chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.indexed.format import bin_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.indexed.shard import Shard

_DOCUMENTS = 1 << 17  # document ends looked up at a time


class TokenCheck:
    """Look at a chunk of the .bin: are ids in the vocabulary, and documents in their frame?

    Each document that has tokens is to begin with the first ids of ``frame``, and to end with the
    others.
    """

    def __init__(
        self, shard: Shard, vocab_size: int | None, frame: tuple[list[int], list[int]]
    ) -> None:
        self.index = shard.index
        self.path = bin_path(shard.prefix)
        self.bin_bytes = shard.tokens.nbytes
        self.before, self.after = frame
        self.vocab_size = vocab_size
        dtype = shard.dtype
        self._unsigned = np.dtype(f"<u{dtype.itemsize}")  # where a negative id is a large one
        self._limit = vocab_size
        if vocab_size is None or vocab_size > np.iinfo(dtype).max:
            # Every id that is not negative is in so large a vocabulary.
            self._limit = None
            if vocab_size is not None and dtype.kind == "i":
                self._limit = int(np.iinfo(dtype).max) + 1

    def __call__(self, begin: int, block: npt.NDArray[np.uint8]) -> str | None:
        """The first fault of the chunk at byte ``begin``, or None."""
        faults = (self._stranger(begin, block), *self._unframed(begin, block))
        first = min((fault for fault in faults if fault is not None), default=None)
        return None if first is None else self._explain(*first, begin, block)

    def _stranger(self, begin: int, block: npt.NDArray[np.uint8]) -> tuple[int, str] | None:
        """Byte of the first token that is not in the vocabulary, and what is expected there."""
        tokens: npt.NDArray[Any] = block.view(self._unsigned)
        if self._limit is None or not len(tokens) or int(tokens.max()) < self._limit:
            return None
        at = begin + int(np.argmax(tokens >= self._limit)) * self._unsigned.itemsize
        return at, f"expected an id of the vocabulary, which has {self.vocab_size}"

    def _unframed(
        self, begin: int, block: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[int, str] | None]:
        """Bytes of the first tokens that are not as the frame has them, and what is expected."""
        for place, expected in enumerate(self.before):
            what = f"expected {expected} as token {place} of a document"
            yield self._other(begin, block, expected, place, what)
        for place, expected in enumerate(reversed(self.after), 1):
            where = ", the EOD, at the end" if place == 1 else f" as token -{place}"
            what = f"expected {expected}{where} of a document"
            yield self._other(begin, block, expected, -place, what)

    def _other(
        self, begin: int, block: npt.NDArray[np.uint8], expected: int, place: int, what: str
    ) -> tuple[int, str] | None:
        """Byte of the first document's token ``place`` in this chunk that is not ``expected``.

        A place below 0 counts from the end of the document.
        """
        index, itemsize = self.index, self.index.header.dtype.itemsize
        tokens = block.view(index.header.dtype)
        numbers = range(index.header.entries - 1)
        # The documents whose token at ``place``, counted from their begin or end, is in this chunk.
        shift = place * itemsize
        bound = self._end_of if place < 0 else self._begin_of
        first = bisect_left(numbers, begin - shift, key=bound)
        last = bisect_left(numbers, begin + len(block) - shift, lo=first, key=bound)
        for low in range(first, last, _DOCUMENTS):
            bounds = self._bytes_of(index.doc_idx[low : min(low + _DOCUMENTS, last) + 1])
            filled = bounds[1:] > bounds[:-1]  # a document without tokens has no frame
            at = ((bounds[1:] if place < 0 else bounds[:-1])[filled] + shift - begin) // itemsize
            wrong = np.flatnonzero(tokens[at] != expected)
            if wrong.size:
                return begin + int(at[wrong[0]]) * itemsize, what
        return None

    def _end_of(self, document: int) -> int:
        return self._begin_of(document + 1)

    def _begin_of(self, document: int) -> int:
        sequence: int = self.index.doc_idx.item(document)
        if sequence == self.index.header.sequences:
            return self.bin_bytes
        return int(self.index.pointers.item(sequence))

    def _bytes_of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where sequences begin; the number after the last is the end of the .bin."""
        count = self.index.header.sequences
        begins = self.index.pointers[np.minimum(sequences, count - 1)]
        return np.where(sequences == count, self.bin_bytes, begins)

    def _explain(self, at: int, expected: str, begin: int, block: npt.NDArray[np.uint8]) -> str:
        index = self.index
        sequence = bisect_right(index.pointers, at) - 1
        document = bisect_right(index.doc_idx, sequence) - 1
        first = index.pointers.item(index.doc_idx.item(document))
        dtype = index.header.dtype
        token = (at - first) // dtype.itemsize
        token_id = int(block.view(dtype)[(at - begin) // dtype.itemsize])
        return (
            f"{self.path}: byte {at}, document {document}, token {token}: id is {token_id}, "
            f"{expected}"
        )
