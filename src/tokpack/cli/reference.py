"""All commands with their flags, as data: for completion in shells, and for the reference page."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, NamedTuple

from tokpack.cli.main import COMMANDS, module_of
from tokpack.cli.parser import COMMON, flag_text, shown_names

if TYPE_CHECKING:
    from tokpack.cli.parser import Flag, Page


class Option(NamedTuple):
    """One flag: how a page shows it, its names, what its value is ("" for none), words it can be.

    ``aliases`` are names that the page does not show, for people who know them.
    """

    text: str
    names: tuple[str, ...]
    aliases: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str


class CommandPage(NamedTuple):
    """One command as its help page has it; ``groups`` are titles with options."""

    name: str
    summary: str
    usage: str
    groups: list[tuple[str, list[Option]]]
    epilog: str


def commands() -> list[CommandPage]:
    """All commands, in the order of the help page."""
    found = []
    for name in COMMANDS:
        module = importlib.import_module(module_of(name))
        found.append(_training(module) if name == "train" else _of_page(module.PAGE))
    return found


def _of_page(page: Page) -> CommandPage:
    groups = [
        (group.title, [_option(flag) for flag in group.flags])
        for group in (*page.groups, COMMON)
        if not group.hidden
    ]
    usage = f"tokpack {page.command} {page.usage}"
    return CommandPage(page.command, page.summary, usage, groups, page.epilog)


def _option(flag: Flag) -> Option:
    every, settings = flag
    names = shown_names(every)
    if settings.get("action") is argparse.BooleanOptionalAction:
        names = (*names, *(name.replace("--", "--no-") for name in names if name[:2] == "--"))
    choices = tuple(settings.get("choices", ()))
    takes = settings.get("action") in (None, "append", "extend")
    value = (settings.get("metavar") or "|".join(choices)) if takes else ""
    aliases = tuple(name for name in every if name not in names)
    return Option(flag_text(*flag), names, aliases, value, choices, settings["help"])


def _training(module: object) -> CommandPage:
    """`tokpack train`, whose flags are settings of another program's kind."""
    from tokpack.cli.run_estimate import PLAN
    from tokpack.configuration.config import GROUPS
    from tokpack.configuration.flags import SETTINGS

    groups = []
    for title in GROUPS:
        options = []
        for one in SETTINGS.values():
            if one.group == title and one.help:
                text, words = one.row()
                name = one.name.replace("_", "-")
                on = () if one.kind is bool and one.default else (f"--{name}",)
                off = (f"--no-{name}",) if one.kind is bool and one.default is not False else ()
                names = (*on, *off)
                options.append(
                    Option(text, names, (), one.value, tuple(one.choices.split()), words)
                )
        groups.append((title, options))
    groups.append((PLAN.title, [_option(flag) for flag in PLAN.flags]))
    usage = f"tokpack {module.USAGE}"  # type: ignore[attr-defined]
    return CommandPage("train", module.SUMMARY, usage, groups, module.EPILOG)  # type: ignore[attr-defined]
