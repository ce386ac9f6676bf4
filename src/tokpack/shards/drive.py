"""Make all shards of a plan on an engine: start tasks, retry lost ones, show the progress.

Whether a shard is done is seen only at the output, so after a crash a new runner can continue.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from tokpack import machine
from tokpack.errors import UsageError, WorkerError, option
from tokpack.progress import Progress
from tokpack.shards.committed import survey
from tokpack.shards.plan import report_path
from tokpack.storage import is_url, storage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tokpack.progress import Show
    from tokpack.shards.committed import ShardStatus
    from tokpack.shards.plan import Work


# A task is a tokpack command line, so an engine need not know shards: it runs commands on machines
# that can read the inputs and write the output, and reports how they ended.

BUSY = 75  # exit code: another process is making the shard; "try later" in sysexits.h
CPUS = 8  # of a task by default, or all of a smaller node
SAID = 2000  # last characters of a command's output that are kept


class CommandResult(NamedTuple):
    """The end of a command: its exit code, None if its machine was lost, and its last output."""

    code: int | None
    said: str


class ShardEngine(Protocol):
    """Runs commands somewhere."""

    def start(self, arguments: Sequence[str]) -> Any:
        """Run ``tokpack ARGUMENTS`` as soon as a machine is free. Returns a handle."""

    def ended(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, CommandResult]]:
        """The ended commands, after waiting at most ``seconds`` for one."""

    def cancel(self, handle: Any) -> None:
        """End a command as Ctrl-C would; it may have ended already."""

    def close(self) -> None:
        """End the commands that were cancelled, and release the machines."""


TRIES = 4  # for a shard whose machines are lost
MOST_FAILED = 3  # after so many failed shards the others are not tried
_BUSY_SECONDS = 10.0
_POLL_SECONDS, _POLL_STORE_SECONDS = 1.0, 5.0


class ShardRunner:
    """Makes the shards of a plan; ``run`` returns when all exist.

    Each task makes one shard, or, with a number of ``takers``, takes free shards one by one; takers
    go on by themselves if this process is interrupted or cannot see their progress. ``arguments``
    are added to the command of each task. ``show`` is called with the progress, ``say`` with lines
    for people about failed and lost shards.
    """

    def __init__(
        self,
        plan: Work,
        prefix: str,
        engine: ShardEngine,
        arguments: Sequence[str] = (),
        *,
        takers: int = 0,
        show: Show | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._plan = plan
        self._prefix = prefix
        self._engine = engine
        self._arguments = arguments
        self._takers = takers
        self._what = "task" if takers else "shard"
        self._left = plan.shards
        self._show = show
        self._say = say
        self._poll = _POLL_STORE_SECONDS if is_url(prefix) else _POLL_SECONDS
        self._tasks: dict[int, Any] = {}  # the engine's handles, by shard, or by taker
        self._lost = Counter[int]()  # how often the machine of a task was lost
        self._gone: set[int] = set()  # shards of our ended tasks
        self._not_before: dict[int, float] = {}  # when to retry a shard of another process
        self._failed: dict[int, str] = {}
        self._sizes = plan.sizes
        self._began = machine.clock.now()

    def run(self) -> None:
        """Make the missing shards. WorkerError if shards failed; those that are done stay."""
        shards = survey(self._plan, self._prefix)
        for one in shards if self._takers else ():
            if one.state == "failed":  # takers leave it alone; the cause may be fixed by now
                storage_of(self._prefix).delete(report_path(self._prefix, one.number))
        shards = survey(self._plan, self._prefix, shards)
        try:
            while any(one.state != "done" for one in shards):
                self._tell(shards)
                due = self._due_takers(shards) if self._takers else map(self._due_shard, shards)
                for number in due:
                    if number is not None:
                        self._begin(number)
                if not self._tasks and self._failed:
                    self._fail(self._failed, self._what)
                self._wait()
                shards = survey(self._plan, self._prefix, shards)
            self._tell(shards)
        except BaseException:
            if not self._takers:
                self._cancel()
            raise
        self._cancel()

    def _cancel(self) -> None:
        for number in list(self._tasks):
            self._engine.cancel(self._tasks.pop(number))

    def _fail(self, failed: Mapping[int, str], what: str = "shard") -> NoReturn:
        self._cancel()
        raise WorkerError(failures(failed, what) + "; run the command again for the rest")

    def _due_takers(self, shards: Sequence[ShardStatus]) -> Iterator[int]:
        """The takers to start now: no more than there are shards. WorkerError if shards failed."""
        left = [one for one in shards if one.state != "done"]
        wrong, is_over = failed_of(left)
        if is_over:
            self._fail(wrong)
        if len(left) < self._left:  # there is progress in spite of lost takers
            self._lost.clear()
        self._left = len(left)
        idle = (n for n in range(self._takers) if n not in self._tasks and n not in self._failed)
        yield from islice(idle, max(0, len(left) - len(wrong) - len(self._tasks)))

    def _due_shard(self, one: ShardStatus) -> int | None:
        """The shard, if it should be started now: nobody is making it, and it has not failed."""
        is_free = one.state not in ("done", "running") or one.number in self._gone
        is_due = (
            is_free
            and one.number not in self._tasks
            and one.number not in self._failed
            and len(self._failed) < MOST_FAILED
            and machine.clock.now() >= self._not_before.get(one.number, 0.0)
        )
        return one.number if is_due else None

    def _begin(self, number: int) -> None:
        self._gone.discard(number)
        which = "next" if self._takers else str(number)
        command = self._plan.command(self._prefix, which)
        self._tasks[number] = self._engine.start([*command, *self._arguments])

    def _wait(self) -> None:
        """Wait a moment for tasks to end, and handle their results."""
        if not self._tasks:  # other processes are making the rest
            machine.clock.sleep(self._poll)
            return
        for handle, result in self._engine.ended(list(self._tasks.values()), self._poll):
            number = next(number for number, other in self._tasks.items() if other == handle)
            del self._tasks[number]
            self._note(number, result)

    def _note(self, number: int, result: CommandResult) -> None:
        if result.code == BUSY:  # another process is making it, perhaps without a report yet
            self._not_before[number] = machine.clock.now() + _BUSY_SECONDS
        elif result.code == 1:  # the request or an input is wrong: it would fail again
            self._failed[number] = _last_line(result.said)
            self._say(f"{self._what} {number} failed: {self._failed[number]}")
        elif result.code != 0:
            self._lost[number] += 1
            self._gone.add(number)
            words = _last_line(result.said) or f"exit code {result.code}"
            if self._lost[number] >= TRIES:
                self._failed[number] = f"lost {TRIES} times, the last time: {words}"
            times = f"{self._lost[number]} of {TRIES} times"
            self._say(f"{self._what} {number} was lost ({times}): {words}")

    def _tell(self, shards: Sequence[ShardStatus]) -> None:
        if self._show is None:
            return
        reports = [one.report for one in shards if one.report]
        if any(one.state == "done" and not one.report for one in shards):
            reports = []  # not read for very many shards: then only tokens are known
        self._show(
            Progress(
                stage=self._plan.stage,
                done=sum(map(self._done, shards)),
                total=sum(self._sizes),
                seconds=machine.clock.now() - self._began,
                documents=sum(report.documents for report in reports),
                tokens=sum(one.tokens for one in shards),
                text_bytes=sum(report.text_bytes for report in reports),
                workers=sum(one.state == "running" for one in shards),
            )
        )

    def _done(self, one: ShardStatus) -> int:
        """The stored bytes of a shard that are done."""
        size = self._sizes[one.number]
        if one.state == "done" or one.report is None or not one.report.total:
            return size if one.state == "done" else 0
        return min(size, size * one.report.done // one.report.total)


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1].removeprefix("tokpack: error: ") if lines else ""


def failed_of(left: Sequence[ShardStatus]) -> tuple[dict[int, str], bool]:
    """The messages of failed shards, by number, and whether to give up on the others."""
    failed = {
        one.number: one.report.message for one in left if one.report and one.state == "failed"
    }
    return failed, len(failed) >= min(MOST_FAILED, len(left))


def failures(failed: Mapping[int, str], what: str = "shard") -> str:
    """The message about failed shards or tasks."""
    words = [f"{what} {number}: {text}" for number, text in sorted(failed.items())]
    return "; ".join(words) + f"; finished {what}s are kept"


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class _Variable(NamedTuple):
    name: str
    first: int  # the number of the first task of an array


# SGE and LSF count from 1; outside an array their values are "undefined" and 0.
_VARIABLES = (
    _Variable("SLURM_ARRAY_TASK_ID", 0),
    _Variable("JOB_COMPLETION_INDEX", 0),  # an Indexed Job of Kubernetes
    _Variable("PBS_ARRAY_INDEX", 0),
    _Variable("PBS_ARRAYID", 0),
    _Variable("LSB_JOBINDEX", 1),
    _Variable("SGE_TASK_ID", 1),
)


def numbers_of(text: str, shards: int) -> list[int]:
    """The shards that ``--shard TEXT`` names: ``17``, ``3,5-7``, ``auto``. UsageError."""
    if text == "auto":
        return _of_task(shards)
    numbers: list[int] = []
    named = option("shard", text)
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"{named}: not a number, a list such as 3,5-7, auto or next")
        begin, end = int(match[1]), int(match[2] or match[1])
        if end < begin or end >= shards:
            raise UsageError(f"{named}: the plan has the shards 0 to {shards - 1}")
        numbers += range(begin, end + 1)
    return list(dict.fromkeys(numbers))


def _of_task(shards: int) -> list[int]:
    for variable in _VARIABLES:
        text = os.environ.get(variable.name, "")
        if not text.isdecimal() or int(text) < variable.first:
            continue
        number = int(text) - variable.first
        if number >= shards:
            raise UsageError(
                f"{variable.name} is {text}: the plan has {shards} shards, so the array is too long"
            )
        return list(range(number, shards, _stride(shards)))
    names = ", ".join(variable.name for variable in _VARIABLES)
    raise UsageError(
        f"{option('shard', 'auto')}: none of {names} is set: give a number, or start a job array"
    )


def _stride(shards: int) -> int:
    """The number of tasks in the array if each makes several shards, else of shards."""
    words = [os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("MIN", "MAX", "COUNT")]
    if not all(word.isdecimal() for word in words):
        return shards
    first, last, count = map(int, words)
    return count if first == 0 and last == count - 1 else shards
