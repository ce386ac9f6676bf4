"""Find the command, run it, and turn its error into one message and an exit code.

Exit codes: 0 done, 1 the input or the request is wrong, 2 the program failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tokpack import wall
from tokpack.cli import terminal
from tokpack.cli.loading import without_collection
from tokpack.display import discard, nearest, tell
from tokpack.errors import TokpackError, UsageError
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.cli.parser import Page

INTERRUPTED = 130
_TAKE_SETTINGS = ("train", "blend", "samples", "index")  # commands that take files of options
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Parts of messages that mean too little memory though the error is no MemoryError: of libraries,
# maps and threads.
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't start new thread")


# Grouped by purpose; a command of two words is in a module such as shards_plan.
GROUPS = {
    "make": {
        "encode": "text -> token ids in .bin and .idx",
        "shards plan": "a run -> shards for many machines",
        "shards status": "which shards are done, failed, lost",
        "shards commit": "all shards -> one dataset",
        "shards task": "a task of a command with --engine",
        "tokenizer": "what a tokenizer is, its speed, its tokens",
        "bench": "compare its speed with other libraries, on your text",
        "tokenizer train": "text -> a tokenizer.json or a vocabulary",
    },
    "look": {
        "inspect": "what a dataset is, its documents, where they are from",
        "stats": "lengths, frequencies, duplicates, plots",
        "verify": "every byte against the manifest",
        "view": "datasets, blends and runs in a browser",
        "doctor": "what is installed, what this machine can do",
    },
    "change": {
        "merge": "datasets -> one, or a manifest of them",
        "select": "datasets -> a view of some of their documents",
        "dedup": "datasets -> a view without copies, exact or near",
        "decontaminate": "datasets -> a view without evaluation texts",
        "split": "a dataset -> parts, train and valid",
        "adopt": "another program's dataset -> one with a manifest",
        "convert": "from and to other formats, other dtypes",
    },
    "blend": {
        "blend": "datasets and weights -> the plan of a blend, its index arrays",
        "samples": "what a step of training saw, and when a document",
    },
    "train": {
        "train": "a blend -> a GPT, on one CPU or many GPUs",
        "generate": "continue a text with a checkpoint",
        "model import": "a model of another program -> a checkpoint",
        "model export": "a checkpoint -> a Hugging Face model",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
_RESUMABLE = ("encode",)  # a stopped run of these can be continued
# Former names, and short names for commands that are typed often.
ALIASES = {
    "plan": "shards plan",
    "status": "shards status",
    "commit": "shards commit",
    "vocab": "tokenizer train",
    "import": "model import",
    "export": "model export",
    "trace": "inspect",
}
_IMPLIED = {"trace": ["--trace"]}

# Former commands, and those that do their work now.
MOVED = {
    "index": "tokpack blend BLEND --cache DIR",
    "completion": "tokpack --completion SHELL",
}

HELP = """\
tokpack turns text into training tokens.

