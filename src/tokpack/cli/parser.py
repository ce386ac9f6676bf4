"""Flags as data: a table of groups becomes a parser, a help page and a list for suggestions."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tokpack.display import nearest
from tokpack.errors import UsageError
from tokpack.quantities import size_of, without_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

COLUMN = 30
_FROM_THE_END = re.compile(r"-\d+[:,].*")  # documents -3:, which argparse takes for a flag


class Flag(NamedTuple):
    """One option: its names, and what ``argparse.add_argument`` is told about it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Group(NamedTuple):
    """Options that the help page shows together.

    ``rare`` ones are shown by ``--help-all`` alone, ``hidden`` ones, of other programs, by none.
    """

    title: str
    flags: tuple[Flag, ...]
    rare: bool = False
    hidden: bool = False


def flag(*names: str, **settings: Any) -> Flag:
    """Declare one option."""
    return Flag(names, settings)


class Page(NamedTuple):
    """One command: what its help page says and which flags it takes."""

    command: str
    summary: str
    groups: tuple[Group, ...]
    epilog: str
    usage: str = "INPUT... [flags]"


COMMON = Group(
    "",
    (
        flag("-q", "--quiet", action="store_true", help="say nothing but errors"),
        flag(
            "--debug",
            action="store_true",
            help="show the traceback of an error, and what was read from stores",
        ),
        flag("-h", "--help", action="store_true", help="show this page"),
    ),
)
_HELP_ALL = Group(
    "", (flag("--help-all", action="store_true", help="show this page with the rare flags"),)
)


def parse(page: Page, argv: Sequence[str]) -> argparse.Namespace | None:
    """Parse the arguments of one command; None when it was asked for help, which is printed.

    Underscores in a flag's name are dashes, ``--flag=value`` is ``--flag value``, inputs and flags
    may be mixed; what is behind ``--`` is an input, whatever it looks like. Raises UsageError, with
    the nearest known flag for an unknown one.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    flags = _with_dashes(argv[:end])
    if {"-h", "--help", "--help-all"}.intersection(flags):
        sys.stdout.write(_help(page, rare="--help-all" in flags))
        return None
    parser = Parser(prog=f"tokpack {page.command}", allow_abbrev=False, add_help=False)
    parser.add_argument("inputs", nargs="*", metavar="INPUT")
    known: list[str] = []
    for group in (*page.groups, COMMON):
        for names, settings in group.flags:
            known += parser.add_argument(*names, **settings).option_strings
    _refuse_unknown(flags, known)
    arguments = parser.parse_intermixed_args(flags)
    arguments.inputs += argv[end + 1 :]
    return arguments


def flag_names(*groups: Group) -> dict[str, str]:
    """The flag of each name that the command's settings have in Python."""
    flags = {}
    for group in groups:
        for names, settings in group.flags:
            first = next(name for name in names if name.startswith("--"))
            flags[settings.get("dest") or first.removeprefix("--").replace("-", "_")] = first
    return flags


def number(minimum: int) -> Callable[[str], int]:
    """A converter for whole numbers of at least ``minimum``."""

    def convert(text: str) -> int:
        try:
            value = int(without_unit(text.replace(",", "").replace("_", "")))
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number of at least {minimum}"
            )
        return value

    return convert


def output_prefix(text: str) -> str:
    """Convert the PREFIX of a dataset to be made; ``x.bin`` and ``x.idx`` stand for ``x``."""
    stem, suffix = os.path.splitext(text)
    return stem if suffix in (".bin", ".idx") else text


def size(text: str) -> int:
    """Convert a number of bytes, such as ``500MB`` or ``1g``."""
    try:
        return size_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _with_dashes(argv: Sequence[str]) -> list[str]:
    result: list[str] = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            result.append(name.replace("_", "-") + equals + value)
        elif _FROM_THE_END.fullmatch(argument) and result and result[-1].startswith("--"):
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result


def _refuse_unknown(flags: Sequence[str], known: Sequence[str]) -> None:
    for argument in flags:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            hint = nearest(name, known)
            raise UsageError(f"unknown flag {name}" + (f"; did you mean {hint}?" if hint else ""))


def page_of(
    summary: str,
    usage: str,
    groups: Iterable[tuple[str, Iterable[tuple[str, str]]]],
    epilog: str,
    column: int = COLUMN,
) -> str:
    """A help page: groups with a title, and rows of a flag and its help, from ``column`` on."""
    width = max(60, min(shutil.get_terminal_size().columns, 100))
    lines = [summary, "", f"usage: tokpack {usage}"]
    for title, rows in groups:
        lines += ["", f"{title}:"] if title else []
        for left, text in rows:
            lines += _row(left, text, width, column)
    return "\n".join([*lines, "", epilog])


def _help(page: Page, *, rare: bool) -> str:
    has_more = any(group.rare for group in page.groups)
    groups = [
        (group.title, [(flag_text(*one), one.settings["help"]) for one in group.flags])
        for group in (*page.groups, COMMON, *((_HELP_ALL,) if has_more else ()))
        if not group.hidden and (rare or not group.rare)
    ]
    return page_of(page.summary, f"{page.command} {page.usage}", groups, page.epilog)


def shown_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that pages show: a short one, and the first long one; others are aliases."""
    return names[:2] if len(names[0]) == 2 else names[:1]


def flag_text(names: tuple[str, ...], settings: dict[str, Any]) -> str:
    """How pages show a flag: its short name and its first long one, and its value."""
    names = shown_names(names)
    if settings.get("action") is argparse.BooleanOptionalAction:
        names = tuple(name.replace("--", "--[no-]") for name in names)
    value = settings.get("metavar") or "|".join(settings.get("choices", ()))
    more = "..." if settings.get("nargs") == "+" else ""
    return ", ".join(names) + (f" {value}{more}" if value else "")


def _row(left: str, text: str, width: int, column: int) -> list[str]:
    lines = textwrap.wrap(text, width - column, break_on_hyphens=False)
    first = f"  {left:<{column - 2}}"
    if len(left) > column - 4:
        lines.insert(0, "")
    return [(first + lines[0]).rstrip(), *(" " * column + line for line in lines[1:])]


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")
