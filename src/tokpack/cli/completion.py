"""``tokpack --completion SHELL``: a script with which a shell completes commands and flags."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import shtab

from tokpack.cli.main import ALIASES
from tokpack.cli.reference import commands
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from tokpack.cli.reference import CommandPage


def completion_script(shell: str) -> str:
    """The script for a shell. UsageError for one that shtab does not know."""
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise UsageError(f"--completion {shell or '(nothing)'}: name one of {known}")
    return str(shtab.complete(_parser(), shell))


def _parser() -> argparse.ArgumentParser:
    """All commands as an argparse parser, which is what shtab reads."""
    parser = argparse.ArgumentParser("tokpack")
    parser.add_argument("--version", action="store_true", help="show versions")
    levels: dict[str, Any] = {"": parser.add_subparsers()}
    for command in commands():
        group, _, name = command.name.rpartition(" ")
        if group not in levels:  # no command by itself
            levels[group] = levels[""].add_parser(group, help="").add_subparsers()
        own = levels[group].add_parser(name, help=command.summary, add_help=False)
        _add_flags(own, command)
        if name == "tokenizer":  # a command, and the first word of another
            levels[name] = own.add_subparsers()
        for alias in (word for word, target in ALIASES.items() if target == command.name):
            _add_flags(levels[""].add_parser(alias, help=command.summary, add_help=False), command)
    return parser


def _add_flags(parser: argparse.ArgumentParser, command: CommandPage) -> None:
    for option in (option for _, options in command.groups for option in options):
        text = option.help.replace("%", "%%")
        if not option.value:
            parser.add_argument(*option.names, action="store_true", help=text)
            continue
        choices = option.choices or None
        action = parser.add_argument(*option.names, choices=choices, metavar="X", help=text)
        if not choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    if command.name != "tokenizer":
        parser.add_argument("inputs", nargs="*").complete = shtab.FILE  # type: ignore[attr-defined]
