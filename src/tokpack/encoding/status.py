"""How far a run is: a small JSON file that it writes now and then, for others to read.

A run on one machine writes ``report.json`` in its work folder; the report of a shard is beside its
plan. Reports are for people, and show whether a run is alive; nothing else depends on them.
"""

from __future__ import annotations

import glob
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from tokpack import machine
from tokpack.counts import CHOSEN, ChosenCounts
from tokpack.dataset import Manifest, MMapIndexedDataset
from tokpack.encoding.folder import UNFINISHED_SUFFIX, WorkFolder, open_own
from tokpack.encoding.plan import Plan
from tokpack.errors import (
    BusyError,
    FormatError,
    InputError,
    OutputError,
    ResumeError,
    TokpackError,
    UnreachableError,
)
from tokpack.storage import is_url
from tokpack.storage.disk import MAX_BYTES, decode, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.progress import Progress, Show


NAME = "report.json"  # in a work folder
State = Literal["running", "done", "failed", "stopped"]
BEAT_SECONDS = 30.0  # writes to a store cost money
LOCAL_BEAT_SECONDS = 5.0
LOST_SECONDS = 3 * BEAT_SECONDS + 10  # after this silence a run counts as dead
_COUNTS = (
    *("done", "total", "documents", "tokens", "text_bytes", "rejected", "workers"),
    *CHOSEN,
)


@dataclass(frozen=True)
class Report(ChosenCounts):
    """What a run reports; times are seconds since the epoch by its machine's clock.

    ``written`` is the time of the report by the clock of the disk or store, or 0 if unknown.
    """

    shard: int  # 0 for a whole dataset
    state: State
    host: str
    pid: int
    began: float
    told: float
    done: int = 0  # stored bytes of the inputs
    total: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    message: str = ""  # why it failed
    rejected: int = 0
    workers: int = 0
    stage: str = ""
    bottleneck: str = ""
    written: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it had worked at the last report."""
        return max(0.0, self.told - self.began)

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at the pace so far, or None if unknown."""
        if not 0 < self.done <= self.total or not self.seconds:
            return None
        return (self.total - self.done) * self.seconds / self.done

    @property
    def silent(self) -> float:
        """The seconds since its last report."""
        return max(0.0, machine.clock.wall() - (self.written or self.told))

    @property
    def is_lost(self) -> bool:
        """Whether it reports to be working, but is dead or has been silent for too long."""
        if self.state != "running":
            return False
        is_dead = self.host == machine.clock.host() and not machine.clock.is_alive(self.pid)
        return is_dead or self.silent > LOST_SECONDS


