"""The progress of a run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TextIO, TypeVar

from tokpack.counts import ChosenCounts
from tokpack.quantities import bytes_text, count_text, time_text


@dataclass(frozen=True, kw_only=True)
class Progress(ChosenCounts):
    """A snapshot of a run: ``done`` of ``total`` of its stage, after so many ``seconds``.

    They are in ``unit``; of encode these are the inputs' stored (compressed) bytes. What a command
    does not count stays 0.
    """

    stage: str  # encode | place | sync, or the command's own
    done: int
    total: int
    seconds: float
    unit: str = "bytes"  # or tokens, sequences, documents
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    rejected: int = 0
    bottleneck: str = ""  # read (with decompressing and parsing) | encode | write | ""
    workers: int = 1


Show = Callable[[Progress], None]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class ProgressStage:
    """Reports the progress of a stage to ``show``, if that is callable."""

    def __init__(
        self, show: Show | bool | None, name: str, total: int, unit: str = "bytes"
    ) -> None:
        self._show = show if callable(show) else None
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = time.monotonic()

    def add(self, count: int) -> None:
        """Report more progress."""
        self._done += count
        if self._show is None:
            return
        self._show(
            Progress(
                stage=self._name,
                done=self._done,
                total=self._total,
                seconds=time.monotonic() - self._began,
                unit=self._unit,
            )
        )


def describe(progress: Progress, first: Progress, columns: int = 0) -> str:
    """One line: share done, rate, time left, which stage limits the speed, and counts.

    If it is longer than ``columns``, the limit is left out first, then counts.
    """
    words = []
    total = progress.total
    if total:
        words.append(f"{min(1.0, progress.done / total):.0%}")
    seconds = progress.seconds - first.seconds
    text, stored = progress.text_bytes - first.text_bytes, progress.done - first.done
    if seconds > 0 and text > 0:
        words.append(f"{bytes_text(text / seconds)}/s")
    elif seconds > 0 and stored > 0 and not progress.text_bytes:
        rate = stored / seconds
        in_bytes = progress.unit == "bytes"
        words.append(f"{bytes_text(rate) if in_bytes else f'{count_text(rate)} {progress.unit}'}/s")
    if seconds > 0 and stored > 0 and progress.done < total:
        words.append(f"{time_text((total - progress.done) * seconds / stored)} left")
    limit = f"limit: {progress.bottleneck}" if progress.bottleneck else ""
    documents = f"{count_text(progress.documents)} docs" if progress.documents else ""
    rejected = f"{progress.rejected:,} rejected" if progress.rejected else ""
    tokens = f"{count_text(progress.tokens)} tokens" if progress.tokens else ""
    words += [word for word in (limit, rejected, documents, tokens) if word]
    for word in (limit, documents, tokens):
        if columns and word and len(", ".join(words)) > columns:
            words.remove(word)
    return ", ".join(words)


_LIVE_SECONDS = 0.1


class Bar:
    """A line that is redrawn: a run's stage, a bar, and what ``describe`` says.

    It is drawn by the thread that reports, at most ten times a second: runs fork workers, which is
    not safe while there are threads. In a notebook without ipywidgets it is plain text. At the end
    the line is removed unless it ``stays``.
    """

    def __init__(self, stream: TextIO | None = None, *, stays: bool = True) -> None:
        self._stream, self._stays = stream, stays
        self._bars: Any = None
        self._first: Progress | None = None
        self._drawn, self._stage = 0.0, ""

    def draw(self, now: Progress) -> None:
        """Show the progress, unless the line was just drawn."""
        self._first = self._first or now
        moment = time.monotonic()
        is_early = moment - self._drawn < _LIVE_SECONDS and now.done != now.total
        if is_early and now.stage == self._stage:
            return
        self._drawn, self._stage = moment, now.stage
        if self._bars is None:
            self._bars = self._started()
        # The columns before the text: the stage, a bar of 12, and blanks.
        columns = self._bars.console.width - max(len(now.stage), 6) - 14
        self._bars.update(
            0,
            description=now.stage,
            completed=now.done,
            total=now.total or None,
            text=describe(now, self._first, columns),
            refresh=True,
        )

    def _started(self) -> Any:
        from importlib.util import find_spec

        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(file=self._stream)
        if console.is_jupyter and find_spec("ipywidgets") is None:  # of which rich warns
            console = Console(force_jupyter=False, force_terminal=True, width=100)
        bars = Progress(
            TextColumn("{task.description}", table_column=Column(min_width=6)),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            transient=not self._stays,
        )
        bars.add_task("", total=None, text="")
        bars.start()
        return bars

    def stop(self) -> None:
        """End the line."""
        if self._bars is not None:
            self._bars.stop()


@contextmanager
def shown(progress: Show | bool | None) -> Iterator[Show | None]:
    """The function for a run to report its progress to: the given one, or for True a bar, in a
    terminal or a notebook.
    """
    if not isinstance(progress, bool):
        yield progress
        return
    bar = Bar()
    try:
        yield bar.draw if progress else None
    finally:
        bar.stop()


@contextmanager
def without_widgets() -> Iterator[None]:
    """Import a library that uses tqdm without its warning about missing ipywidgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        yield


def with_bar(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose keyword ``progress`` may be True: then it draws a bar, as ``shown`` says."""

    @wraps(function)
    def run(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
        bar = keywords.get("progress")
        if not isinstance(bar, bool):
            return function(*arguments, **keywords)
        with shown(bar) as show:
            keywords["progress"] = show
            return function(*arguments, **keywords)

    return run
