"""``python -m tokpack.trainer``: one rank, as torchrun or another launcher starts it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():
    sys.path.pop(0)  # put there by -m: a file of that folder could hide a package

import io
import time
import traceback
from typing import TYPE_CHECKING

from tokpack.configuration.flags import flag_names, resolve
from tokpack.configuration.setting import in_flags
from tokpack.display import message, tell
from tokpack.errors import TokpackError, UsageError, needs_extra
from tokpack.files.lock import release

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """Train as ``argv`` says, with the other ranks; the exit code. Raises TokpackError."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config, nproc = resolve(argv, world)
    if nproc not in (None, world):
        raise UsageError(
            f"--nproc {nproc} in a world of {world} processes: `tokpack train --nproc {nproc}` "
            "starts so many, and any other launcher is told so itself"
        )
    with needs_extra("train"):
        from .loop import train

    # Words, also those behind "--flag=", that name files: these were perhaps read.
    words = [word.partition("=")[2] or word for word in argv]
    return train(config, [word for word in words if os.path.isfile(word)])


def main() -> int:
    """Run this rank; say what is wrong in one message, and return the exit code."""
    if {"-h", "--help"} & set(sys.argv):
        sys.stdout.write("The flags are those of `tokpack train --help`.\n")
        return 0
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        rank = int(os.environ.get("RANK", "0"))
        time.sleep(min(rank, 1))  # mostly all ranks fail alike: rank 0 says so, and ends the others
        known = isinstance(error, (TokpackError, OSError, MemoryError))
        if "--debug" in sys.argv or not known:
            for line in traceback.format_exc().splitlines():
                tell(line)
        where = f"rank {rank}: " if rank else ""
        what = in_flags(str(error), flag_names(), sys.argv[1:]) if known else repr(error)
        tell(message(f"tokpack: error: {where}{what}"))
        return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in order with stderr, also in a file
    code = main()
    release()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once, so that no thread of a library can hang or crash in the end
