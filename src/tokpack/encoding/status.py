"""How far a run is, in a small JSON file that it writes now and then, for others to look at.

A run on one machine writes ``report.json`` in its work folder, the report of a shard lies beside
its plan. Reports are shown to people, and say whether a run is still alive; nothing else depends
on them.
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
from tokpack.storage.disk import MAX_BYTES, decode, parse_json
from tokpack.storage.objects.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokpack.progress import Progress, Show


NAME = "report.json"  # in a work folder
State = Literal["running", "done", "failed", "stopped"]
BEAT_SECONDS = 30.0  # a write to a store costs something
LOCAL_BEAT_SECONDS = 5.0
LOST_SECONDS = 3 * BEAT_SECONDS + 10  # of silence, after which a run is taken for dead
_COUNTS = (
    *("done", "total", "documents", "tokens", "text_bytes", "rejected", "workers"),
    *CHOSEN,
)


@dataclass(frozen=True)
class Report(ChosenCounts):
    """What a run says of itself; times are seconds since the epoch, by its machine's clock.

    ``written`` is when that was, by the clock of the disk or store; 0 where it is not known.
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
        """How long it has worked, so far as it has told."""
        return max(0.0, self.told - self.began)

    @property
    def seconds_left(self) -> float | None:
        """How long it will still read at the pace so far; None where that is not known."""
        if not 0 < self.done <= self.total or not self.seconds:
            return None
        return (self.total - self.done) * self.seconds / self.done

    @property
    def silent(self) -> float:
        """For how many seconds nothing has been heard of it."""
        return max(0.0, machine.clock.wall() - (self.written or self.told))

    @property
    def is_lost(self) -> bool:
        """Whether it says that it works, and is dead or has said so too long ago."""
        if self.state != "running":
            return False
        is_dead = self.host == machine.clock.host() and not machine.clock.is_alive(self.pid)
        return is_dead or self.silent > LOST_SECONDS


class RunReporter:
    """Writes the reports of one run; one that cannot be written is left out.

    It is called with the progress, which it passes on to ``show``. ``write`` gets the content of
    the file, every ``beat`` seconds at most, and may raise a TokpackError; BusyError ends the run.
    A context: an error that ends the run is in the last report.
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
        """Note how far the run is, and report that when it is time."""
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
        if error is None or isinstance(error, BusyError):  # then another run tells of it
            return
        if isinstance(error, TokpackError):
            self.end("stopped" if may_pass(error) else "failed", str(error))
        else:
            self.end("stopped")

    def begin(self) -> None:
        """Report the beginning. Raises what ``write`` raises, unlike later reports."""
        self._due = machine.clock.now() + self._beat
        self._store(json.dumps(asdict(self.last)).encode())

    def beat(self) -> None:
        """Report that the run lives, when that is time."""
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
        except BusyError:  # another has taken its place
            raise
        except TokpackError:
            self._due += self._beat


def may_pass(error: TokpackError) -> bool:
    """Whether a run failed by its machine or store, and not by its inputs or its request."""
    is_lost = isinstance(error, UnreachableError) or isinstance(error.__cause__, UnreachableError)
    return is_lost or error.exit_code != 1 or getattr(error, "errno", None) is not None


def parse_report(content: bytes | None, name: str, written: float = 0.0) -> Report | None:
    """The report in a file ``name``; None where there is none, or it is not one of a run."""
    if not content:
        return None
    try:
        return replace(decode(Report, parse_json(content, name), name), written=written)
    except FormatError:
        return None


# How far a run on this machine is, or was when it was stopped, from what its work folder has.

Condition = Literal["running", "lost", "failed", "stopped", "starting"]


@dataclass(frozen=True)
class RunStatus:
    """How a run stands that has not finished: its plan and report, None where none can be read."""

    folder: str
    plan: Plan | None
    report: Report | None

    @property
    def state(self) -> Condition:
        """``lost`` where the run has fallen silent, ``starting`` where it has said nothing yet."""
        report = self.report
        if report is None or report.state == "done":
            return "starting"
        return "lost" if report.is_lost else report.state

    @property
    def advice(self) -> str:
        """How to finish it; "" while somebody works."""
        if self.state in ("running", "starting"):
            return ""
        goes_on = self.plan is None or self.plan.is_recognizable
        way = f"the same command {'goes on where it was' if goes_on else 'begins anew'}"
        return f"once that is mended, {way}" if self.state == "failed" else way

    @property
    def words(self) -> str:
        """How it stands, how much of it is done, and what to do."""
        report = self.report
        done = f", {report.done / report.total:.0%} done" if report and report.total else ""
        return f"{self.state}{done}" + (f"; {self.advice}" if self.advice else "")


def begun_prefix(text: str) -> str | None:
    """The prefix of a run on this machine that has begun and not finished; None for none.

    A user names the run by ``text``: its prefix, or its work folder.
    """
    for prefix in (text, text.rstrip("/").removesuffix(UNFINISHED_SUFFIX)):
        if os.path.lexists(WorkFolder(prefix + UNFINISHED_SUFFIX)("plan.json")):
            return prefix
    return None


def run_status(text: str) -> RunStatus | None:
    """The run that ``text`` names as for ``begun_prefix``, None where there is none. InputError."""
    prefix = begun_prefix(text)
    if prefix is None:
        return None
    folder = WorkFolder(prefix + UNFINISHED_SUFFIX)
    try:
        plan: Plan | None = Plan.read(folder)
    except ResumeError:
        plan = None
    except OutputError as error:  # it is not to be written here
        raise InputError(str(error)) from error
    return RunStatus(folder.path, plan, _report(folder(NAME)))


def finished(prefix: str) -> bool:
    """Whether the dataset ``prefix`` is there, or all of the run that made several."""
    if MMapIndexedDataset.exists(prefix):
        return True
    manifests = [] if is_url(prefix) else glob.glob(f"{glob.escape(prefix)}_*.json")
    several = []  # of each dataset: the keys of its run
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
