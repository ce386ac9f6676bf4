"""The order in which parts are encoded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tokpack.sources.compression import COMPRESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokpack.encoding.piece import Job


def in_working_order(job: Job, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """The parts in the order of the plan, in which pieces get their places, with an exception.

    A part that one worker would still be encoding when all others are done comes at once: it takes
    longer than an even share of all that is left. Of a stream only the decompression counts, since
    other workers encode its segments.
    """
    left = sum(job.parts[number].weight for number in numbers)
    alone = {number: _alone(job, number) for number in numbers}
    by_weight = deque(sorted(numbers, key=lambda number: (-alone[number], number)))
    in_order = deque(numbers)
    while alone:
        for parts in (by_weight, in_order):
            while parts[0] not in alone:
                parts.popleft()
        number = by_weight[0] if alone[by_weight[0]] * workers > left else in_order[0]
        left -= job.parts[number].weight
        del alone[number]
        yield number


def _alone(job: Job, number: int) -> float:
    """The weight of what one worker must do alone of a part."""
    part = job.parts[number]
    if part.kind != "stream":
        return part.weight
    decoding = COMPRESSIONS[job.sources[part.source].compression].decoding
    return part.weight * decoding / (1 + decoding)
