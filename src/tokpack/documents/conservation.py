"""Check that a dataset has the documents of its inputs, each as often as there.

The inputs are read and encoded again. Compared is how often each document's tokens occur, by 64
bits of XXH3. So the order does not matter: the dataset may have been shuffled, merged, or split and
merged. Documents with the same hash count as equal, on both sides.
"""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.dataset import MMapIndexedDataset, Origins
from tokpack.dataset.spelling import find_tokenizer
from tokpack.dataset.table import has_table, token_digests
from tokpack.documents.base import scan_documents
from tokpack.encoding import first_batches, without_records
from tokpack.errors import InputError, UsageError
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.sources import Part, discover, line_base, make_parts, read
from tokpack.storage import paths_of
from tokpack.tokenizers import DocumentsError, Frame, borrowed, frame_of

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from typing import Unpack

    from tokpack.progress import Show
    from tokpack.sources import DocumentBatch, Documents, Source
    from tokpack.storage import PathLike
    from tokpack.tokenizers import Encoded, Encoder, Tokenizer, TokenizerFiles

    Wanted = dict[str, dict[int, list[int]]]


# The inputs are encoded again as the manifest says, but without parts, pieces and joins. If the
# tokenizer is lossless, ids are also decoded and compared with the text: the encoder might make the
# same mistake twice.

# With these options a document is not the text of one record.
_OTHERWISE = ("split_sentences", "ftfy", "where", "map", "chat")


class ReencodedBatch(NamedTuple):
    """Documents of a source and their tokens: document i has those of spans[i], none if empty.

    ``records`` were read for them, ``rejected`` of these cannot be documents; ``unlike`` are
    documents, by number, whose tokens do not decode to their text.
    """

    documents: Documents
    ids: npt.NDArray[Any]
    spans: npt.NDArray[np.int64]
    records: int
    rejected: int
    unlike: npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodeRecipe:
    """How texts were turned into the tokens of a dataset."""

    tokenizer: Tokenizer
    frame: Frame
    keys: tuple[str, ...]
    key: str
    special_tokens: str
    max_document_bytes: int
    limits: tuple[int, ...] | None  # records of each input, if not all of them were read

    @classmethod
    def of(cls, dataset: MMapIndexedDataset, **tokenizer: Unpack[TokenizerFiles]) -> EncodeRecipe:
        """The recipe in a manifest. InputError, UsageError if documents are not the texts of
        records.
        """
        manifest, prefix = dataset.manifest, dataset.path_prefix
        if manifest is None:
            raise InputError(
                f"{prefix}: has no manifest, so it is not known how its texts were encoded: "
                "`tokpack adopt` makes one"
            )
        if dataset.view is not None:
            raise UsageError(
                f"{prefix}: a view leaves documents out: compare the datasets under it"
            )
        options: Mapping[str, Any] = manifest.options
        if others := [name for name in _OTHERWISE if options.get(name)]:
            raise UsageError(
                f"{prefix}: was encoded with {', '.join(others)}, so its documents are not the "
                "texts of records: encode the inputs again, and compare the checksums of the "
                "manifests"
            )
        choice = find_tokenizer(dataset, **tokenizer)
        if choice.tokenizer is None:
            raise InputError(choice.note)
        described: Mapping[str, Any] = dataset.tokenizer or {}
        frame = frame_of(choice.tokenizer, append_eod=bool(options.get("append_eod", True)))
        key = str(options.get("key", "text"))
        limits = None
        if options.get("num_docs") is not None:
            limits = tuple(int(entry.get("records", 0)) for entry in manifest.inputs)
        return cls(
            tokenizer=choice.tokenizer,
            frame=Frame.of(described) if "frame" in described else frame,
            keys=tuple(options.get("keys") or (key,)),
            key=key,
            special_tokens=str(options.get("special_tokens", "auto")),
            max_document_bytes=int(options.get("max_document_bytes") or 1 << 30),
            limits=limits,
        )


def inputs_of(
    dataset: MMapIndexedDataset, names: Sequence[str], input_format: str | None
) -> list[Source]:
    """The inputs ``names`` of a dataset, in a format or as its manifest says. InputError."""
    manifest = dataset.manifest
    entries = manifest.inputs if manifest else ()
    formats = {entry.get("format") for entry in entries if isinstance(entry, dict)}
    of_all = next(iter(formats)) if formats in ({"file"}, {"text"}) else "auto"
    path = manifest.options.get("json_path") if manifest else None
    return discover(names, input_format=input_format or of_all, json_path=path, pipes=False)


