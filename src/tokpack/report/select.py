"""Which documents to look at."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import UsageError
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.progress import Show
    from tokpack.report.spelling import Spelling

_GREP_TOKENS = 1 << 18
_RANGE = re.compile(r"(-?\d+)|(-?\d+)?:(-?\d+)?")


def ranges(text: str, count: int) -> list[range]:
    """Documents of a request such as ``17``, ``-1``, ``3:8``, ``-5:`` or ``1,7,20:30``.

    Negative numbers count from the end of ``count`` documents, ranges leave their end out. Raises
    UsageError where a document does not exist, or a range holds none.
    """
    result = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(
                f"{word!r} is not a document or a range of them, such as 17, -1 or 3:8"
            )
        if match[1] is None:
            bounds = slice(*(None if edge is None else int(edge) for edge in match.group(2, 3)))
            chosen = range(*bounds.indices(count))
        else:
            number = int(match[1])
            if not -count <= number < count:
                raise UsageError(f"there is no document {number}: the dataset has {count}")
            chosen = range(number % count, number % count + 1)
        if not chosen:
            raise UsageError(f"there is no document in {word!r}: the dataset has {count}")
        result.append(chosen)
    return result


def sample_documents(count: int, most: int) -> list[int]:
    """``most`` of ``count`` documents, spread evenly, the first and the last among them."""
    most = min(most, count)
    if most == 1:
        return [0]
    return [i * (count - 1) // (most - 1) for i in range(most)]


def random_documents(count: int, most: int, seed: int | None = None) -> list[int]:
    """``most`` different documents of ``count`` by chance, ascending."""
    return sorted(random.Random(seed).sample(range(count), min(most, count)))


@dataclass(frozen=True)
class Match:
    """A document that holds the text: at ``byte`` of its decoded text, in token ``token``."""

    document: int
    byte: int
    token: int


def grep(
    dataset: MMapIndexedDataset,
    spelling: Spelling,
    text: str,
    *,
    progress: Show | None = None,
    within: range | None = None,
) -> Iterator[Match]:
    """Documents whose decoded text holds ``text``, in order, found as they are read.

    ``within`` are the documents that are searched, all by default. The same letters in another
    Unicode normalization are another text. ``progress`` is told how many documents are searched.
    Raises UsageError for an empty text.
    """
    if not text:
        raise UsageError("the text to look for is empty")
    within = range(dataset.documents) if within is None else within
    needle = text.encode("utf-8", "surrogateescape")
    stage, reported = ProgressStage(progress, "search", len(within), "documents"), within.start
    for first, rows in _batches(dataset, within):
        # One search over many documents: only where it finds something are they taken one by one.
        together = spelling.table is None or needle in spelling.text(np.concatenate(rows))
        for number, row in enumerate(rows if together else (), first):
            byte = spelling.text(row).find(needle)
            if byte >= 0:
                stage.add(number + 1 - reported)
                reported = number + 1
                yield Match(number, byte, _token_at(spelling, row, byte))
        stage.add(first + len(rows) - reported)
        reported = first + len(rows)


def _batches(
    dataset: MMapIndexedDataset, within: range
) -> Iterator[tuple[int, list[npt.NDArray[Any]]]]:
    """Documents in a row of some hundred thousand tokens together, and the number of the first."""
    first, rows, tokens = within.start, [], 0
    for number in within:
        row = dataset.document(number)
        rows.append(row)
        tokens += len(row)
        if tokens >= _GREP_TOKENS:
            yield first, rows
            first, rows, tokens = number + 1, [], 0
    if rows:
        yield first, rows


def _token_at(spelling: Spelling, row: npt.NDArray[Any], byte: int) -> int:
    end = 0
    if spelling.table is None:
        row = row[: 1 << 14]  # one token after the other is slow there
    for number, text in enumerate(spelling.of(row.tolist())):
        end += len(text)
        if end > byte:
            return number
    return 0
