"""``tokpack completion``: a script that completes commands and flags in a shell."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tokpack.cli.parser import Page
from tokpack.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.cli.reference import CommandPage, Option

SHELLS = ("bash", "zsh", "fish")
_FISH_QUOTE = "\\'"
PAGE = Page(
    "completion",
    "Print a script with which a shell completes tokpack's commands and flags.",
    (),
    """\
examples:
  tokpack completion bash > ~/.local/share/bash-completion/completions/tokpack
  tokpack completion zsh > ~/.zfunc/_tokpack      # in a folder of $fpath
  tokpack completion fish > ~/.config/fish/completions/tokpack.fish
""",
    usage="bash|zsh|fish",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack completion``."""
    if len(arguments.inputs) != 1 or arguments.inputs[0] not in SHELLS:
        raise UsageError(f"{' '.join(arguments.inputs) or 'no shell'}: name one of bash, zsh, fish")
    from tokpack.cli.reference import commands

    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.inputs[0]]
    sys.stdout.write("\n".join(write(commands())) + "\n")
    return 0


def _options(command: CommandPage) -> list[Option]:
    return [option for _, options in command.groups for option in options]


def _bash(commands: Sequence[CommandPage]) -> Iterator[str]:
    yield "# bash completion of tokpack"
    yield "_tokpack() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" flags='
    yield '  local before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    names = " ".join(command.name for command in commands)
    yield f'    COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))'
    yield "    return"
    yield "  fi"
    yield '  case "$command $before" in'
    for command in commands:
        for option in _options(command):
            if option.choices:
                patterns = "|".join(f'"{command.name} {name}"' for name in option.names)
                words = " ".join(option.choices)
                yield f'    {patterns}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;'
    shells = " ".join(SHELLS)
    yield f'    "completion completion") COMPREPLY=($(compgen -W "{shells}" -- "$word")); return ;;'
    yield "  esac"
    yield '  case "$command" in'
    for command in commands:
        flags = " ".join(name for option in _options(command) for name in option.names)
        yield f'    {command.name}) flags="{flags}" ;;'
    yield "  esac"
    # What is no flag is left to the shell, which completes names of files.
    yield '  [[ "$word" == -* ]] && COMPREPLY=($(compgen -W "$flags" -- "$word"))'
    yield "}"
    yield "complete -o default -F _tokpack tokpack"


def _quoted(text: str, quote: str = "'\\''") -> str:
    """Text in single quotes; ``quote`` is how one inside is written."""
    return "'" + text.replace("'", quote) + "'"


def _zsh(commands: Sequence[CommandPage]) -> Iterator[str]:
    yield "#compdef tokpack"
    yield "_tokpack() {"
    yield "  if (( CURRENT == 2 )); then"
    yield "    local -a commands=("
    for command in commands:
        yield f"      {_quoted(command.name + ':' + command.summary)}"
    yield "    )"
    yield "    _describe command commands"
    yield "    return"
    yield "  fi"
    yield "  local command=$words[2]"
    yield "  shift words; (( CURRENT-- ))"
    yield '  case "$command" in'
    for command in commands:
        yield f"    {command.name}) _arguments \\"
        for option in _options(command):
            for name in option.names:
                words = re.sub(r"[\[\]:\\]", " ", option.help)
                value = ""
                if option.value:
                    way = f"({' '.join(option.choices)})" if option.choices else "_files"
                    value = f":value:{way}"
                yield f"      {_quoted(f'*{name}[{words}]{value}')} \\"
        rest = f"({' '.join(SHELLS)})" if command.name == "completion" else "_files"
        yield f"      {_quoted(f'*:input:{rest}')} ;;"
    yield "  esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = _tokpack ]; then _tokpack "$@"; else compdef _tokpack tokpack; fi'


def _fish(commands: Sequence[CommandPage]) -> Iterator[str]:
    yield "# fish completion of tokpack"
    for command in commands:
        summary = _quoted(command.summary, _FISH_QUOTE)
        yield f"complete -c tokpack -f -n __fish_use_subcommand -a {command.name} -d {summary}"
    for command in commands:
        seen = f"complete -c tokpack -n '__fish_seen_subcommand_from {command.name}'"
        for option in _options(command):
            for name in option.names:
                kind = "-l" if name.startswith("--") else "-s"
                line = f"{seen} {kind} {name.lstrip('-')} -d {_quoted(option.help, _FISH_QUOTE)}"
                if option.choices:
                    line += f" -x -a {_quoted(' '.join(option.choices))}"
                yield line + (" -r" if option.value and not option.choices else "")
    seen = "complete -c tokpack -n '__fish_seen_subcommand_from completion'"
    yield f"{seen} -f -a '{' '.join(SHELLS)}'"
