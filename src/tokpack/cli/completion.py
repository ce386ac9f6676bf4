"""``tokpack --completion SHELL``: a script with which a shell completes commands and flags."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import shtab

from tokpack.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.cli.parser import Page


def completion_script(shell: str, pages: Sequence[Page], aliases: Mapping[str, str]) -> str:
    """The script for a shell. UsageError for a shell that shtab does not know."""
    if shell not in shtab.SUPPORTED_SHELLS:
        shells = ", ".join(shtab.SUPPORTED_SHELLS)
        raise UsageError(f"--completion {shell or '(nothing)'}: name one of {shells}")
    return str(shtab.complete(_parser(pages, aliases), shell))


def _parser(pages: Sequence[Page], aliases: Mapping[str, str]) -> argparse.ArgumentParser:
    """All commands as an argparse parser, which shtab can read."""
    parser = argparse.ArgumentParser("tokpack")
    parser.add_argument("--version", action="store_true", help="show versions")
    levels: dict[str, Any] = {"": parser.add_subparsers()}
    for page in pages:
        group, _, name = page.command.rpartition(" ")
        if group not in levels:  # no command by itself
            levels[group] = levels[""].add_parser(group, help="").add_subparsers()
        command = levels[group].add_parser(name, help=page.summary, add_help=False)
        _add_flags(command, page)
        if name == "tokenizer":  # a command itself, and the first word of another
            levels[name] = command.add_subparsers()
        for alias in (word for word, target in aliases.items() if target == page.command):
            _add_flags(levels[""].add_parser(alias, help=page.summary, add_help=False), page)
    return parser


def _add_flags(parser: argparse.ArgumentParser, page: Page) -> None:
    for option in (option for group in page.shown_groups for option in group.flags):
        settings = {**option.settings, "help": option.settings["help"].replace("%", "%%")}
        action = parser.add_argument(*option.shown_names, **settings)
        if action.nargs != 0 and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    if page.command != "tokenizer":
        parser.add_argument("inputs", nargs="*").complete = shtab.FILE  # type: ignore[attr-defined]