class RunReporter:
    """Writes the reports of one run; a report that cannot be written is skipped.

    Call it with the progress, which it passes on to ``show``. ``write`` gets the content of the
    file every ``beat`` seconds at most, and may raise a TokpackError; BusyError ends the run. A
    context: the last report has the error that ends the run.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        show: Show | None,
        *,
        shard: int = 0,
        beat: float = LOCAL_BEAT_SECONDS,
    ) -> None:
        self._store, self._show, self._beat = write, show, beat
        now = machine.clock.wall()
        self.last = Report(shard, "running", machine.clock.host(), machine.clock.pid(), now, now)
        self._due = 0.0

    @property
    def has_told(self) -> bool:
        """Whether a report was written."""
        return self._due > 0

    def __call__(self, progress: Progress) -> None:
        """Note how far the run is, and report it if it is time."""
        same: dict[str, Any] = {
            name: getattr(progress, name) for name in (*_COUNTS, "stage", "bottleneck")
        }
        self.last = replace(self.last, told=machine.clock.wall(), **same)
        if machine.clock.now() > self._due:
            self._write()
        if self._show is not None:
            self._show(progress)

    def __enter__(self) -> RunReporter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, BusyError):  # then another run reports
            return
        if isinstance(error, TokpackError):
            self.end("stopped" if may_pass(error) else "failed", str(error))
        else:
            self.end("stopped")

    def begin(self) -> None:
        """Report the beginning. Unlike later reports, this raises what ``write`` raises."""
        self._due = machine.clock.now() + self._beat
        self._store(json.dumps(asdict(self.last)).encode())

    def beat(self) -> None:
        """Report that the run is alive, if it is time."""
        if machine.clock.now() > self._due:
            self.last = replace(self.last, told=machine.clock.wall())
            self._write()

    def end(self, state: State, message: str = "", **counts: int) -> None:
        """Report how the run ended."""
        self.last = replace(
            self.last,
            told=machine.clock.wall(),
            state=state,
            message=message,
            **cast("Any", counts),
        )
        self._write()

    def _write(self) -> None:
        try:
            self.begin()
        except BusyError:  # another run has taken over
            raise
        except TokpackError:
            self._due += self._beat


def may_pass(error: TokpackError) -> bool:
    """Whether a failure was due to the machine or store, not to inputs or request."""
    is_lost = isinstance(error, UnreachableError) or isinstance(error.__cause__, UnreachableError)
    return is_lost or error.exit_code != 1 or getattr(error, "errno", None) is not None


def parse_report(content: bytes | None, name: str, written: float = 0.0) -> Report | None:
    """The report in a file ``name``, or None if it is missing or invalid."""
    if not content:
        return None
    try:
        return replace(decode(Report, parse_json(content, name), name), written=written)
    except FormatError:
        return None


# How far a run on this machine is, or was when it stopped, according to its work folder.

Condition = Literal["running", "lost", "failed", "stopped", "starting"]


@dataclass(frozen=True)
class RunStatus:
    """The status of an unfinished run: its plan and report, None if unreadable."""

    folder: str
    plan: Plan | None
    report: Report | None

    @property
    def state(self) -> Condition:
        """The reported state; ``lost`` if silent for too long, ``starting`` without a report."""
        report = self.report
        if report is None or report.state == "done":
            return "starting"
        return "lost" if report.is_lost else report.state

    @property
    def advice(self) -> str:
        """How to finish it; "" while it is running."""
        if self.state in ("running", "starting"):
            return ""
        goes_on = self.plan is None or self.plan.is_recognizable
        way = f"the same command {'resumes it' if goes_on else 'starts from scratch'}"
        return f"fix that, then {way}" if self.state == "failed" else way

    @property
    def words(self) -> str:
        """Its state, how much is done, and what to do."""
        report = self.report
        done = f", {report.done / report.total:.0%} done" if report and report.total else ""
        return f"{self.state}{done}" + (f"; {self.advice}" if self.advice else "")


def begun_prefix(text: str) -> str | None:
    """The prefix of an unfinished run on this machine, or None if there is none.

    ``text`` is its prefix or its work folder.
    """
    for prefix in (text, text.rstrip("/").removesuffix(UNFINISHED_SUFFIX)):
        if os.path.lexists(WorkFolder(prefix + UNFINISHED_SUFFIX)("plan.json")):
            return prefix
    return None


def run_status(text: str) -> RunStatus | None:
    """The run named by ``text``, as for ``begun_prefix``, or None. InputError."""
    prefix = begun_prefix(text)
    if prefix is None:
        return None
    folder = WorkFolder(prefix + UNFINISHED_SUFFIX)
    try:
        plan: Plan | None = Plan.read(folder)
    except ResumeError:
        plan = None
    except OutputError as error:  # an error of writing, but here it is only read
        raise InputError(str(error)) from error
    return RunStatus(folder.path, plan, _report(folder(NAME)))


def finished(prefix: str) -> bool:
    """Whether the dataset ``prefix`` exists, or all datasets of a run with several."""
    if MMapIndexedDataset.exists(prefix):
        return True
    manifests = [] if is_url(prefix) else glob.glob(f"{glob.escape(prefix)}_*.json")
    several = []  # for each dataset, the keys of its run
    for name in (path.removesuffix(".json") for path in manifests):
        with suppress(InputError, FormatError):
            options = Manifest.load(name).options
            keys, is_of_key = options.get("keys"), name == f"{prefix}_{options.get('key')}"
            if not isinstance(keys, list) or "shard" in options:
                continue
            if is_of_key and MMapIndexedDataset.exists(name):
                several.append(keys)
    return any(several.count(keys) == len(keys) for keys in several)


def _report(path: str) -> Report | None:
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            return parse_report(file.read(MAX_BYTES), path, os.fstat(file.fileno()).st_mtime)
    except (OSError, OutputError):
        return None
