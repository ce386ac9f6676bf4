"""Writes what follows from the declarations of commands and options.

That is docs/commands.md, every command with its flags; the options in docs/api.md; and
src/tokpack/keywords.pyi, the options as types of keyword arguments, for type checkers: these can
derive none from a record.
"""

from __future__ import annotations

import html
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tokpack.cli.main import pages
from tokpack.encoding.options import EncodeOptions
from tokpack.option import options_of
from tokpack.samples.blend.spec import BlendSpec
from tokpack.samples.settings import SampleSettings, Settings
from tokpack.tokenizers import TokenizerFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.cli.parser import Flag, Page
    from tokpack.option import Option

ROOT = Path(__file__).parents[1]
PAGE, API = ROOT / "docs" / "commands.md", ROOT / "docs" / "api.md"
KEYWORDS = ROOT / "src" / "tokpack" / "keywords.pyi"
TABLES = {EncodeOptions: "encode", Settings: "GPTDataset"}  # whose options each record has
BEGIN, END = "<!-- options of {}: made by tools/commands_page.py -->", "<!-- end -->"
LONG = 4  # flags of a group that is shown once, for the first of the commands that have it
HEAD = """\
# Commands

Made by `python tools/commands_page.py` from what `tokpack COMMAND --help` prints; do not edit.

Flags and inputs may be mixed, `--flag=value` is `--flag value`, underscores in a flag's name are
dashes, and what is behind `--` is an input, whatever it looks like. Counts take 1k, 1.5M, 1B. Every
command but `train` has `--quiet` (`-q`), `--debug` and `--help` (`-h`) too. Where a command takes a
tokenizer, `--help` shows `--tokenizer`, and `--help-all` the other ways to name one.

`plan`, `status`, `commit`, `vocab`, `import` and `export` alone are `shards plan`, `shards status`,
`shards commit`, `tokenizer train`, `model import` and `model export`.

`tokpack --completion SHELL` prints a script with which bash, zsh or fish completes all of them:

    tokpack --completion bash > ~/.local/share/bash-completion/completions/tokpack
    tokpack --completion zsh > ~/.zfunc/_tokpack      # in a folder of $fpath
    tokpack --completion fish > ~/.config/fish/completions/tokpack.fish
"""
# What the types of options need; mypy names what is missing.
KEYWORDS_HEAD = '''\
"""Made by `python tools/commands_page.py` from the records of options; do not edit."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from tokpack.chat.rendered import Rewriting, ToolArguments, Truncate
from tokpack.encoding.options import DType, Empty, OnError, SpecialTokens
from tokpack.samples.blend.spec import Changes, Entries
from tokpack.samples.fim import FIM
from tokpack.samples.orders.rules import OrderName, PackingName
from tokpack.tokenizers import TokenizerFiles
'''
# Each type: its base, its record, and the fields that are no keywords of its functions.
OF_ENCODE = {"inputs", "output", "keys"}  # which its functions declare
TYPES = {
    "PlanRequest": (
        *("TokenizerFiles", EncodeOptions),
        OF_ENCODE | {"files", "workers", "scratch", "report_to"},
    ),
    "EncodeRequest": ("PlanRequest", EncodeOptions, OF_ENCODE),
    "CommonOptions": ("TypedDict", SampleSettings, set[str]()),
    "SampleOptions": ("CommonOptions", Settings, {"seq_length"}),
    "BlendOptions": ("CommonOptions", BlendSpec, {"source"}),
}


def page() -> str:
    """The whole page."""
    shown: dict[tuple[str, ...], str] = {}  # the rows of a group, and the first command with it
    return "\n".join([HEAD, *(line for one in pages() for line in _command(one, shown))])


def api_page(text: str) -> str:
    """docs/api.md, ``text``, with the tables of options as they are now."""
    for record, name in TABLES.items():
        begin = BEGIN.format(name)
        before, _, rest = text.partition(begin)
        rows = "".join(map(_option, options_of(record).values()))
        table = f"| option | type | default | |\n|---|---|---|---|\n{rows}"
        text = f"{before}{begin}\n{table}{END}{rest.partition(END)[2]}"
    return text


def keywords() -> str:
    """The whole of src/tokpack/keywords.pyi."""
    known = {"TypedDict": set[str](), "TokenizerFiles": {*TokenizerFiles.__annotations__}}
    lines = [KEYWORDS_HEAD]
    for name, (base, record, without) in TYPES.items():
        taken = [one for one in fields(record) if one.name not in known[base] | without]
        known[name] = known[base].union(one.name for one in taken)
        lines.append(f"class {name}({base}, total=False):")
        for one in taken:
            # The default of a mapping is shown as None, which encode takes, but no blend.
            hint = one.type if record is BlendSpec else options_of(record)[one.name].hint
            lines.append(f"    {one.name}: {hint}")
        lines.append("")
    return "\n".join(lines)


def _option(one: Option) -> str:
    if not one.help:
        return ""
    default = _code(repr(one.default))
    return f"| `{one.name}` | {_code(one.hint)} | {default} | {_escaped(one.said())} |\n"


def _command(command: Page, shown: dict[tuple[str, ...], str]) -> Iterator[str]:
    yield f"## tokpack {command.command}\n"
    yield f"{command.summary}\n"
    yield f"    tokpack {command.command} {command.usage}\n"
    for group in command.shown_groups:
        rows = tuple(map(_row, group.flags))
        first = shown.setdefault(rows, command.command)
        if first != command.command and len(rows) >= LONG:
            link = f"[tokpack {first}](#tokpack-{first.replace(' ', '-')})"
            yield f"{group.title.capitalize()}: as for {link}.\n"
        elif group.title:
            yield f"| {group.title} | |\n|---|---|"
            yield from rows
            yield ""
    yield "".join(f"    {line}".rstrip() + "\n" for line in command.epilog.strip().splitlines())


def _row(flag: Flag) -> str:
    aliases = (name for name in flag.names if name not in flag.shown_names)
    names = ", ".join(map(_code, aliases))
    also = f"; also {names}" if names else ""
    return f"| {_code(flag.text)} | {_escaped(flag.settings['help'])}{also} |"


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if "|" in text else f"`{text}`"


def _escaped(text: str) -> str:
    """Readers of Markdown disagree about a bar in a table, not about what HTML calls it."""
    return html.escape(text, quote=False).replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")
    API.write_text(api_page(API.read_text(encoding="utf-8")), encoding="utf-8")
