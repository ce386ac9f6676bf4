"""Every exception that tokpack raises on purpose.

``exit_code`` is that of the command line: 1, the input or the request is wrong; 2, the program or
the machine failed.
"""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_CHARACTERS = 4000  # of a message, which may quote a file
_MARK = "\0"  # put on both sides of an option in the text of an error
_OPTION = re.compile(f"{_MARK}([\\w.-]+)(=[^{_MARK}]*)?{_MARK}")


def option(name: str, *value: object) -> str:
    """An option, perhaps with a value, for the text of an error.

    The message shows it as in Python, ``name`` or ``name=value``, unless ``worded`` gets flags.
    """
    return f"{_MARK}{name}{''.join(f'={one!r}' for one in value)}{_MARK}"


def worded(text: str, flags: Mapping[str, str] | None = None) -> str:
    """A text with its options written as ``flags``; others keep their Python names."""

    def replaced(match: re.Match[str]) -> str:
        name, value = match[1], match[2] or ""
        flag = (flags or {}).get(name)
        if flag is None:
            return name + value
        if value == "=False":
            return f"--no-{flag.removeprefix('--').removeprefix('no-')}"
        return f"{flag} {'' if value == '=True' else value[1:].strip(chr(39))}".rstrip()

    return _OPTION.sub(replaced, text)


class Remark:
    """A log message with options; Python's log handlers show their Python names."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return worded(self.text)


class TokpackError(Exception):
    """Base class. The message says what happened, to which value, and what to do about it."""

    exit_code = 1

    def __init__(self, text: str = "") -> None:
        super().__init__(
            text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
        )

    def __str__(self) -> str:
        return self.worded({})

    def worded(self, flags: Mapping[str, str]) -> str:
        """The message, with the options that it is about replaced by these ``flags``."""
        return worded(str(self.args[0]), flags)


class UsageError(TokpackError, ValueError):
    """The request itself is wrong: an option, a combination, a name."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raise a UsageError that says what to install if a package cannot be imported.

    A missing module of tokpack itself is a defect, and stays an ImportError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "tokpack").partition(".")[0]
        if package == "tokpack":
            raise
        raise UsageError(
            f"this needs the package {package}: pip install 'tokpack[{extra}]'"
        ) from None


class InputError(TokpackError):
    """An input file is missing, unreadable, empty or broken."""


class NoDatasetError(InputError):
    """There is no dataset of the name ``prefix``; a run that makes it may have begun."""

    prefix = ""


class StoreError(InputError):
    """A store does not answer, refuses, or has a different object than before.

    ``may_be_done``: the requested write may have happened, or may still happen.
    """

    may_be_done = False


class UnreachableError(StoreError):
    """A store failed for longer than requests are retried; it may answer later."""


class RecordError(InputError):
    """One record of an input cannot be used.

    ``source`` is the input's name, ``line`` the 1-based record number in it, ``reason`` one phrase,
    ``advice`` what to do about it, if anything; ``unit`` is what ``line`` counts, if not lines.
    """

    def __init__(
        self, source: str, line: int, reason: str, advice: str = "", unit: str = ""
    ) -> None:
        place = f"{source}, {unit} {line}" if unit else f"{source}:{line}"
        super().__init__(f"{place}: {reason}" + (f"; {advice}" if advice else ""))
        self.source = source
        self.line = line
        self.reason = reason
        self.advice = advice
        self.unit = unit

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, int, str, str, str]]:
        return type(self), (self.source, self.line, self.reason, self.advice, self.unit)


class LimitError(InputError):
    """A template takes more time or memory than any sane one needs."""


class TokenizerError(TokpackError):
    """A tokenizer is unknown, incomplete, contradictory, or fails its self-check."""


class FormatError(TokpackError, ValueError):
    """A dataset file is not what its format says; the message names file, field and value."""


class OutputError(TokpackError):
    """The output cannot be written: full disk, no permission, existing data, a lock.

    ``errno`` is the system's error number, if the system refused.
    """

    errno: int | None = None

    @property
    def no_space(self) -> bool:
        """Whether it failed for lack of space, so that it may succeed later."""
        return self.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BusyError(OutputError):
    """Another process writes to the same place; it may be free later."""


class ResumeError(TokpackError):
    """An unfinished run does not match this one (inputs, tokenizer or options differ)."""


class WorkerError(TokpackError):
    """A worker process died or failed; the run can be resumed."""

    exit_code = 2


class TrainingError(TokpackError):
    """A training run cannot continue: its loss is not finite, or one of its processes has died."""

    exit_code = 2