usage: tokpack COMMAND ...
{commands}

  tokpack encode the-pile/*.jsonl.zst     writes the-pile.bin, .idx and .json
  tokpack encode wiki.jsonl -o data/wiki --tokenizer neox
  tokpack COMMAND --help                  the flags of a command; --help-all: the rare ones too
  tokpack --version; tokpack --completion bash|zsh|fish
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tokpack ARGV`` and return its exit code; ``argv`` defaults to the process's own."""
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, arguments = command_of(arguments or ["--help"])
    try:
        code = _dispatch(name, arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        discard(sys.stdout)
        return 0
    except KeyboardInterrupt as interrupt:
        hint = str(interrupt)
        if name in _RESUMABLE and not hint:
            hint = "run the same command again to resume"
        # Python remembers an interrupt that happens inside of an exec, for instance while a
        # dataclass is being defined, and would end by SIGINT although it was caught. Another exec
        # makes it forget.
        exec("")
        tell(f"tokpack: interrupted{'; ' if hint else ''}{hint}")
        return INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            import traceback

            for line in traceback.format_exc().splitlines():
                tell(line)
        return _explain(error, name, arguments)
    finally:
        if "--debug" in arguments:
            _say_amounts()


def command_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the command, of one word or two, and its arguments."""
    if words[0].startswith("--completion="):
        words = [*words[0].split("=", 1), *words[1:]]
    if words[0] == "help" and words[1:]:
        words = [*words[1:], "--help"]
    two = " ".join(words[:2])
    if two in COMMANDS:
        return two, list(words[2:])
    return ALIASES.get(words[0], words[0]), [*_IMPLIED.get(words[0], []), *words[1:]]


def _dispatch(name: str, arguments: Sequence[str]) -> int:
    if name in COMMANDS:
        return _run(name, arguments)
    sys.stdout.write(_text_of(name, arguments))
    return 0


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command. Its module, with everything that this imports, is loaded only now."""
    with without_collection():
        command = module_of(name)
        from tokpack.cli.parser import help_asked, parse

    code = 0
    if text := help_asked(command.PAGE, arguments):
        sys.stdout.write(text)
    elif command.PAGE.takes_words:
        code = command.run(arguments)
    else:
        parsed = parse(command.PAGE, arguments)
        with terminal.talk(quiet=parsed.quiet, flags=lambda: _flags_of(name)):
            code = command.run(parsed)
    return code


def _text_of(name: str, arguments: Sequence[str]) -> str:
    """The output for a word that is not a command, such as --help. UsageError."""
    if name in ("-h", "--help", "--help-all", "help"):
        lines = []
        for title, group in GROUPS.items():
            lines += ["", f"{title}:"]
            lines += [f"  {key:<15} {summary}" for key, summary in group.items()]
        return HELP.format(commands="\n".join(lines))
    if _second_words(name) and {"-h", "--help", "--help-all"}.intersection(arguments):
        lines = [f"  {key:<15} {COMMANDS[key]}" for key in _second_words(name)]
        return "\n".join([*lines, ""])
    if name in ("-V", "--version", "version"):
        from tokpack.cli.installed import version_text

        return version_text()
    if name == "--completion":
        from tokpack.cli.completion import completion_script

        return completion_script("".join(arguments[:1]), pages(), ALIASES)
    raise UsageError(_unknown_command(name))


def pages() -> list[Page]:
    """The help pages of all commands, in the order of ``tokpack --help``."""
    return [module_of(name).PAGE for name in COMMANDS]


def _say_amounts() -> None:
    """Print how much this process, without its workers, has read from stores and written to
    them.
    """
    from tokpack.storage import amounts

    with suppress(TokpackError):
        requests, read, written = amounts()
        if requests:
            sent = f", {bytes_text(written)} written" if written else ""
            tell(f"tokpack: stores: {requests} requests, {bytes_text(read)} read{sent}")


def module_of(name: str) -> Any:
    """The module of a command, loaded when it is first needed; commands of training are the
    trainer's.
    """
    module = name.replace(" ", "_")
    if name in GROUPS["train"]:
        return wall.entry_point(module, wall.COMMANDS)
    return importlib.import_module(f"tokpack.cli.commands.{module}")


def _second_words(name: str) -> list[str]:
    """The commands of two words that begin with this word, if it is not a command itself."""
    return [key for key in COMMANDS if key.startswith(f"{name} ") and name not in COMMANDS]


def _unknown_command(name: str) -> str:
    if second := _second_words(name):
        return f"name one of {', '.join(f'tokpack {key}' for key in second)}"
    if name in MOVED:
        return f"there is no command {name!r} any more: use `{MOVED[name]}`"
    if name.startswith("-") or os.path.exists(name):
        return f"no command before {name!r}: did you mean `tokpack encode {name} ...`?"
    hint = nearest(name, [*COMMANDS, *ALIASES])
    return f"unknown command {name!r}" + (
        f"; did you mean {hint}?" if hint else f"; commands: {', '.join(COMMANDS)}"
    )


def _explain(error: Exception, name: str, arguments: Sequence[str]) -> int:
    if isinstance(error, TokpackError):
        flags: Mapping[str, str] = _flags_of(name)
        if name in _TAKE_SETTINGS:
            flags = wall.entry_point("flags_typed")(flags, arguments)
        terminal.error(terminal.fault(error, flags))
        return error.exit_code
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        # tokpack writes its own files under their names, so this is a redirection of the shell.
        terminal.error(f"cannot write standard output: {error.strerror}")
        discard(sys.stdout)
    elif isinstance(error, OSError):
        terminal.error(str(error) or type(error).__name__)
    elif isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        terminal.error(f"there is not enough memory{f' ({error})' if str(error) else ''}")
    else:
        terminal.error(f"{type(error).__name__}: {error}")
        tell("This is a fault in tokpack. Run again with --debug to see where, and report it.")
    return 2


def _flags_of(command: str) -> dict[str, str]:
    """The flags of a command that was loaded, by the names of its settings in Python."""
    if command not in COMMANDS or "tokpack.cli.parser" not in sys.modules:  # not loaded
        return {}
    from tokpack.cli import parser

    return parser.flag_names(*module_of(command).PAGE.groups)


def _prepare_streams() -> None:
    # If it was started with `>&-` there is no such stream, and the next file that is opened would
    # get its number.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names that are no UTF-8 go out as they are
        sys.stdout.reconfigure(errors="surrogateescape")
