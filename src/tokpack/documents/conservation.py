"""Are the documents of a dataset those of its inputs, each as often as there.

The inputs are read and encoded again, by the tokenizer and the options that the manifest tells,
without the parts, pieces and joins of the run that made the dataset. What is compared is how often
each row of tokens comes, by XXH3-128, so the order does not matter: it holds for a dataset that was
shuffled, merged or split and merged.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.documents.passes import scan_documents
from tokpack.errors import InputError, UsageError
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.table import token_digests
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.report import find_tokenizer
from tokpack.sources import Part, discover, line_base, read
from tokpack.sources.parts import make_parts
from tokpack.tokenizers import DocumentsError, Frame, frame_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.progress import Show
    from tokpack.sources import Documents, Source
    from tokpack.tokenizers import Encoder, Tokenizer, TokenizerFiles

Digests = npt.NDArray[np.uint64]  # [n, 2]

# Options after which a document is not the text of one record.
_OTHERWISE = ("split_sentences", "ftfy", "where", "map", "chat")
_EXAMPLES = 3


@dataclass(frozen=True)
class Conservation:
    """What there is in the inputs, and in the dataset.

    ``records`` = ``documents`` with a token + ``empty`` + ``rejected``, of the inputs. ``missing``
    documents are fewer times in the dataset than in the inputs, ``repeated`` more often, and
    ``foreign`` ones in no input: each counts copies. ``examples`` name some of them.
    """

    prefix: str
    records: int
    documents: int
    empty: int
    rejected: int
    in_dataset: int
    missing: int
    repeated: int
    foreign: int
    examples: tuple[str, ...]

    @property
    def is_conserved(self) -> bool:
        """Whether the dataset has each document of the inputs as often, and no other."""
        return not (self.missing or self.repeated or self.foreign)

    def sentence(self) -> str:
        """All counts in words."""
        read = (
            f"{self.records:,} records are {self.documents:,} documents, {self.empty:,} without "
            f"tokens and {self.rejected:,} rejected"
        )
        if self.is_conserved:
            return f"{self.prefix}: ok, its documents are those of the inputs; {read}"
        wrong = {
            "missing": self.missing,
            "more often than there": self.repeated,
            "of no input": self.foreign,
        }
        words = ", ".join(f"{count:,} {what}" for what, count in wrong.items() if count)
        return f"{self.prefix}: {self.in_dataset:,} documents, {words}; {read}"


@with_bar
def compare_with_inputs(
    prefix: str | os.PathLike[str] | MMapIndexedDataset,
    inputs: str | Sequence[str],
    *,
    input_format: str = "auto",
    threads: int = 0,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Conservation:
    """Count the documents of a dataset against those of the files that it was made from.

    ``inputs`` are named as for ``encode``. The tokenizer is the manifest's, where no other is
    given; ``threads`` 0 is one for each core. Takes 28 bytes of memory a document on either side.

    InputError where the dataset or its tokenizer is missing, or an input cannot be read. UsageError
    where the documents are not the records' texts alone: after ``where``, ``map``, ``ftfy``, of
    sentences and of conversations.
    """
    dataset = prefix if isinstance(prefix, MMapIndexedDataset) else MMapIndexedDataset(prefix)
    options = _options(dataset)
    found = find_tokenizer(dataset, **tokenizer)
    if found.tokenizer is None:
        raise InputError(found.note)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    sources = discover(names, input_format=input_format, pipes=False)
    workers = threads or usable_cores()
    reader = _Reader(sources, options, found.tokenizer, _frame(dataset, options, found.tokenizer))
    parts = make_parts(sources, ways=workers)
    stage = ProgressStage(progress, "inputs", sum(part.weight for part in parts))
    read_parts: list[_Read] = []
    with ThreadPoolExecutor(workers) as pool:
        for part, done in zip(parts, pool.map(reader.read, parts), strict=True):
            read_parts.append(done)
            stage.add(part.weight)
    own = _of_dataset(dataset, workers, progress)
    return _compared(dataset, sources, read_parts, own)


def _options(dataset: MMapIndexedDataset) -> Mapping[str, Any]:
    """The options of the run that made a dataset. InputError, UsageError."""
    manifest, prefix = dataset.manifest, dataset.path_prefix
    if manifest is None:
        raise InputError(
            f"{prefix}: has no manifest, which says how texts became its tokens: tokpack adopt "
            "gives it one"
        )
    options: Mapping[str, Any] = manifest.options
    others = [name for name in _OTHERWISE if options.get(name)]
    if others:
        raise UsageError(
            f"{prefix}: was encoded with {', '.join(others)}, so its documents are not the texts "
            "of records: encode the inputs again, and compare the checksums of the manifests"
        )
    return options


def _frame(dataset: MMapIndexedDataset, options: Mapping[str, Any], tokenizer: Tokenizer) -> Frame:
    described: Mapping[str, Any] = dataset.tokenizer or {}
    if "frame" in described:
        return Frame.of(described)
    return frame_of(tokenizer, append_eod=bool(options.get("append_eod", True)))


@dataclass
class _Read:
    """The documents with tokens of a part, where they come from, and what else it had."""

    part: Part
    digests: Digests
    sources: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int64]  # counted from the first record of the part, or of its file
    records: int = 0
    empty: int = 0
    rejected: int = 0


class _Reader:
    """Reads parts of sources, in threads."""

    def __init__(
        self,
        sources: Sequence[Source],
        options: Mapping[str, Any],
        tokenizer: Tokenizer,
        frame: Frame,
    ) -> None:
        self._sources, self._tokenizer, self._frame = sources, tokenizer, frame
        self._key = str(options.get("key", "text"))
        self._most = int(options.get("max_document_bytes") or 1 << 30)
        self._special = str(options.get("special_tokens", "auto"))
        self._idle: list[Encoder] = []

    def read(self, part: Part) -> _Read:
        """The documents of a part. InputError."""
        try:
            encoder = self._idle.pop()
        except IndexError:
            encoder = self._tokenizer.encoder(
                dtype="int32", special_tokens=self._special, frame=self._frame
            )
        none = np.empty((0, 2), np.uint64), np.empty(0, np.int32), np.empty(0, np.int64)
        done = _Read(part, *none)
        made = [self._read(number, one, encoder, done) for number, one in _alone(part)]
        rows = [row for some in made for row in some]
        if rows:
            done.digests = np.concatenate([digests for digests, _, _ in rows])
            numbers = [np.full(len(lines), number, np.int32) for _, number, lines in rows]
            done.sources = np.concatenate(numbers)
            done.lines = np.concatenate([lines for _, _, lines in rows])
        self._idle.append(encoder)
        return done

    def _read(
        self, number: int, part: Part, encoder: Encoder, done: _Read
    ) -> list[tuple[Digests, int, npt.NDArray[np.int64]]]:
        rows = []
        source = self._sources[number]
        with closing(read(source, part, [self._key], max_document_bytes=self._most)) as batches:
            for batch in batches:
                done.records += batch.records
                done.rejected += len(batch.bad)
                documents, digests, has_tokens = self._encoded(batch.documents[self._key], encoder)
                done.rejected += batch.records - len(batch.bad) - len(documents)
                done.empty += len(documents) - len(digests)
                rows.append((digests, number, documents.lines[has_tokens].copy()))
        return rows

    def _encoded(
        self, documents: Documents, encoder: Encoder
    ) -> tuple[Documents, Digests, npt.NDArray[np.bool_]]:
        """The documents that can be encoded, the digests of their tokens, and which have any."""
        try:
            encoded = encoder.encode(documents.data, documents.spans)
        except DocumentsError as error:
            good = np.ones(len(documents), np.bool_)
            good[list(error.reasons)] = False
            return self._encoded(documents.select(good), encoder)
        has_tokens = encoded.lengths > 0
        ends = np.cumsum(encoded.lengths, dtype=np.int64)
        spans = np.stack([ends - encoded.lengths, ends], axis=1)[has_tokens]
        return documents, _as_numbers(token_digests(encoded.ids, spans)), has_tokens


def _alone(part: Part) -> Iterator[tuple[int, Part]]:
    """The sources of a part, and the part of each."""
    if part.kind == "files":
        yield from ((number, Part(number, "whole", 0, 0, 0)) for number in part.sources)
    else:
        yield part.source, part


def _as_numbers(digests: npt.NDArray[np.uint8]) -> Digests:
    return np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)


def _of_dataset(dataset: MMapIndexedDataset, threads: int, progress: Show | bool | None) -> Digests:
    """The digests of all documents of a dataset; of one without tokens 0 and 0."""
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    digests = np.zeros((dataset.documents, 2), np.uint64)
    stage = ProgressStage(progress, "dataset", dataset.token_count * dataset.dtype.itemsize)

    def look(first: int, tokens: npt.NDArray[Any], spans: npt.NDArray[np.int64]) -> None:
        some = _as_numbers(token_digests(tokens, spans))
        some[spans[:, 0] == spans[:, 1]] = 0
        digests[first : first + len(spans)] = some

    for size, _ in scan_documents(dataset, ends, look, threads=threads):
        stage.add(size)
    return digests


def _compared(
    dataset: MMapIndexedDataset, sources: Sequence[Source], parts: Sequence[_Read], own: Digests
) -> Conservation:
    given = np.concatenate([part.digests for part in parts])
    is_document = own.any(axis=1)
    numbers = np.flatnonzero(is_document)
    every = np.concatenate([given, own[is_document]])
    order = np.lexsort((every[:, 1], every[:, 0]))  # stable: those of the inputs first
    every = every[order]
    begins = np.ones(len(every), np.bool_)
    begins[1:] = (every[1:] != every[:-1]).any(axis=1)
    firsts = np.flatnonzero(begins)
    before = np.append(0, np.cumsum(order < len(given)))  # of the inputs, among so many
    of_inputs = np.diff(before[np.append(firsts, len(every))])
    counts = np.diff(np.append(firsts, len(every)))
    of_dataset = counts - of_inputs
    more = of_dataset - of_inputs
    foreign, repeated = (of_inputs == 0), (of_inputs > 0) & (more > 0)
    examples = [
        f"missing: {_place(sources, parts, number)}"
        for number in sorted(order[firsts[more < 0]].tolist())[:_EXAMPLES]
    ]
    for words, chosen in (("more often than there", repeated), ("of no input", foreign)):
        lasts = order[(firsts + counts - 1)[chosen]] - len(given)
        examples += [f"{words}: document {one}" for one in sorted(numbers[lasts])[:_EXAMPLES]]
    return Conservation(
        prefix=dataset.path_prefix,
        records=sum(part.records for part in parts),
        documents=len(given),
        empty=sum(part.empty for part in parts),
        rejected=sum(part.rejected for part in parts),
        in_dataset=len(numbers),
        missing=int(-more[more < 0].sum()),
        repeated=int(more[repeated].sum()),
        foreign=int(more[foreign].sum()),
        examples=tuple(examples),
    )


def _place(sources: Sequence[Source], parts: Sequence[_Read], number: int) -> str:
    """Where the document of the inputs with a number is."""
    for part in parts:
        if number < len(part.digests):
            source = sources[part.sources[number]]
            line = line_base(source, part.part) + int(part.lines[number]) + 1
            return f"{source.name}:{line}"
        number -= len(part.digests)
    raise IndexError(number)
