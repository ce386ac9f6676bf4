"""A dataset with its manifest, as documents: the reader itself knows sequences only."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, InputError, TokpackError
from tokpack.indexed import (
    Manifest,
    MMapIndexedDataset,
    Origins,
    manifest_path,
    trace_path,
)
from tokpack.indexed.virtual import VirtualIndexedDataset, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 20  # documents


@dataclass(frozen=True)
class Share:
    """What one input gave to a dataset, as its manifest says."""

    name: str
    documents: int
    tokens: int
    text_bytes: int

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text for each token; 0 where there is none."""
        return self.text_bytes / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, eq=False)
class Opened:
    """A dataset, and its manifest where it has one that belongs to it.

    ``doubt`` says why a manifest that is there is not used, or is "".
    """

    prefix: str
    dataset: MMapIndexedDataset
    manifest: Manifest | None
    doubt: str

    @cached_property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(len(part.tokens) for part in parts_of(self.dataset))

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.dataset.doc_idx) - 1

    def document(self, number: int) -> npt.NDArray[Any]:
        """Tokens of document ``number``, in [0, documents): its sequences in a row, not copied."""
        bounds = self.dataset.doc_idx
        first, last = bounds.item(number), bounds.item(number + 1)
        if not 0 <= first <= last <= len(self.dataset):
            raise FormatError(
                f"{self.prefix}.idx: document {number} is sequences {first} to {last} "
                f"of {len(self.dataset)}"
            )
        if last - first == 1:
            return self.dataset[first]
        sequences = self.dataset[first:last]
        return np.concatenate(sequences) if sequences else np.empty(0, self.dataset.dtype)

    def sequences(self, number: int) -> int:
        """Number of sequences of a document."""
        bounds = self.dataset.doc_idx
        return bounds.item(number + 1) - bounds.item(number)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, int64 [documents]; raises FormatError for a broken index."""
        parts = list(self.length_chunks())
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def length_chunks(self) -> Iterator[npt.NDArray[np.int64]]:
        """The same, some documents at a time, in memory that does not grow with the index."""
        self.dataset.validate()
        for part in parts_of(self.dataset):
            bounds, pointers, count = part.doc_idx, part.pointers, len(part)
            end = len(part.tokens) * part.dtype.itemsize
            for begin in range(0, len(bounds) - 1, _CHUNK):
                firsts = np.array(bounds[begin : begin + _CHUNK + 1])
                places = np.full(len(firsts), end, np.int64)
                places[firsts < count] = pointers[firsts[firsts < count]]
                yield np.diff(places) // part.dtype.itemsize
                part.release()

    @cached_property
    def shares(self) -> list[Share]:
        """What each input gave, in their order; [] without a manifest."""
        inputs = self.manifest.inputs if self.manifest else []
        return [
            Share(
                str(entry.get("name", "?")),
                *(_count(entry.get(key)) for key in ("documents", "tokens", "text_bytes")),
            )
            for entry in inputs
            if isinstance(entry, dict)
        ]

    def source(self, number: int) -> tuple[str, int | None]:
        """Name of the input that document ``number`` came from, and its line there, from 1.

        The line takes a trace, the name a manifest at least; "" and None where they are not known.
        """
        if self._origins is not None and number < len(self._origins):
            origin = self._origins[number]
            return origin.source, origin.line
        return self._named_source(number), None

    @cached_property
    def _origins(self) -> Origins | None:
        if self.manifest is None or not os.path.exists(trace_path(self.prefix)):
            return None
        try:
            return Origins(self.prefix)
        except TokpackError:  # a trace of another dataset, which `tokpack trace` explains
            return None

    def _named_source(self, number: int) -> str:
        before = 0
        if sum(share.documents for share in self.shares) != self.documents:
            return ""
        for share in self.shares:
            before += share.documents
            if number < before:
                return share.name
        return ""

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text for each token, EOD included, as the manifest has it."""
        if self.manifest is None or not self.manifest.tokens or not self.manifest.text_bytes:
            return None
        return self.manifest.text_bytes / self.manifest.tokens

    def token_fact(self, key: str) -> int | None:
        """A number that the manifest has of the tokenizer: vocab_size, eod_id."""
        value = self.manifest.tokenizer.get(key) if self.manifest else None
        known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
        return value if known else None


def open_dataset(prefix: str | os.PathLike[str]) -> Opened:
    """Open the dataset ``prefix`` and look for its manifest.

    InputError where the dataset is missing, FormatError where it is broken. A manifest that is
    broken, or of another dataset, is left aside: ``doubt`` says so.
    """
    dataset = MMapIndexedDataset(prefix)
    path = manifest_path(dataset.path_prefix)
    manifest, doubt = None, ""
    try:
        manifest = Manifest.load(dataset.path_prefix)
    except InputError:
        pass
    except FormatError as error:
        doubt = str(error)
    opened = Opened(dataset.path_prefix, dataset, manifest, doubt)
    # A virtual dataset is its manifest, and what it says of its pieces was checked.
    if manifest is None or isinstance(dataset, VirtualIndexedDataset):
        return opened
    if (manifest.sequences, manifest.tokens) == (len(dataset), opened.tokens):
        return opened
    doubt = (
        f"{path}: says {manifest.sequences} sequences and {manifest.tokens} tokens, the "
        f"dataset has {len(dataset)} and {opened.tokens}: it belongs to another one"
    )
    return replace(opened, manifest=None, doubt=doubt)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
