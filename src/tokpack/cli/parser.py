"""Flags as data: a table of groups becomes a parser, a help page and a list for suggestions."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from tokpack.display import nearest
from tokpack.errors import UsageError
from tokpack.quantities import count_of, share_of, size_of, without_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokpack.option import Option


T = TypeVar("T")
_COLUMN, _WIDE_COLUMN = 30, 34  # where help begins
_HELP = ("-h", "--help", "--help-all")
_FROM_THE_END = re.compile(r"-\d+[:,].*")  # documents such as -3:, which look like a flag
_ROW = re.compile(r"(-[\w-]+(?:, -[\w-]+)*)(?: (\S+))?")
_UNITS = ", such as 50k, 1.5M, 2G or 3e9"
_CHOICES = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")


class Flag(NamedTuple):
    """An option: its names, and its arguments for ``argparse.add_argument``."""

    names: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names on pages: a short one, and the first long one; others are aliases."""
        return self.names[: 2 if len(self.names[0]) == 2 else 1]

    @property
    def text(self) -> str:
        """Its names and its value, as pages show them."""
        names = ", ".join(self.shown_names)
        if self.settings.get("action") is argparse.BooleanOptionalAction:
            names = names.replace("--", "--[no-]")
        value = self.settings.get("metavar") or "|".join(self.settings.get("choices", ()))
        more = "..." if self.settings.get("nargs") == "+" else ""
        return names + (f" {value}{more}" if value else "")


class Group(NamedTuple):
    """Options that the help page shows together.

    ``rare`` ones are only on the page of ``--help-all``; ``hidden`` ones, of other programs, on
    none.
    """

    title: str
    flags: tuple[Flag, ...]
    rare: bool = False
    hidden: bool = False


class Page(NamedTuple):
    """A command: the content of its help page, and its flags.

    A command that ``takes_words`` parses its arguments itself, and has only the flags of
    ``groups``.
    """

    command: str
    summary: str
    groups: tuple[Group, ...]
    epilog: str
    usage: str = "INPUT... [flags]"
    takes_words: bool = False

    @property
    def shown_groups(self) -> list[Group]:
        """The groups of the page that shows all of them."""
        common = () if self.takes_words else (COMMON,)
        return [group for group in (*self.groups, *common) if not group.hidden]


def flag(*names: str, **settings: Any) -> Flag:
    """Declare one option."""
    return Flag(names, settings)


def flags(table: str, **more: dict[str, Any]) -> tuple[Flag, ...]:
    """Declare the options of a table, which is written like the help page.

    A row has the names of an option, its value, two or more blanks, and its help, which may
    continue in indented lines. An option without a value is a switch; ``N`` is a whole number of at
    least 1, ``SIZE`` a number of bytes, ``a|b`` one of these words, ``NAME...`` several. ``more``
    has further arguments for argparse, by an option's first long name.
    """
    rows: list[str] = []
    for line in textwrap.dedent(table).strip().splitlines():
        if line.startswith("-"):
            rows.append(line)
        else:
            rows[-1] += f" {line.strip()}"
    return tuple(_flag_of_row(row, more) for row in rows)


def _flag_of_row(row: str, more: dict[str, dict[str, Any]]) -> Flag:
    left, _, text = row.partition("  ")
    match = _ROW.fullmatch(left)
    assert match, row
    names, value = match[1].split(", "), match[2]
    settings: dict[str, Any] = {"help": text.strip()}
    if value is None:
        settings["action"] = "store_true"
    elif _CHOICES.fullmatch(value):
        settings["choices"] = tuple(value.split("|"))
    else:
        settings["metavar"] = value.removesuffix("...")
        settings |= {"nargs": "+"} if value.endswith("...") else {}
        settings |= {"type": _TYPES[value]} if value in _TYPES else {}
    return Flag(tuple(names), settings | more.get(_python_name(names), {}))


