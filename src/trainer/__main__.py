"""``python -m tokpack.trainer``: one rank, as torchrun or another launcher starts it."""

from __future__ import annotations

import os
import sys
import time
import traceback

from tokpack.errors import TokpackError

from .launch import run


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
        time.sleep(min(rank, 1))  # mostly all ranks fail alike: the first says it, and ends all
        known = isinstance(error, (TokpackError, OSError, MemoryError))
        if "--debug" in sys.argv or not known:
            traceback.print_exc()
        where = f"rank {rank}: " if rank else ""
        sys.stderr.write(f"tokpack: {where}{error if known else repr(error)}\n")
        return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to do, and a thread of a library cannot hang or abort it
