"""The bytes of an object from some place on, with several requests on their way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

REQUEST_BYTES = 4 << 20
_MOST = 6  # requests under way: with their size, the bound of what is held in memory
_FIRST_BYTES = 1 << 20
# Where it is not known how much will be read: the smallest request, after how many of them one more
# is sent ahead, and how many may be under way.
_LEAST_BYTES = 64 << 10
_UNSAID_BEFORE, _MOST_UNSAID = 3, 3


class PrefetchReader:
    """Fetches ahead up to ``until``; beyond it only what is read, and ahead where that goes on."""

    def __init__(
        self,
        fetch: Callable[[int, int], Any],
        pool: Executor,
        *,
        begin: int,
        until: int,
        size: int,
    ) -> None:
        self._fetch = fetch
        self._pool = pool
        self._next, self._until, self._size = begin, min(until, size), size
        self._pending: deque[Future[Any]] = deque()
        self._taken = 0  # requests whose bytes are used
        self._unsaid = 0  # requests beyond ``until``

    def next(self, wanted: int) -> Any:
        """The next bytes, any number of them; none at the end. Raises what ``fetch`` raises.

        Where nobody has said how far will be read, at least the ``wanted`` ones are asked for.
        """
        self._ask()
        if not self._pending and self._next < self._size:
            self._unsaid += 1
            self._request(max(wanted, _LEAST_BYTES))
        if not self._pending:
            return b""
        data = self._pending.popleft().result()
        self._taken += 1
        self._ask()
        return data

    def close(self) -> None:
        """Ask for nothing more."""
        self._size = self._until = 0
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def _ask(self) -> None:
        # Few and small at first: a caller that only looks at the beginning should not fetch much.
        size = min(REQUEST_BYTES, _FIRST_BYTES << min(self._taken, 8))
        while self._next < self._until and len(self._pending) < min(_MOST, self._taken + 1):
            self._request(min(size, self._until - self._next))
        window = min(self._unsaid // _UNSAID_BEFORE, _MOST_UNSAID)
        while self._until <= self._next < self._size and len(self._pending) < window:
            self._unsaid += 1
            self._request(REQUEST_BYTES)

    def _request(self, size: int) -> None:
        end = min(self._next + size, self._size)
        self._pending.append(self._pool.submit(self._fetch, self._next, end))
        self._next = end
