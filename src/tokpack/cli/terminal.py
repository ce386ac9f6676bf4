"""The output of a command, and its messages while it works: always on stderr, for stdout is
data.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sys
import textwrap
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from tokpack.display import data_text, message, shown, tell
from tokpack.errors import NoDatasetError, Remark, TokpackError, worded
from tokpack.progress import Bar, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokpack.progress import Progress


PLAIN_SECONDS = 10.0

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
# Characters that JSON does not escape: DEL, C1, formats, direction marks, noncharacters.
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
# The characters with which Python stands for bytes of file names that are not UTF-8. They are
# passed to a program as they are, except control characters of 8 bits.
_BYTES_OF_NAMES = "".join(map(chr, range(0xDCA0, 0xDD00)))


def put(line: str = "") -> None:
    """Print a line to stdout in any encoding; only colours are passed to a terminal as they are."""
    words = _COLOUR.split(line) if is_coloured() else [line]
    keep = "" if sys.stdout.isatty() else _BYTES_OF_NAMES
    text = "".join(word if _COLOUR.fullmatch(word) else shown(word, keep=keep) for word in words)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    sys.stdout.write(text + "\n")


def put_text(text: bytes) -> None:
    """Print a text to stdout as it is; to a terminal without characters that it would obey."""
    if sys.stdout.isatty():
        for line in text.decode("utf-8", "replace").split("\n")[:-1]:
            put(line)
    elif hasattr(sys.stdout, "buffer"):  # whatever the locale's encoding
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
    else:
        sys.stdout.write(text.decode("utf-8", "replace"))


def put_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON value to stdout, with letters as they are and nothing that a terminal obeys.

    Data classes become objects with their fields.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=asdict)
    sys.stdout.write(_NOT_ASCII.sub(_json_escape, text) + "\n")


def _json_escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def is_coloured() -> bool:
    """Whether stdout is a terminal that wants colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout.isatty()


def say(text: str) -> None:
    """Print a line to stderr, unless the user wants only errors."""
    if not _quiet:
        tell(text)


def note(text: str) -> None:
    """Print information that the user need not act on."""
    say(message(f"tokpack: note: {worded(text, _flags())}"))


_quiet = False
_flags: Callable[[], Mapping[str, str]] = dict


@contextlib.contextmanager
def talk(*, quiet: bool, flags: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Print the notes that the library logs; with ``quiet`` only errors.

    ``flags`` gives the flags that options have in notes.
    """
    global _quiet, _flags
    logger = logging.getLogger("tokpack")
    handler = _Notes()
    before, _quiet, _flags = (_quiet, _flags), quiet, flags
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, (_quiet, _flags) = propagate, before


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.msg.text if isinstance(record.msg, Remark) else record.getMessage())


def error(text: str) -> None:
    """Print what went wrong and what to do about it."""
    colour = is_live() and not os.environ.get("NO_COLOR")
    before = "\x1b[1;31merror:\x1b[0m " if colour else "error: "
    tell(message(text), before="tokpack: " + before)


def fault(error: TokpackError, flags: Mapping[str, str]) -> str:
    """The words of an error; for a dataset that was not found, how far the run is that makes it."""
    if isinstance(error, NoDatasetError):
        from tokpack.encoding import run_status

        with contextlib.suppress(TokpackError):
            if run := run_status(error.prefix):
                return f"{error.prefix}: not finished: {run.words}"
    return error.worded(flags)


def folded(line: str, stream: TextIO, indent: int = 2) -> list[str]:
    """A line as lines that fit the terminal; if stderr is no terminal, it stays one line."""
    if not stream.isatty():
        return [line]
    return textwrap.wrap(
        line,
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say_folded(line: str, indent: int = 2) -> None:
    """Print a line that may be longer than the terminal is wide."""
    for part in folded(line, sys.stderr, indent):
        say(part)


def print_paths(*paths: str) -> None:
    """Print what was made to stdout, for scripts; not if a person was told already."""
    if _quiet or not sys.stdout.isatty():
        sys.stdout.write(data_text("".join(f"{path}\n" for path in paths)))


def is_live() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class LineInterval(NamedTuple):
    """How often a plain progress line is due: after so many seconds and documents."""

    seconds: float = PLAIN_SECONDS
    documents: int = 0


class Reporter:
    """Shows a run's progress: a live line on a terminal, a plain line now and then elsewhere.

    Use it as a context manager and call it with each Progress. ``first`` is the first one, with
    what an earlier run had done; it stays None if there is nothing to do.
    """

    def __init__(self, interval: LineInterval | None = None) -> None:
        self._mode = "quiet" if _quiet else "live" if is_live() else "plain"
        self._interval = interval or LineInterval()
        self._began = self._told = time.monotonic()
        self._told_documents = 0
        self._bar = Bar(sys.stderr, stays=False)
        self.first: Progress | None = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """How long it has existed."""
        return time.monotonic() - self._began

    def __call__(self, progress: Progress) -> None:
        self.first = self.first or progress
        if self._mode == "live":
            self._bar.draw(progress)
        elif self._mode == "plain":
            now, more = time.monotonic(), progress.documents - self._told_documents
            if now - self._told >= self._interval.seconds and more >= self._interval.documents:
                self._told, self._told_documents = now, progress.documents
                say(f"tokpack: {progress.stage} {describe(progress, self.first)}")
