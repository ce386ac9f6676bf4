"""Make all shards of a plan on an engine: begin tasks, try again what was lost, show the progress.

Which shards are done is seen at the output alone, so after a crash a new driver can go on.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.errors import WorkerError
from tokpack.progress import Progress
from tokpack.shards.engine import BUSY
from tokpack.shards.survey import survey
from tokpack.stores import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokpack.progress import Show
    from tokpack.shards.engine import CommandResult, ShardEngine
    from tokpack.shards.plan import ShardPlan
    from tokpack.shards.survey import ShardStatus

TRIES = 4  # of a shard whose machines are lost: the first and three more
MOST_FAILED = 3  # shards, after which the others are not tried
SLOW = 2.0  # times the median, after which a shard is begun a second time
_ENOUGH = 3  # shards that are done, to know a median
_BUSY_SECONDS = 10.0
_POLL_SECONDS, _POLL_STORE_SECONDS = 1.0, 5.0


class _Task(NamedTuple):
    number: int  # of the shard
    handle: Any


class ShardRunner:
    """Makes the shards of a plan; ``run`` returns when all are there.

    ``arguments`` are added to the command of each task. ``show`` is called with the progress,
    ``say`` with lines for people: shards that failed, were lost, or are begun once more.
    """

    def __init__(
        self,
        plan: ShardPlan,
        prefix: str,
        engine: ShardEngine,
        arguments: Sequence[str] = (),
        *,
        show: Show | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._plan = plan
        self._prefix = prefix
        self._engine = engine
        self._arguments = arguments
        self._show = show
        self._say = say
        self._poll = _POLL_STORE_SECONDS if is_url(prefix) else _POLL_SECONDS
        self._tasks: list[_Task] = []
        self._lost = Counter[int]()  # how often the machine of a shard was
        self._given_up: set[int] = set()  # shards whose maker was ours, and is gone
        self._not_before: dict[int, float] = {}  # when to try a shard that another makes again
        self._failed: dict[int, str] = {}
        self._sizes = [shard.bytes for shard in plan.each_shard()]
        self._began = time.monotonic()

    def run(self) -> None:
        """Make what is missing. WorkerError where shards failed; those that are done stay."""
        standings: list[ShardStatus] = []
        try:
            while True:
                standings = survey(self._plan, self._prefix, standings)
                self._tell(standings)
                if all(one.state == "done" for one in standings):
                    return
                self._start(standings)
                if not self._tasks and self._failed:
                    raise WorkerError(_failures(self._failed))
                self._wait()
        finally:
            self._cancel(self._tasks)

    def _start(self, standings: Sequence[ShardStatus]) -> None:
        """Begin what nobody makes, and a second time what takes much longer than the others."""
        if len(self._failed) >= MOST_FAILED:
            return
        ours = {task.number for task in self._tasks}
        for one in standings:
            is_free = one.state not in ("done", "running") or one.number in self._given_up
            is_due = time.monotonic() >= self._not_before.get(one.number, 0.0)
            if is_free and is_due and one.number not in ours and one.number not in self._failed:
                self._begin(one.number)
        for number in self._slow(standings):
            if not self._engine.is_idle():
                return
            self._say(f"shard {number} takes more than twice as long as others: begun once more")
            self._begin(number)

    def _begin(self, number: int) -> None:
        self._given_up.discard(number)
        shard = ["encode", "--plan", self._prefix, "--shard", str(number)]
        self._tasks.append(_Task(number, self._engine.start([*shard, *self._arguments])))

    def _slow(self, standings: Sequence[ShardStatus]) -> list[int]:
        """Shards that one task of ours makes, for too long. On a disk a second would be refused."""
        times = [one.report.seconds for one in standings if one.state == "done" and one.report]
        if len(times) < _ENOUGH or not is_url(self._prefix):
            return []
        limit = SLOW * statistics.median(times)
        ours = Counter(task.number for task in self._tasks)
        return [
            one.number
            for one in standings
            if ours[one.number] == 1
            and one.report is not None
            and (one.state == "lost" or (one.state == "running" and one.report.seconds > limit))
        ]

    def _wait(self) -> None:
        """Wait a moment for tasks to end, and see how."""
        if not self._tasks:  # others make what is left
            time.sleep(self._poll)
            return
        handles = [task.handle for task in self._tasks]
        for handle, outcome in self._engine.ended(handles, self._poll):
            task = next(task for task in self._tasks if task.handle == handle)
            self._tasks.remove(task)
            self._note(task.number, outcome)

    def _note(self, number: int, outcome: CommandResult) -> None:
        twins = [task for task in self._tasks if task.number == number]
        if outcome.code == 0:
            self._cancel(twins)
        elif twins:
            pass
        elif outcome.code == BUSY:  # another makes it, and may not have told of it yet
            self._not_before[number] = time.monotonic() + _BUSY_SECONDS
        elif outcome.code == 1:  # what is asked, or read, is wrong: it would fail again
            self._failed[number] = _last_line(outcome.said)
            self._say(f"shard {number} failed: {self._failed[number]}")
        else:
            self._lost[number] += 1
            self._given_up.add(number)
            words = _last_line(outcome.said) or f"exit code {outcome.code}"
            if self._lost[number] >= TRIES:
                self._failed[number] = f"lost {TRIES} times, the last time: {words}"
            self._say(f"shard {number} was lost ({self._lost[number]} of {TRIES} times): {words}")

    def _cancel(self, tasks: Sequence[_Task]) -> None:
        for task in tasks:
            self._engine.cancel(task.handle)
        self._tasks = [task for task in self._tasks if task not in tasks]

    def _tell(self, standings: Sequence[ShardStatus]) -> None:
        if self._show is None:
            return
        reports = [one.report for one in standings if one.report]
        self._show(
            Progress(
                stage="encode",
                done=sum(map(self._done, standings)),
                total=sum(self._sizes),
                seconds=time.monotonic() - self._began,
                documents=sum(report.documents for report in reports),
                tokens=sum(report.tokens for report in reports),
                text_bytes=sum(report.text_bytes for report in reports),
                workers=sum(one.state == "running" for one in standings),
            )
        )

    def _done(self, one: ShardStatus) -> int:
        """Stored bytes of a shard that are done."""
        size = self._sizes[one.number]
        if one.state == "done" or one.report is None or not one.report.total:
            return size if one.state == "done" else 0
        return min(size, size * one.report.done // one.report.total)


def _last_line(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1].removeprefix("tokpack: error: ") if lines else ""


def _failures(failed: dict[int, str]) -> str:
    words = [f"shard {number}: {text}" for number, text in sorted(failed.items())]
    return "; ".join(words) + "; what is done stays: run again to make the rest"