class Reencoder:
    """Reads and encodes parts of sources as a recipe says; may be used by threads."""

    def __init__(self, recipe: EncodeRecipe, sources: Sequence[Source]) -> None:
        self._recipe, self._sources = recipe, sources
        self._bytes = recipe.tokenizer.token_bytes()

    def of(
        self, part: Part, lines: npt.NDArray[np.int64] | None = None
    ) -> Generator[tuple[int, ReencodedBatch]]:
        """The documents of a part, or of some lines, with the numbers of their sources. InputError.

        They are valid until the next ones are taken.
        """
        recipe = self._recipe
        special, frame = recipe.special_tokens, recipe.frame
        make = partial(recipe.tokenizer.encoder, dtype="int32", special_tokens=special, frame=frame)
        with borrowed(recipe.tokenizer, (Reencoder, special, frame), make) as encoder:
            whole = ((number, Part(number, "whole", 0, 0, 0)) for number in part.sources)
            for number, one in whole if part.kind == "files" else [(part.source, part)]:
                source = self._sources[number]
                limit = recipe.limits[number] if recipe.limits else None
                most = recipe.max_document_bytes
                with closing(read(source, one, recipe.keys, max_document_bytes=most)) as batches:
                    for batch in first_batches(batches, limit) if limit != 0 else ():
                        yield number, self._encoded(batch, encoder, lines)

    def _encoded(
        self, batch: DocumentBatch, encoder: Encoder, lines: npt.NDArray[np.int64] | None
    ) -> ReencodedBatch:
        documents = batch.documents[self._recipe.key]
        if lines is not None:
            documents = documents.select(np.isin(documents.lines, lines))
        try:
            encoded = encoder.encode(documents.data, documents.spans)
        except DocumentsError as error:
            # Numbers count documents of this key, of the requested lines only.
            left = replace(batch, documents={self._recipe.key: documents})
            return self._encoded(without_records(left, documents, error.reasons), encoder, None)
        ends = np.cumsum(encoded.lengths, dtype=np.int64)
        spans = np.stack([ends - encoded.lengths, ends], axis=1)
        unlike = self._unlike(documents, encoded, spans)
        return ReencodedBatch(documents, encoded.ids, spans, batch.records, len(batch.bad), unlike)

    def _unlike(
        self, documents: Documents, encoded: Encoded, spans: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The documents whose tokens, without the frame, do not decode to their text."""
        if self._bytes is None or not len(documents):
            return np.empty(0, np.int64)
        frame, inner = self._recipe.frame, spans.copy()
        inner[encoded.lengths > 0] += [len(frame.before), -len(frame.after)]
        return self._bytes.unlike(encoded.ids, inner, documents.data, documents.spans)


Digests = npt.NDArray[np.uint64]

_EXAMPLES = 3


@dataclass(frozen=True)
class Conservation:
    """The documents of the inputs compared with those of the dataset.

    ``records`` = ``documents`` with tokens + ``empty`` + ``rejected``, in the inputs. Copies of
    documents are ``missing`` if the dataset has fewer than the inputs, ``repeated`` if it has more,
    ``foreign`` if they are in no input. ``unlike`` documents have tokens that do not decode to
    their text, although the tokenizer is lossless. ``examples`` name some of them.
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
    unlike: int
    examples: tuple[str, ...]

    @property
    def is_conserved(self) -> bool:
        """Whether the dataset has exactly the documents of the inputs, with their copies."""
        return not (self.missing or self.repeated or self.foreign or self.unlike)

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
            "more often than in the inputs": self.repeated,
            "in no input": self.foreign,
            "whose tokens differ from the text": self.unlike,
        }
        words = ", ".join(f"{count:,} {what}" for what, count in wrong.items() if count)
        return f"{self.prefix}: {self.in_dataset:,} documents, {words}; {read}"


