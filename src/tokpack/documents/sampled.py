"""Random documents of a dataset, encoded again from the records that they came from."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from tokpack.documents.reencode import EncodeRecipe, Reencoder, inputs_of
from tokpack.errors import InputError, UsageError
from tokpack.indexed import MMapIndexedDataset, Origins
from tokpack.indexed.table import has_table
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.sources import Part
from tokpack.stores import paths_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from tokpack.progress import Show
    from tokpack.sources import Source
    from tokpack.stores.storage import PathLike
    from tokpack.tokenizers import TokenizerFiles

    # Of each input, by name: which documents of the dataset its records are, by their place.
    Wanted = dict[str, dict[int, list[int]]]

_EXAMPLES = 3


@dataclass(frozen=True)
class SampleReport:
    """Of ``documents`` of a dataset so many were encoded again, and ``wrong`` ones are others.

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
            return f"{self.prefix}: {self.wrong:,} of {self.checked:,} documents are not their text"
        return (
            f"{self.prefix}: ok, {self.checked:,} of its {self.documents:,} documents are what "
            "their inputs say"
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

    The table of documents says which line each came from; without one all documents before it in
    its input are encoded too. ``inputs`` are where these files lie now, named as for ``encode``.
    Which documents are taken, ``seed`` decides; None for others each time. InputError where the
    dataset, its tokenizer or an input is missing; UsageError as ``compare_with_inputs``.
    """
    if count < 1:
        raise UsageError(f"a sample of {count} documents: the least is 1")
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
    """The documents by the lines, from 0, that the table has. UsageError."""
    origins = Origins(dataset.path_prefix)
    wanted: Wanted = defaultdict(lambda: defaultdict(list))
    for number in numbers:
        origin = origins[number]
        if origin.line is None:
            raise UsageError(
                f"{dataset.path_prefix}: its table has no line of document {number}: compare all "
                "of them with --against INPUT"
            )
        wanted[origin.source][origin.line - 1].append(number)
    return wanted


def _by_place(dataset: MMapIndexedDataset, numbers: Sequence[int]) -> Wanted:
    """The documents by how many of the same input are before them. UsageError."""
    entries = dataset.manifest.inputs if dataset.manifest else ()
    ends = [0, *accumulate(int(entry.get("documents", 0)) for entry in entries)]
    if ends[-1] != dataset.documents:
        raise UsageError(
            f"{dataset.path_prefix}: has no table of its documents, and its manifest does not tell "
            "which input each came from: compare all of them with --against INPUT"
        )
    wanted: Wanted = defaultdict(lambda: defaultdict(list))
    for number in numbers:
        entry = int(np.searchsorted(ends, number, side="right")) - 1
        wanted[str(entries[entry].get("name"))][number - ends[entry]].append(number)
    return wanted


def _source_of(name: str, sources: Sequence[Source]) -> Source:
    """The source of that name, or else with such an end. InputError, UsageError."""
    chosen = [one for one in sources if one.name == name]
    chosen = chosen or [one for one in sources if _file_name(one.name) == _file_name(name)]
    if not chosen:
        raise InputError(f"{name}, an input of the dataset, is not among those that are named")
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
    """What is wrong of the documents that came from one source, in words."""
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
                if others:  # which another document of the line may be
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
