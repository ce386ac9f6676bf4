"""Processes that begin with tokpack loaded: forks of the tests' own process.

To subprocess, which starts them, and to the system they are like others: number, streams,
environment, working folder, session, signals, exit code. Most of a short command's time is for its
imports, which forks do not repeat; so what depends on imports is tested with a fresh python.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import runpy
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from tokpack.files import lock
from tokpack.stores import access

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def python(*words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What subprocess.run or Popen is given to do as ``python WORDS``: -m MODULE or -c CODE.

    ``env`` stands for the argument of subprocess of that name.
    """
    before = set(os.listdir("/dev/fd"))

    def become() -> None:
        # subprocess waits until a pipe ends, which exec would close.
        for number in set(os.listdir("/dev/fd")) - before - {"0", "1", "2"}:
            try:
                os.close(int(number))
            except OSError:  # that of the list itself
                continue
        _run(words, os.environ if env is None else env)

    return {"args": [sys.executable, *words], "preexec_fn": become}


def _run(words: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Do as python does, to the end of the process."""
    code = 1
    try:
        _begin(dict(env))
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _begin(env: dict[str, str]) -> None:
    """Leave what belongs to the tests: streams, warnings, logs, what they do at their end."""
    gc.freeze()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # which subprocess has restored
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray takes it, where a test has loaded that
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    for category in _SILENT:
        warnings.simplefilter("ignore", category)
    warnings.showwarning = lambda *warning: sys.stderr.write(warnings.formatwarning(*warning[:4]))
    atexit._clear()
    for at_end in (lock.release, access.shut_down):
        atexit.register(at_end)


def _code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return 1
    return end.code or 0
