"""Shards on demand: each machine takes the next free one, until none is left.

The report of a shard is also its lease. A machine takes a shard by writing the report, if there is
none, or in place of the version that it looked at; after that, each report replaces only its own
last one. So if two machines take a shard at the same moment, one of them gets it; and a machine
that was silent for too long learns from its next report that it has lost the shard. Clocks are
never compared, because they may be hours off: a holder counts as lost if its report has not changed
for LOST_SECONDS on the observer's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack import machine
from tokpack.encoding import BEAT_SECONDS, LOCAL_BEAT_SECONDS, LOST_SECONDS, parse_report
from tokpack.errors import BusyError, WorkerError
from tokpack.shards.committed import ranges, survey
from tokpack.shards.drive import failed_of, failures
from tokpack.shards.plan import check_current, report_path
from tokpack.storage import StoredObject, is_url, shown, small_files, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.encoding import Report
    from tokpack.shards.committed import ShardStatus
    from tokpack.shards.plan import Work
    from tokpack.storage import ListedFile, Version


class Lease:
    """Writes the reports of a shard, the first in place of the version ``there`` (or None).

    The first report takes the shard. BusyError if another machine has it.
    """

    def __init__(self, prefix: str, number: int, there: Any) -> None:
        self._path = report_path(prefix, number)
        self._storage = storage_of(prefix)
        self._there = there or "create"
        self._number = number

    def __call__(self, content: bytes) -> None:
        written = self._storage.put(self._path, content, self._there)
        if written is None and (own := self._own(content)):  # the answer to a write was lost
            written = self._storage.put(self._path, content, own)
        if written is None:
            raise BusyError(
                f"{shown(self._path)}: another process has taken shard {self._number} meanwhile"
            )
        self._there = written

    def _own(self, content: bytes) -> Any:
        """The version of the current report if this process wrote it, or None."""
        (version,) = self._storage.stats([self._path])
        (there,) = small_files([self._path])
        ours, found = (parse_report(one, self._path) for one in (content, there))
        return version if ours and found and _maker(ours) == _maker(found) else None


def _maker(report: Report) -> tuple[str, int, float]:
    return report.host, report.pid, report.began


def free_shards(plan: Work, prefix: str) -> Iterator[tuple[int, Lease]]:
    """Shards to make, each with its lease, until all are done; waits while others make the rest.

    Another machine may take a shard first: then its lease raises BusyError, and the next one comes.
    Failed shards are left alone. WorkerError if three have failed, or all that are left.
    """
    shards: list[ShardStatus] = []
    seen: dict[int, tuple[Any, float]] = {}  # by shard: its last report, and when it appeared
    while True:
        shards = survey(plan, prefix, shards)
        left = [one for one in shards if one.state != "done"]
        if not left:
            return
        failed, is_over = failed_of(left)
        if is_over:
            again = f"`tokpack {' '.join(plan.command(shown(prefix), ranges(failed)))}`"
            raise WorkerError(f"{failures(failed)}; fix that, then make it with {again}")
        now = machine.clock.now()
        for one in left:
            if seen.get(one.number, ("",))[0] != one.told:
                seen[one.number] = one.told, now
        free = [one for one in left if _is_free(one, now - seen[one.number][1])]
        if not free:
            machine.clock.sleep(BEAT_SECONDS if is_url(prefix) else LOCAL_BEAT_SECONDS)
            continue
        # A random one, because other machines may be choosing at the same moment.
        chosen = free[int(machine.clock.uniform(0, len(free))) % len(free)]
        check_current(plan, prefix)
        path = report_path(prefix, chosen.number)
        (there,) = storage_of(prefix).stats([path])
        if _is_same(there, chosen.told, path):
            yield chosen.number, Lease(prefix, chosen.number, there)


def _is_free(one: ShardStatus, silent: float) -> bool:
    is_silent = one.report is not None and silent > LOST_SECONDS
    return one.state in ("open", "stopped") or (one.state != "failed" and is_silent)


def _is_same(there: Version, told: ListedFile | None, path: str) -> bool:
    """Whether a file is still as it was listed."""
    if isinstance(there, StoredObject):
        return isinstance(told, StoredObject) and there.has_same_content(told)
    return storage_of(path).listed(path).get(path) == told
