"""Threads that wait for stores."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Threads:
    """Unlike an executor's, they keep no process from ending."""

    def __init__(self, most: int) -> None:
        self._most, self._begun = most, 0
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = (
            SimpleQueue()
        )

    def submit(self, act: Callable[..., T], *arguments: Any) -> Future[T]:
        """Let a thread do something."""
        future: Future[T] = Future()
        self._jobs.put((future, act, arguments))
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._work, daemon=True).start()
        return future

    def map(self, act: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """What ``act`` gives for each item; after an error those that wait are not begun."""
        items = list(items)
        if len(items) == 1:
            return [act(items[0])]
        futures = [self.submit(act, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            wait([future for future in futures if not future.cancel()])
            raise

    def _work(self) -> None:
        while True:
            future, act, arguments = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act(*arguments))
                except BaseException as error:
                    future.set_exception(error)
            del future, act, arguments  # not kept until the next one comes
