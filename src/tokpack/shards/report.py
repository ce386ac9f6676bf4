"""What the maker of a shard tells of it while it works: ``PREFIX.plan/00017.json``.

Nothing depends on a report but what people are shown, and how long others wait: a shard is done
when its manifest is there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, get_args

from tokpack.errors import FormatError, TokpackError
from tokpack.files.foreign import parse_json
from tokpack.machine import is_alive
from tokpack.shards import storage
from tokpack.shards.plan import report_path
from tokpack.stores import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.indexed import Manifest
    from tokpack.progress import Progress

State = Literal["running", "done", "failed", "stopped"]
BEAT_SECONDS = 30.0  # a write to a store costs something
_LOCAL_BEAT_SECONDS = 5.0
_MOST, _LATEST = 1 << 62, 1e11  # of a count, of a time: what figures can be shown of
LOST_SECONDS = 3 * BEAT_SECONDS + 10  # of silence, after which a maker is taken for dead


@dataclass(frozen=True)
class Report:
    """What one machine says of one shard; times are seconds since the epoch, by its clock."""

    shard: int
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

    @property
    def seconds(self) -> float:
        """How long it has worked, so far as it has told."""
        return max(0.0, self.told - self.began)

    @property
    def is_lost(self) -> bool:
        """Whether its maker says that it works, and is dead or has said so too long ago."""
        if self.state != "running":
            return False
        is_dead = self.host == socket.gethostname() and not is_alive(self.pid)
        return is_dead or time.time() - self.told > LOST_SECONDS


class Reporter:
    """Tells of one shard, now and then; a report that cannot be written is no failure."""

    def __init__(self, prefix: str, number: int) -> None:
        self._path = report_path(prefix, number)
        self._beat = BEAT_SECONDS if is_url(prefix) else _LOCAL_BEAT_SECONDS
        now = time.time()
        self._last = Report(number, "running", socket.gethostname(), os.getpid(), now, now)
        self._due = 0.0

    def __call__(self, progress: Progress) -> None:
        """Take note of how far it is."""
        self._last = replace(
            self._last,
            told=time.time(),
            done=progress.done,
            total=progress.total,
            documents=progress.documents,
            tokens=progress.tokens,
            text_bytes=progress.text_bytes,
        )
        if time.monotonic() > self._due:
            self._write()

    def end(self, state: State, message: str = "") -> None:
        """Say how it ended."""
        self._last = replace(self._last, told=time.time(), state=state, message=message)
        self._write()

    def finish(self, made: Manifest) -> None:
        """Say that it is done, and what it has become; nothing where there was no work to do."""
        if self._due:
            self._last = replace(
                self._last,
                done=self._last.total,
                documents=made.documents,
                tokens=made.tokens,
                text_bytes=made.text_bytes,
            )
            self.end("done")

    def _write(self) -> None:
        self._due = time.monotonic() + self._beat
        try:
            storage.write(self._path, json.dumps(asdict(self._last)).encode())
        except TokpackError:
            self._due += self._beat


def reports(prefix: str, numbers: Sequence[int]) -> list[Report | None]:
    """The reports of some shards; None where there is none that can be understood. InputError."""
    paths = [report_path(prefix, number) for number in numbers]
    contents = storage.read_all(paths)
    return [_parsed(content, path) for content, path in zip(contents, paths, strict=True)]


def _parsed(content: bytes | None, name: str) -> Report | None:
    if not content:
        return None
    try:
        values = parse_json(content, name)
        report = Report(**{field.name: values[field.name] for field in fields(Report)})
    except (FormatError, KeyError, TypeError):
        return None
    return report if _is_sound(report) else None


def _is_sound(report: Report) -> bool:
    """Whether what somebody wrote is what a maker could have told."""
    counts = (report.done, report.total, report.documents, report.tokens, report.text_bytes)
    times = (report.began, report.told)
    return (
        report.state in get_args(State)
        and all(isinstance(text, str) for text in (report.host, report.message))
        and all(type(count) is int and 0 <= count < _MOST for count in counts)
        and all(type(at) in (int, float) and 0 <= at < _LATEST for at in times)  # no NaN
        and type(report.pid) is int
        and 0 < report.pid < 1 << 31
    )
