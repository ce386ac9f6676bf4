"""The progress of a run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from tokpack.counts import ChosenCounts


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


@contextmanager
def shown(progress: Show | bool | None) -> Iterator[Show | None]:
    """The function for a run to report its progress to: the given one, or for True a bar.

    The bar is drawn in a terminal or notebook, by the reporting thread, because a run may fork. A
    notebook without ipywidgets gets plain text.
    """
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    from importlib.util import find_spec

    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[counted]}"),
        TimeRemainingColumn(),
    )
    console = Console()
    if console.is_jupyter and find_spec("ipywidgets") is None:  # of which rich warns
        console = Console(force_jupyter=False, force_terminal=True, width=100)
    with Bars(*columns, console=console, auto_refresh=False) as bars:
        task = bars.add_task("", total=None, counted="")

        def show(now: Progress) -> None:
            bars.update(
                task,
                description=now.stage,
                completed=now.done,
                total=now.total or None,
                counted=f"{now.tokens:,} tokens" if now.tokens else f"{now.done:,} {now.unit}",
                refresh=True,
            )

        yield show


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