def _python_name(names: Sequence[str]) -> str:
    first = next(name for name in names if name.startswith("--"))
    return first.removeprefix("--").replace("-", "_")


def parse(page: Page, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of one command.

    Underscores in a flag's name count as dashes, ``--flag=value`` as ``--flag value``; inputs and
    flags may be mixed. Of a flag that is given again the last value counts, of one with several
    values all. Everything after ``--`` is an input. Raises UsageError, with the most
    similar flag for an unknown one.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    words = _with_dashes(argv[:end])
    parser = FlagParser(prog=f"tokpack {page.command}", allow_abbrev=False, add_help=False)
    parser.add_argument("inputs", nargs="*", metavar="INPUT")
    accepted: list[str] = []
    for group in (*page.groups, COMMON):
        for names, settings in group.flags:
            more = {"action": "extend"} if settings.get("nargs") == "+" else {}
            accepted += parser.add_argument(*names, **(more | settings)).option_strings
    _refuse_unknown(words, accepted)
    given = [word.partition("=")[0] for word in words]
    for name in ("--where", "--map"):
        if given.count(name) > 1:
            raise UsageError(f"{name} is given more than once: make one of them")
    arguments = parser.parse_intermixed_args(words)
    arguments.inputs += argv[end + 1 :]
    _check_usage(page, arguments)
    return arguments


def _check_usage(page: Page, arguments: argparse.Namespace) -> None:
    """Refuse fewer or more inputs than the usage line has, or a missing output. UsageError."""
    before, _, output = page.usage.removesuffix(" [flags]").partition(" -o ")
    names, inputs = before.split(), arguments.inputs
    least = sum(not name.startswith("[") for name in names)
    if "..." in before:  # the command itself has a better message about these inputs
        wrong = bool(output) and not inputs and not arguments.output
    else:
        wrong = not least <= len(inputs) <= len(names)
    if wrong:
        what = ", ".join(inputs) or "none"
        usage = f"tokpack {page.command} {page.usage.removesuffix(' [flags]')}"
        raise UsageError(f"expected `{usage}`, given {what}; see --help")
    if output and not arguments.output:
        raise UsageError(f"no output: add -o {output}")


def flag_names(*groups: Group) -> dict[str, str]:
    """The flag for each name of the command's settings in Python."""
    return {
        one.settings.get("dest") or _python_name(one.names): next(
            name for name in one.names if name.startswith("--")
        )
        for group in groups
        for one in group.flags
    }


def given_options(function: Callable[..., Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The given flags of a command that are keyword-only parameters of its function, by name."""
    from inspect import Parameter, signature

    parameters = signature(function).parameters.values()
    names = {one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY}
    given = vars(arguments).items()
    return {name: value for name, value in given if name in names and value is not None}


def keep_one(arguments: argparse.Namespace, *flags: str) -> None:
    """Refuse flags of which only one may be given. UsageError."""
    present = [flag for flag in flags if getattr(arguments, flag.strip("-").replace("-", "_"))]
    if present[1:]:
        raise UsageError(f"{present[0]} and {present[1]} are both given: keep one of them")


def number(minimum: int) -> Callable[[str], int]:
    """A converter for whole numbers of at least ``minimum``."""

    def convert(text: str) -> int:
        value, units = minimum - 1, ""
        try:
            value = count_of(text)
        except ValueError:
            units = _UNITS if text[:1].isdigit() else ""
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number of at least {minimum}{units}"
            )
        return value

    return convert


def positive(text: str) -> float:
    """Convert a number above 0."""
    value, units = 0.0, ""
    try:
        value = float(without_unit(text.replace("_", "").replace(",", "")))
    except ValueError:
        units = _UNITS if text[:1].isdigit() else ""
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0{units}")
    return value


def output_prefix(text: str) -> str:
    """Convert the PREFIX of a dataset to be made; ``x.bin`` and ``x.idx`` stand for ``x``."""
    stem, suffix = os.path.splitext(text)
    return stem if suffix in (".bin", ".idx") else text


def _converted(convert: Callable[[str], T], text: str) -> T:
    try:
        return convert(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


share = partial(_converted, share_of)  # such as 0.1 or 10%
size = partial(_converted, size_of)  # a number of bytes, such as 500MB or 1g
_TYPES = {"N": number(1), "SIZE": size, "X": float, "SHARE": share}


def flags_from(options: Mapping[str, Option]) -> Callable[..., Flag]:
    """A function that makes the flag of one of the options, by its name."""
    own = {name: one.flag for name, one in options.items()}  # what help texts call them

    def flag_of(name: str, *aliases: str, otherwise: str = "", **settings: Any) -> Flag:
        """The flag of an option, with the value None if it is not given.

        ``otherwise`` is the effect of leaving it out, if that is not the one in Python;
        ``settings`` override arguments of argparse.
        """
        one = options[name]
        names = one.flags.split() or [one.flag]
        argument: dict[str, Any] = {"help": one.said(otherwise or one.default_words, own)}
        if one.kind is bool:
            either = one.default is not False and not one.flag.startswith("--no-")
            argument["action"] = argparse.BooleanOptionalAction if either else "store_true"
            argument["default"] = None
        else:
            if one.value:
                argument["metavar"] = one.value
            if one.choices:
                argument["choices"] = one.choices
            elif one.kind is int:
                argument["type"] = size if one.value == "SIZE" else number(int(one.lowest))
            elif one.kind is float:
                argument["type"] = positive
        if f"--{name.replace('_', '-')}" not in names:
            argument["dest"] = name
        return flag(*names, *aliases, **{**argument, **settings})

    return flag_of


COMMON = Group(
    "",
    flags("""
        -q, --quiet  print only errors
        --debug      show the traceback of an error, and what was read from stores
        -h, --help   show this page
    """),
)
_HELP_ALL = Group("", flags("--help-all  show this page with the rare flags"))


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


def _refuse_unknown(words: Sequence[str], names: Sequence[str]) -> None:
    for argument in words:
        name = argument.partition("=")[0]
        # argparse would take -output for -o utput.
        has_one_dash = len(name) > 2 and f"-{name}" in names
        if has_one_dash or (name.startswith("--") and name not in names):
            hint = nearest(name, names)
            raise UsageError(f"unknown flag {name}" + (f"; did you mean {hint}?" if hint else ""))


def help_asked(page: Page, argv: Sequence[str]) -> str:
    """The help page if ``argv`` requests it, else ""."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    flags_of_help = {word.replace("_", "-") for word in argv[:end]}.intersection(_HELP)
    return help_page(page, rare="--help-all" in flags_of_help) if flags_of_help else ""


def help_page(page: Page, *, rare: bool = False) -> str:
    """The output of ``--help``; with ``rare`` that of ``--help-all``."""
    width = max(60, min(shutil.get_terminal_size().columns, 100))
    column = _WIDE_COLUMN if page.takes_words else _COLUMN
    groups = page.shown_groups
    if any(group.rare for group in groups):
        groups.append(_HELP_ALL)
    lines = [page.summary, "", f"usage: tokpack {page.command} {page.usage}"]
    for group in groups:
        if rare or not group.rare:
            lines += ["", f"{group.title}:"] if group.title else []
            for one in group.flags:
                lines += _row(one, width, column)
    return "\n".join([*lines, "", page.epilog])


def _row(one: Flag, width: int, column: int) -> list[str]:
    lines = textwrap.wrap(one.settings["help"], width - column, break_on_hyphens=False)
    first = f"  {one.text:<{column - 2}}"
    if len(one.text) > column - 4:
        lines.insert(0, "")
    return [(first + lines[0]).rstrip(), *(" " * column + line for line in lines[1:])]


class FlagParser(argparse.ArgumentParser):
    """A parser that raises UsageError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")
