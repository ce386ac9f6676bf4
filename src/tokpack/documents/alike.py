"""Whether pairs of documents are alike, by the sets of their n-grams: here, or on a cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset, are_trained
from tokpack.dataset.results import (
    NewResult,
    Result,
    Task,
    everywhere,
    files_of,
    forget,
    open_unchanged,
    result_path,
)
from tokpack.dataset.table import plain_ids
from tokpack.documents.base import trained_tracks
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokpack.dataset.results import RunTasks
    from tokpack.documents.base import Base
    from tokpack.progress import Show


Int64s = npt.NDArray[np.int64]
Place = tuple[MMapIndexedDataset, int]  # a document, by its number in a dataset

_OPEN = 64  # datasets of which documents are compared
_PAIRS = 256  # pairs that are compared at a time
_TASK_PAIRS = 1 << 19  # of a task: some seconds of a machine


def are_alike(
    pairs: Int64s,
    place: Callable[[int], Place],
    rules: Mapping[str, Any],
    pool: ThreadPoolExecutor,
    on_pairs: Callable[[int], None] = lambda count: None,
) -> npt.NDArray[np.bool_]:
    """Whether the two documents of each row of ``pairs``, int64 [n, 2], are: bool [n].

    ``rules`` are those of ``NearRules``, and ``together``: with 2 a row has the first documents of
    two pairs, and both documents must be alike.
    """

    def look(begin: int) -> list[bool]:
        return [
            all(
                _core.jaccard(
                    _tokens(*place(one + i), rules),
                    _tokens(*place(other + i), rules),
                    rules["ngram"],
                )
                >= rules["near"]
                for i in range(rules["together"])
            )
            for one, other in pairs[begin : begin + _PAIRS].tolist()
        ]

    result = np.zeros(len(pairs), bool)
    begins = range(0, len(pairs), _PAIRS)
    for begin, found in zip(begins, pool.map(look, begins), strict=True):
        result[begin : begin + len(found)] = found
        on_pairs(len(found))
    return result


def _tokens(dataset: MMapIndexedDataset, number: int, rules: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The tokens of a document that are compared."""
    tokens = plain_ids(dataset.document(number))
    tracks = trained_tracks(dataset) if rules["on"] == "trained" else ()
    if not tracks:
        return tokens
    return tokens[are_trained({name: dataset.track(name).document(number) for name in tracks})]


def compared_by(
    run: RunTasks, output: str, base: Base, pairs: Int64s, rules: Mapping[str, Any]
) -> npt.NDArray[np.bool_]:
    """What ``are_alike`` returns, from tasks; documents are numbered through all of the base.

    What tasks are given, and what they find, lies beside the ``output`` until all is found.
    """
    output = everywhere(output)
    prefixes = [everywhere(record.prefix) for record in base.records]
    files = files_of(prefixes)
    numbers = base.numbers_through(pairs.ravel()).reshape(-1, 2)
    tasks = []
    for begin in range(0, len(pairs), _TASK_PAIRS):
        part = numbers[begin : begin + _TASK_PAIRS]
        shards = np.unique(np.searchsorted(base.starts, part, side="right") - 1).tolist()
        facts = {
            "rules": rules,
            "shards": [[int(base.starts[one]), prefixes[one], files[one]] for one in shards],
        }
        asked = facts, xxhash.xxh3_128_hexdigest(part.data)
        given = result_path(output, "pairs", *asked)
        with NewResult(given) as new:
            new.finish(facts, [part])
        tasks.append(Task(result_path(output, "alike", *asked), len(part), {"pairs": given}))
    run("alike", tasks)
    found = np.concatenate([Result(task.result).array(0) for task in tasks])
    forget(path for task in tasks for path in (task.facts["pairs"], task.result))
    return found


def alike_task(task: Task, threads: int, progress: Show) -> None:
    """Compare the pairs that a task is given, and write which are alike."""
    given = Result(task.facts["pairs"])
    shards = given.facts["shards"]
    starts = np.array([start for start, *_ in shards])

    @lru_cache(_OPEN)
    def opened(number: int) -> MMapIndexedDataset:
        return open_unchanged(*shards[number][1:])

    def place(document: int) -> Place:
        number = int(np.searchsorted(starts, document, side="right")) - 1
        return opened(number), document - shards[number][0]

    stage = ProgressStage(progress, "alike", task.size, "pairs")
    with (
        NewResult(task.result) as new,
        ThreadPoolExecutor(threads or usable_cores()) as pool,
    ):
        new.finish({}, [are_alike(given.array(0), place, given.facts["rules"], pool, stage.add)])