@with_bar
def compare_with_inputs(
    prefix: str | os.PathLike[str] | MMapIndexedDataset,
    inputs: PathLike | Sequence[PathLike],
    *,
    input_format: str | None = None,
    threads: int = 0,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Conservation:
    """Compare the documents of a dataset with those of the files that it was made from, by counts.

    ``inputs`` are named as for ``encode``; without ``input_format`` they are read like those that
    the manifest names. The tokenizer is the manifest's, unless another is given; ``threads`` 0 is
    one for each core. Takes 24 bytes of memory a document on either side.

    InputError if the dataset or its tokenizer is missing, or an input cannot be read. UsageError if
    documents are not plain texts of records: after ``where``, ``map`` or ``ftfy``, for sentences
    and conversations, and for a view.
    """
    dataset = prefix if isinstance(prefix, MMapIndexedDataset) else MMapIndexedDataset(prefix)
    recipe = EncodeRecipe.of(dataset, **tokenizer)
    sources = inputs_of(dataset, paths_of(inputs), input_format)
    if recipe.limits is not None and len(recipe.limits) != len(sources):
        raise UsageError(
            f"{dataset.path_prefix}: only the first records of its {len(recipe.limits)} inputs "
            f"were encoded, but {len(sources)} are named: name the same inputs, in the same order"
        )
    workers = threads or usable_cores()
    again = Reencoder(recipe, sources)
    if recipe.limits is None:
        parts = make_parts(sources, ways=workers)
    else:  # the first records of an input are in its first part
        parts = [Part(number, "whole", 0, 0, one.size) for number, one in enumerate(sources)]
    read = _Inputs(again, sources, parts, workers, progress)
    digests = np.zeros(dataset.documents, np.uint64)
    stage = ProgressStage(progress, "dataset", dataset.token_count * dataset.dtype.itemsize)

    def look(first: int, tokens: npt.NDArray[Any], spans: npt.NDArray[np.int64]) -> None:
        digests[first : first + len(spans)] = _digests(tokens, spans)

    for _ in scan_documents(dataset, look, stage.add, threads=workers):
        pass
    return _compared(dataset, read, digests)


class _Read(NamedTuple):
    """The digests of the documents of a part, and its other counts."""

    digests: Digests
    records: int
    empty: int
    rejected: int
    unlike: list[tuple[int, int]]  # source and line, both counted from 0


def _read(again: Reencoder, part: Part) -> _Read:
    digests, unlike = [np.empty(0, np.uint64)], []
    records = empty = rejected = 0
    for source, one in again.of(part):
        spans = one.spans[one.spans[:, 0] < one.spans[:, 1]]
        digests.append(_digests(one.ids, spans))
        records, rejected = records + one.records, rejected + one.rejected
        empty += len(one.spans) - len(spans)
        unlike += [(source, int(line)) for line in one.documents.lines[one.unlike]]
    return _Read(np.concatenate(digests), records, empty, rejected, unlike)


class _Inputs:
    """The input documents with tokens: their ``digests``, in order, and all counts."""

    def __init__(
        self,
        again: Reencoder,
        sources: Sequence[Source],
        parts: Sequence[Part],
        threads: int,
        progress: Show | bool | None,
    ) -> None:
        self._again, self._sources, self._parts = again, sources, parts
        stage = ProgressStage(progress, "inputs", sum(part.weight for part in parts))
        reads: list[_Read] = []
        with ThreadPoolExecutor(threads) as pool:
            for part, one in zip(parts, pool.map(lambda p: _read(again, p), parts), strict=True):
                reads.append(one)
                stage.add(part.weight)
        self.digests = np.concatenate([one.digests for one in reads])
        self._ends = [0, *accumulate(len(one.digests) for one in reads)]
        names = ("records", "empty", "rejected")
        self.counts = {name: sum(getattr(one, name) for one in reads) for name in names}
        self._unlike = [one.unlike for one in reads]
        self.counts |= {"documents": len(self.digests), "unlike": sum(map(len, self._unlike))}

    def place(self, number: int) -> str:
        """The place of a document in words; its part is read again for this."""
        index = int(np.searchsorted(self._ends, number, side="right")) - 1
        number -= self._ends[index]
        for source, one in self._again.of(self._parts[index]):
            lines = one.documents.lines[one.spans[:, 0] < one.spans[:, 1]]
            if number < len(lines):
                return self._named(self._parts[index], source, int(lines[number]))
            number -= len(lines)
        raise IndexError(number)

    def unlike(self) -> Iterator[str]:
        """The places of documents whose tokens do not decode to their text."""
        for part, places in zip(self._parts, self._unlike, strict=True):
            for source, line in places:
                yield self._named(part, source, line)

    def _named(self, part: Part, source: int, line: int) -> str:
        one = self._sources[source]
        return f"{one.name}:{line_base(one, part) + line + 1}"


def _digests(tokens: npt.NDArray[Any], spans: npt.NDArray[np.int64]) -> Digests:
    """A hash of the tokens of each document; 0 if it has none."""
    digests = np.ascontiguousarray(token_digests(tokens, spans)).view(np.uint64)[:, 0].copy()
    digests[digests == 0] = 1
    digests[spans[:, 0] == spans[:, 1]] = 0
    return digests


def _compared(dataset: MMapIndexedDataset, inputs: _Inputs, ours: Digests) -> Conservation:
    theirs, in_dataset = inputs.digests, int(np.count_nonzero(ours))
    examples = [
        f"its tokens are not its text: {place}"
        for place, _ in zip(inputs.unlike(), range(_EXAMPLES), strict=False)
    ]
    missing = repeated = foreign = 0
    sides = np.sort(theirs), np.sort(ours)
    if not np.array_equal(sides[0], sides[1][len(ours) - in_dataset :]):
        (kinds, counts), (our_kinds, our_counts) = (
            np.unique(side[side > 0], return_counts=True) for side in sides
        )
        del sides
        lost = counts - _counts_of(our_kinds, our_counts, kinds)
        there = _counts_of(kinds, counts, our_kinds)
        more = our_counts - there
        missing = int(lost[lost > 0].sum())
        foreign, repeated = int(more[there == 0].sum()), int(more[(there > 0) & (more > 0)].sum())
        firsts = _places(theirs, kinds[lost > 0])
        examples += [f"missing: {inputs.place(number)}" for number in firsts]
        for words, chosen in (
            ("more often than in the inputs", (there > 0) & (more > 0)),
            ("in no input", there == 0),
        ):
            lasts = _places(ours, our_kinds[chosen], last=True)
            examples += [f"{words}: document {number}" for number in lasts]
    return Conservation(
        prefix=dataset.path_prefix,
        **inputs.counts,
        in_dataset=in_dataset,
        missing=missing,
        repeated=repeated,
        foreign=foreign,
        examples=tuple(examples),
    )


def _counts_of(
    kinds: Digests, counts: npt.NDArray[np.int64], wanted: Digests
) -> npt.NDArray[np.int64]:
    """How often each wanted kind occurs among ``kinds``, which are sorted, with their
    ``counts``.
    """
    if not len(kinds):
        return np.zeros(len(wanted), np.int64)
    places = np.minimum(np.searchsorted(kinds, wanted), len(kinds) - 1)
    return np.where(kinds[places] == wanted, counts[places], 0)


def _places(digests: Digests, kinds: Digests, *, last: bool = False) -> list[int]:
    """The numbers of the first documents of a few kinds; or of the last ones of each."""
    numbers = np.flatnonzero(_counts_of(kinds, np.ones(len(kinds), np.int64), digests))
    ordered = numbers[::-1] if last else numbers
    _, first = np.unique(digests[ordered], return_index=True)
    chosen: list[int] = np.sort(ordered[first])[:_EXAMPLES].tolist()
    return chosen


@dataclass(frozen=True)
class SampleReport:
    """The result of encoding some ``documents`` of a dataset again; ``wrong`` of them differ.

    ``examples`` name some of these.
    """

    prefix: str
    documents: int
    checked: int
    wrong: int
    examples: tuple[str, ...]

    def sentence(self) -> str:
        """All counts in words."""
        if self.wrong:
            return f"{self.prefix}: {self.wrong:,} of {self.checked:,} documents differ from inputs"
        return (
            f"{self.prefix}: ok, {self.checked:,} of its {self.documents:,} documents checked, all "
            "as in the inputs"
        )


@with_bar
def verify_sample(
    prefix: str | os.PathLike[str] | MMapIndexedDataset,
    count: int,
    inputs: PathLike | Sequence[PathLike] = (),
    *,
    seed: int | None = None,
    input_format: str | None = None,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> SampleReport:
    """Encode ``count`` random documents again, from the inputs that the manifest names.

    The table of documents has the line of each; without a table, all earlier documents of its input
    are encoded too. ``inputs`` are the current places of these files, named as for ``encode``.
    ``seed`` chooses the documents; None for different ones each time. InputError if the dataset,
    its tokenizer or an input is missing; UsageError as ``compare_with_inputs``.
    """
    if count < 1:
        raise UsageError(f"a sample of {count} documents: expected 1 or more")
    dataset = prefix if isinstance(prefix, MMapIndexedDataset) else MMapIndexedDataset(prefix)
    recipe = replace(EncodeRecipe.of(dataset, **tokenizer), limits=None)
    total = dataset.documents
    numbers = sorted(random.Random(seed).sample(range(total), min(count, total)))
    by_line = has_table(dataset.path_prefix)
    wanted = _by_line(dataset, numbers) if by_line else _by_place(dataset, numbers)
    names = list(paths_of(inputs)) or list(wanted)
    there = inputs_of(dataset, names, input_format)
    sources = [_source_of(name, there) for name in wanted]
    again = Reencoder(recipe, sources)
    stage = ProgressStage(progress, "inputs", sum(source.size for source in sources))

    def check(index: int, places: dict[int, list[int]]) -> list[str]:
        return list(_wrong(dataset, again, sources, index, places, by_line=by_line))

    wrong: list[str] = []
    with ThreadPoolExecutor(usable_cores()) as pool:
        checked = pool.map(check, range(len(sources)), wanted.values())
        for source, some in zip(sources, checked, strict=True):
            wrong += some
            stage.add(source.size)
    return SampleReport(
        dataset.path_prefix, total, len(numbers), len(wrong), tuple(wrong[:_EXAMPLES])
    )


def _by_line(dataset: MMapIndexedDataset, numbers: Sequence[int]) -> Wanted:
    """The documents by their lines in the table, counted from 0. UsageError."""
    origins = Origins(dataset.path_prefix)
    wanted: Wanted = defaultdict(lambda: defaultdict(list))
    for number in numbers:
        origin = origins[number]
        if origin.line is None:
            raise UsageError(
                f"{dataset.path_prefix}: its table has no line for document {number}: compare all "
                f"of them with `tokpack verify {dataset.path_prefix} --against INPUT`"
            )
        wanted[origin.source][origin.line - 1].append(number)
    return wanted


def _by_place(dataset: MMapIndexedDataset, numbers: Sequence[int]) -> Wanted:
    """The documents by the number of earlier documents of the same input. UsageError."""
    entries = dataset.manifest.inputs if dataset.manifest else ()
    ends = [0, *accumulate(int(entry.get("documents", 0)) for entry in entries)]
    if ends[-1] != dataset.documents:
        raise UsageError(
            f"{dataset.path_prefix}: has no table of documents, and its manifest does not say "
            "which input each came from: compare all of them with `tokpack verify "
            f"{dataset.path_prefix} --against INPUT`"
        )
    wanted: Wanted = defaultdict(lambda: defaultdict(list))
    for number in numbers:
        entry = int(np.searchsorted(ends, number, side="right")) - 1
        wanted[str(entries[entry].get("name"))][number - ends[entry]].append(number)
    return wanted


def _source_of(name: str, sources: Sequence[Source]) -> Source:
    """The source with this name, or a name with this ending. InputError, UsageError."""
    chosen = [one for one in sources if one.name == name]
    chosen = chosen or [one for one in sources if _file_name(one.name) == _file_name(name)]
    if not chosen:
        raise InputError(f"{name}, an input of the dataset, is not among the inputs given")
    if others := {one.name for one in chosen} - {chosen[0].name}:
        raise UsageError(f"{name} could be {chosen[0].name} or {min(others)}: name one of them")
    return chosen[0]


def _file_name(name: str) -> str:
    return name.rpartition("/")[2]


def _wrong(
    dataset: MMapIndexedDataset,
    again: Reencoder,
    sources: Sequence[Source],
    index: int,
    places: dict[int, list[int]],
    *,
    by_line: bool,
) -> Iterator[str]:
    """The differences of documents that came from one source, in words."""
    left, seen = dict(places), dict[int, str]()
    lines = np.array(sorted(left)) if by_line else None
    before = 0
    name = sources[index].name
    with closing(again.of(Part(index, "whole", 0, 0, 0), lines)) as encoded:
        for _, one in encoded:
            has_tokens = np.flatnonzero(one.spans[:, 0] < one.spans[:, 1])
            at = one.documents.lines[has_tokens] if by_line else np.arange(len(has_tokens)) + before
            before += len(has_tokens)
            for place, document in zip(at.tolist(), has_tokens.tolist(), strict=True):
                numbers = left.pop(place, [])
                ids = one.ids[slice(*one.spans[document])]
                others = [n for n in numbers if not np.array_equal(ids, dataset.document(n))]
                where = f"{name}:{one.documents.lines[document] + 1}"
                if others:  # the line may have several documents
                    left[place], seen[place] = others, where
                if document in one.unlike:
                    same = (n for n in numbers if n not in others)
                    yield from (
                        f"document {n}: its tokens are not the text at {where}" for n in same
                    )
            if not left:
                return
    for place, numbers in sorted(left.items()):
        what = f"document {name}:{place + 1}" if by_line else f"document {place} in {name}"
        trouble = f" is not {seen[place]}" if place in seen else f": there is no {what}"
        yield from (f"document {number}{trouble}" for number in numbers)
