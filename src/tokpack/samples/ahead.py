"""Work that a thread does in advance."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")


def ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The same items, of which a thread makes up to ``count`` before they are asked for.

    An exception in the thread is raised where its item would have come. Nothing is started before
    the first item is asked for; if the caller stops early, at most one more item is made.
    """
    source, end = iter(items), object()
    thread = ThreadPoolExecutor(1, "tokpack-ahead")
    coming: deque[Future[object]] = deque()
    try:
        while True:
            while len(coming) <= count:
                coming.append(thread.submit(next, source, end))
            item = coming.popleft().result()
            if item is end:
                return
            yield cast("T", item)
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
