"""``python -m tokpack.trainer``: one rank, as torchrun or another launcher starts it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():
    sys.path.pop(0)  # put there by -m: a file of that folder could hide a package

import io
import time
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tokpack.display import message, tell
from tokpack.errors import TokpackError, UsageError, needs_extra, option
from tokpack.storage.disk import release

from .checkpoints.folder import check_own
from .config.flags import RunRequest, flag_names, flags_typed, resolve

if TYPE_CHECKING:
    from .checkpoints.history import TrainingResult


def run(request: RunRequest, world: int) -> TrainingResult:
    """Train as requested, together with the other ranks of ``world``. Raises TokpackError."""
    if request.processes not in (None, world):
        raise UsageError(
            f"{option('nproc')} {request.processes}, but {world} processes were started: use "
            f"`tokpack train --nproc {request.processes}`, or tell another launcher how many"
        )
    config = request.config
    # At once: torch is not imported yet.
    if config.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise UsageError(
            f"{option('engine')} deepspeed needs the package deepspeed: pip install "
            "'tokpack[deepspeed]', or take engine torch, which has ZeRO too"
        )
    if config.save and not config.finetune:
        check_own(config.save, config.load)
    with needs_extra("train"):
        from .loop import train

    return train(config, request.inputs, request.again(launched="WORLD_SIZE" in os.environ))


def main() -> int:
    """Run this rank; print an error as one message, and return the exit code."""
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        sys.stdout.write("The flags are those of `tokpack train --help`.\n")
        return 0
    try:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if words == ["-"]:  # started by `tokpack train --nproc`
            request = RunRequest.from_json(sys.stdin.buffer.read())
            words = list(request.words)
        else:
            request = resolve(words, world)
        run(request, world)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            tell("tokpack: interrupted")
        return 130
    except Exception as error:
        rank = int(os.environ.get("RANK", "0"))
        time.sleep(min(rank, 1))  # all ranks mostly fail alike: rank 0 says so, ends the others
        is_expected = isinstance(error, (TokpackError, OSError, MemoryError))
        if "--debug" in words or not is_expected:
            for line in traceback.format_exc().splitlines():
                tell(line)
        where = f"rank {rank}: " if rank else ""
        what = str(error) if is_expected else repr(error)
        if isinstance(error, TokpackError):
            what = error.worded(flags_typed(flag_names(), words))
        tell(message(f"tokpack: error: {where}{what}"))
        return getattr(error, "exit_code", 2)
    return 0


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in order with stderr, also in a file
    code = main()
    release()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no exit handlers: a library's thread may hang or crash in them
