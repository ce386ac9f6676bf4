"""Are the documents of a dataset those of its inputs, each as often as there.

The inputs are read and encoded again. What is compared is how often each row of tokens comes, by 64
bits of XXH3, so the order does not matter: it holds for a dataset that was shuffled, merged or
split and merged. Two rows that have one hash count as one kind, on both sides.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokpack.documents.passes import scan_documents
from tokpack.documents.reencode import EncodeRecipe, Reencoder, inputs_of
from tokpack.errors import UsageError
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.table import token_digests
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.sources import Part, line_base
from tokpack.sources.parts import make_parts
from tokpack.stores import paths_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from tokpack.progress import Show
    from tokpack.sources import Source
    from tokpack.stores.storage import PathLike
    from tokpack.tokenizers import TokenizerFiles

Digests = npt.NDArray[np.uint64]

_EXAMPLES = 3


@dataclass(frozen=True)
class Conservation:
    """What there is in the inputs, and in the dataset.

    ``records`` = ``documents`` with a token + ``empty`` + ``rejected``, of the inputs. ``missing``
    documents are fewer times in the dataset than in the inputs, ``repeated`` more often, and
    ``foreign`` ones in no input: each counts copies. ``unlike`` documents have tokens that are not
    their text, where the tokenizer loses nothing of a text. ``examples`` name some of them.
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
        """Whether the dataset has each document of the inputs as often, and no other."""
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
            "more often than there": self.repeated,
            "of no input": self.foreign,
            "with tokens that are not their text": self.unlike,
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
    """Count the documents of a dataset against those of the files that it was made from.

    ``inputs`` are named as for ``encode``; without ``input_format`` they are read as those that the
    manifest names. The tokenizer is the manifest's, where no other is given; ``threads`` 0 is one
    for each core. Takes 24 bytes of memory a document on either side.

    InputError where the dataset or its tokenizer is missing, or an input cannot be read. UsageError
    where the documents are not the records' texts alone: after ``where``, ``map``, ``ftfy``, of
    sentences and of conversations; and for a view.
    """
    dataset = prefix if isinstance(prefix, MMapIndexedDataset) else MMapIndexedDataset(prefix)
    recipe = EncodeRecipe.of(dataset, **tokenizer)
    sources = inputs_of(dataset, paths_of(inputs), input_format)
    if recipe.limits is not None and len(recipe.limits) != len(sources):
        raise UsageError(
            f"{dataset.path_prefix}: only the first records of its {len(recipe.limits)} inputs "
            f"were encoded, and these are {len(sources)}: name the same ones, in their order"
        )
    workers = threads or usable_cores()
    again = Reencoder(recipe, sources)
    if recipe.limits is None:
        parts = make_parts(sources, ways=workers)
    else:  # the first records are those of the first part
        parts = [Part(number, "whole", 0, 0, one.size) for number, one in enumerate(sources)]
    read = _Inputs(again, sources, parts, workers, progress)
    return _compared(dataset, read, _of_dataset(dataset, workers, progress))


class _Read(NamedTuple):
    """The digests of the documents of a part, and what else it had."""

    digests: Digests
    records: int
    empty: int
    rejected: int
    unlike: list[tuple[int, int]]  # source and line, both from 0


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
    """The documents of the inputs that have tokens: their ``digests``, in order, and all counts."""

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
        """Where a document is: its part is read again."""
        index = int(np.searchsorted(self._ends, number, side="right")) - 1
        number -= self._ends[index]
        for source, one in self._again.of(self._parts[index]):
            lines = one.documents.lines[one.spans[:, 0] < one.spans[:, 1]]
            if number < len(lines):
                return self._named(self._parts[index], source, int(lines[number]))
            number -= len(lines)
        raise IndexError(number)

    def unlike(self) -> Iterator[str]:
        """Where the documents are whose tokens are not their text."""
        for part, places in zip(self._parts, self._unlike, strict=True):
            for source, line in places:
                yield self._named(part, source, line)

    def _named(self, part: Part, source: int, line: int) -> str:
        one = self._sources[source]
        return f"{one.name}:{line_base(one, part) + line + 1}"


def _digests(tokens: npt.NDArray[Any], spans: npt.NDArray[np.int64]) -> Digests:
    """A hash of the tokens of each document; 0 where it has none."""
    digests = np.ascontiguousarray(token_digests(tokens, spans)).view(np.uint64)[:, 0].copy()
    digests[digests == 0] = 1
    digests[spans[:, 0] == spans[:, 1]] = 0
    return digests


def _of_dataset(dataset: MMapIndexedDataset, threads: int, progress: Show | bool | None) -> Digests:
    ends = document_ends(dataset.sizes, dataset.doc_idx)
    digests = np.zeros(dataset.documents, np.uint64)
    stage = ProgressStage(progress, "dataset", dataset.token_count * dataset.dtype.itemsize)

    def look(first: int, tokens: npt.NDArray[Any], spans: npt.NDArray[np.int64]) -> None:
        digests[first : first + len(spans)] = _digests(tokens, spans)

    for size, _ in scan_documents(dataset, ends, look, threads=threads):
        stage.add(size)
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
            ("more often than there", (there > 0) & (more > 0)),
            ("of no input", there == 0),
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
    """How often each wanted kind comes, of those that are sorted with their counts."""
    if not len(kinds):
        return np.zeros(len(wanted), np.int64)
    places = np.minimum(np.searchsorted(kinds, wanted), len(kinds) - 1)
    return np.where(kinds[places] == wanted, counts[places], 0)


def _places(digests: Digests, kinds: Digests, *, last: bool = False) -> list[int]:
    """The first documents, by number, of a few of these kinds; or the last ones of each."""
    numbers = np.flatnonzero(_counts_of(kinds, np.ones(len(kinds), np.int64), digests))
    ordered = numbers[::-1] if last else numbers
    _, first = np.unique(digests[ordered], return_index=True)
    chosen: list[int] = np.sort(ordered[first])[:_EXAMPLES].tolist()
    return chosen
