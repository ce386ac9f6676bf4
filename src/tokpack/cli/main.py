"""Find the command, run it, and turn what it raises into one message and an exit code.

Exit codes: 0 done, 1 the input or the request is wrong, 2 the program failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tokpack.cli import terminal
from tokpack.display import discard, nearest
from tokpack.errors import TokpackError, UsageError
from tokpack.quantities import bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandEntry(NamedTuple):
    summary: str
    resumable: bool


COMMANDS = {
    "encode": CommandEntry("text -> token ids in .bin and .idx", True),
    "plan": CommandEntry("a run -> shards for many machines", False),
    "status": CommandEntry("which shards are done, failed, lost", False),
    "commit": CommandEntry("all shards -> one dataset", False),
    "verify": CommandEntry("is a dataset whole; mend its index", False),
    "vocab": CommandEntry("text -> a vocabulary or a tokenizer.json", False),
    "tokenizer": CommandEntry("what a tokenizer is, its speed, its tokens", False),
    "inspect": CommandEntry("what a dataset is, and its documents", False),
    "stats": CommandEntry("lengths, frequencies, duplicates, plots", False),
    "trace": CommandEntry("document -> its input and line, and back", False),
    "merge": CommandEntry("datasets -> one, or a manifest of them", False),
    "split": CommandEntry("a dataset -> parts, train and valid", False),
    "convert": CommandEntry("from and to other formats, other dtypes", False),
    "blend": CommandEntry("datasets and weights -> the plan of a blend", False),
    "index": CommandEntry("build what a blend needs beforehand", False),
    "samples": CommandEntry("what a step of training saw, and when a document", False),
    "train": CommandEntry("a blend -> a GPT, on one CPU or many GPUs", False),
    "import": CommandEntry("a model of another program -> a checkpoint", False),
    "view": CommandEntry("datasets, blends and runs in a browser", False),
    "export": CommandEntry("a checkpoint -> a Hugging Face model", False),
    "generate": CommandEntry("a checkpoint goes on with a text", False),
    "completion": CommandEntry("complete commands and flags in a shell", False),
    "doctor": CommandEntry("what is installed, what this machine can do", False),
}

HELP = """\
tokpack turns text into training tokens.

usage: tokpack COMMAND ...

{commands}

  tokpack encode the-pile/*.jsonl.zst     writes the-pile.bin, .idx and .json
  tokpack encode wiki.jsonl -o data/wiki --tokenizer neox
  tokpack COMMAND --help                  the flags of a command
  tokpack --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tokpack ARGV`` and return its exit code; ``argv`` defaults to the process's own."""
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    try:
        code = _dispatch(name, arguments[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        discard(sys.stdout)
        return 0
    except KeyboardInterrupt:
        resumable = name in COMMANDS and COMMANDS[name].resumable
        hint = "; run the same command again to resume" if resumable else ""
        terminal.say(f"tokpack: interrupted{hint}")
        return INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            import traceback

            for line in traceback.format_exc().splitlines():
                terminal.say(line)
        return _explain(error, arguments)
    finally:
        if "--debug" in arguments:
            _say_amounts()


def _dispatch(name: str, arguments: Sequence[str]) -> int:
    if name in ("-h", "--help", "help"):
        rows = "\n".join(f"  {key:<10} {command.summary}" for key, command in COMMANDS.items())
        sys.stdout.write(HELP.format(commands=rows))
        return 0
    if name in ("-V", "--version", "version"):
        from tokpack.cli.installed import version_text

        sys.stdout.write(version_text())
        return 0
    if name not in COMMANDS:
        raise UsageError(_unknown_command(name))
    # By name: a command is loaded, with all that it imports, only when it is asked for.
    command = importlib.import_module(f"tokpack.cli.commands.{name}")
    if name == "train":  # whose flags are the settings of a run
        code: int = command.run(arguments)
        return code
    from tokpack.cli.parser import parse

    parsed = parse(command.PAGE, arguments)
    return 0 if parsed is None else command.run(parsed)


def _say_amounts() -> None:
    """How much this process, without its workers, read from stores and wrote to them."""
    from tokpack.stores import access

    with suppress(TokpackError):
        requests, read, written = access.amounts()
        if requests:
            sent = f", {bytes_text(written)} written" if written else ""
            terminal.say(f"tokpack: stores: {requests} requests, {bytes_text(read)} read{sent}")


def _unknown_command(name: str) -> str:
    if name.startswith("-") or os.path.exists(name):
        return f"no command before {name!r}: did you mean `tokpack encode {name} ...`?"
    hint = nearest(name, COMMANDS)
    return f"unknown command {name!r}" + (
        f"; did you mean {hint}?" if hint else f"; commands: {', '.join(COMMANDS)}"
    )


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    if isinstance(error, TokpackError):
        from tokpack.configuration.setting import in_flags

        flags = _flags_of(arguments[0]) if arguments else {}
        terminal.error(in_flags(str(error), flags, arguments[1:]))
        return error.exit_code
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        # Every file of ours is written under its name, so this is what the shell redirected.
        terminal.error(f"cannot write standard output: {error.strerror}")
        discard(sys.stdout)
    elif isinstance(error, OSError):
        terminal.error(str(error) or type(error).__name__)
    elif isinstance(error, MemoryError):
        terminal.error(f"there is not enough memory{f' ({error})' if str(error) else ''}")
    else:
        terminal.error(f"{type(error).__name__}: {error}")
        terminal.say(
            "This is a fault in tokpack. Run again with --debug to see where, and report it."
        )
    return 2


def _flags_of(command: str) -> dict[str, str]:
    """The flags of a command that was loaded, by the names of its settings in Python."""
    from tokpack.cli import parser

    if command == "train":
        from tokpack.cli.layout_table import PLAN
        from tokpack.configuration.flags import flag_names

        return flag_names() | parser.flag_names(PLAN)
    page = getattr(sys.modules.get(f"tokpack.cli.commands.{command}"), "PAGE", None)
    return parser.flag_names(*page.groups) if page else {}


def _prepare_streams() -> None:
    # Started with `>&-` there is no such stream, and the next file opened would take its number.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names that are no UTF-8 go out as they are
        sys.stdout.reconfigure(errors="surrogateescape")
