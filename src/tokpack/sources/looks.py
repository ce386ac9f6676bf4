"""Look at many files: several at a time where a look takes long, as it does on NFS."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokpack.sources.base import Source

_FIRST = 16  # files that are looked at one by one, to know how long a look takes
_SLOW_SECONDS = 0.001  # of a look; on a disk it takes a twentieth
_THREADS = 32
_AT_ONCE = 4096  # results that are kept until they are taken
_here = threading.local()

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(look: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``look(item)`` of every item, in order; an error is that of the first item that has one.

    Threads end with the iterator, so that the process may fork then. A look that looks at others
    does it one by one: there are never more than these threads.
    """
    rest = iter(items)
    began = time.perf_counter()
    first = [look(item) for item in islice(rest, _FIRST)]
    is_slow = time.perf_counter() - began > _SLOW_SECONDS * len(first)
    yield from first
    if not is_slow or getattr(_here, "looks", False):
        yield from map(look, rest)
        return
    from concurrent.futures import ThreadPoolExecutor  # other file systems need none

    while batch := list(islice(rest, _AT_ONCE)):
        try:
            with ThreadPoolExecutor(_THREADS, initializer=_is_looking) as threads:
                results = list(threads.map(look, batch))
        except RuntimeError:  # the system gives no more threads
            results = list(map(look, batch))
        yield from results


def _is_looking() -> None:
    _here.looks = True


def fingerprints(sources: Iterable[Source]) -> list[str]:
    """The fingerprint of each source. InputError."""
    return list(map_concurrently(lambda source: source.fingerprint(), sources))
