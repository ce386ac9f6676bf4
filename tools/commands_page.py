"""Writes docs/commands.md: every command with its flags, as their help pages have them."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.cli.reference import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.cli.reference import CommandPage, Option

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """\
# Commands

Made by `python tools/commands_page.py` from what `tokpack COMMAND --help` prints; do not edit.

Flags and inputs may be mixed, `--flag=value` is `--flag value`, underscores in a flag's name are
dashes, and what is behind `--` is an input, whatever it looks like. Counts take 1k, 1.5M, 1B. Every
command but `train` has `--quiet` (`-q`), `--debug` and `--help` (`-h`) too.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for command in commands() for line in _command(command))])


def _command(command: CommandPage) -> Iterator[str]:
    yield f"## tokpack {command.name}\n"
    yield f"{command.summary}\n"
    yield f"    {command.usage}\n"
    for title, options in command.groups:
        if title:
            yield f"| {title} | |\n|---|---|"
            yield from map(_row, options)
            yield ""
    yield "".join(f"    {line}".rstrip() + "\n" for line in command.epilog.strip().splitlines())


def _row(option: Option) -> str:
    names = ", ".join(map(_code, option.aliases))
    also = f"; also {names}" if names else ""
    return f"| {_code(option.text)} | {_escaped(option.help)}{also} |"


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if "|" in text else f"`{text}`"


def _escaped(text: str) -> str:
    """Readers of Markdown disagree about a bar in a table, not about what HTML calls it."""
    return html.escape(text, quote=False).replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
