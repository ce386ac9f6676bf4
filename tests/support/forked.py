"""Processes that begin with tokpack loaded: forks of a template, which has no threads.

Most of a short command's time is for its imports, which forks do not repeat; so what depends on
imports is tested with a fresh python. The tests' own process is not forked: a thread of it (of a
server, of Ray, of torch) may hold a lock at that moment, which nobody releases in the fork.

To the tests and to the system a process is like any other: a child of the tests' process, with its
streams, environment, working folder, session, signals and exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import logging
import marshal
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from typing import IO, TYPE_CHECKING, Any, NoReturn

from support.without import hide_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

_SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_SIZE = 8  # bytes before a message
_asking = threading.Lock()


class Process(subprocess.Popen[Any]):
    """subprocess.Popen of ``python WORDS``: -m MODULE or -c CODE, and arguments."""

    def __init__(self, words: Sequence[object], **settings: Any) -> None:
        super().__init__([sys.executable, *map(str, words)], **settings)

    # What Popen calls to start a program once it has made the pipes.
    def _execute_child(self, *arguments: Any) -> None:
        words, _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest = arguments
        pipes, start_new_session, process_group = rest[:6], rest[-2], rest[-1]
        if preexec_fn or pass_fds or shell or process_group != -1:
            raise ValueError("a fork of the template has only streams, env, cwd and a session")
        message = {
            "words": words[1:],
            "env": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or os.getcwd()),
            "session": bool(start_new_session),
            "umask": _umask(),
        }
        ends = (pipes[0], pipes[3], pipes[5])
        streams = [end if end >= 0 else number for number, end in enumerate(ends)]
        self.pid = _ask(marshal.dumps(message), streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(
    words: Sequence[object],
    *,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    input: Any = None,  # noqa: A002 - as there
    **settings: Any,
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run of ``python WORDS``."""
    if input is not None:
        settings["stdin"] = subprocess.PIPE
    if capture_output:
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(words, **settings) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _umask() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask"))


@functools.cache
def _template() -> tuple[socket.socket, IO[str]]:
    """The connection to the template, which ends with it, and what it says of its own end."""
    ours, its = socket.socketpair()
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the tests ask at their end
    path = os.pathsep.join(filter(None, sys.path))
    code = f"from support import forked; forked.serve({its.fileno()})"
    with its:
        template = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[its.fileno()],
            stderr=said,
            env={**os.environ, "PYTHONPATH": path, **_NO_THREADS},
        )

    def end() -> None:
        # A process that the tests have forked meanwhile, and that lives, has this end, too.
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        template.wait()
        said.close()

    atexit.register(end)
    return ours, said


def _ask(message: bytes, streams: Sequence[int]) -> int:
    """Let the template fork; the number of the new process, which is a child of this one."""
    prctl = ctypes.CDLL(None).prctl
    with _asking:
        template, said = _template()
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(template, [len(message).to_bytes(_SIZE, "little")], streams)
            template.sendall(message)
            answer = template.recv(_SIZE)
        except OSError:
            answer = b""
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    if not answer:
        said.seek(0)
        raise RuntimeError(f"the template of the tests' processes has ended: {said.read()}")
    return int.from_bytes(answer, "little")


def serve(number: int) -> None:
    """Fork a process for each message, until the tests end."""
    tests = socket.socket(fileno=number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is for the tests
    _load()
    while True:
        size, files, _, _ = socket.recv_fds(tests, _SIZE, 3)
        if not size:
            return
        left, parts = int.from_bytes(size, "little"), []
        while left:
            parts.append(tests.recv(left))
            left -= len(parts[-1])
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("the template of the tests' processes has a thread")
        _fork(tests, marshal.loads(b"".join(parts)), files)
        for file in files:
            os.close(file)


_NEED_TORCH = ("tokpack.trainer",)
_NO_THREADS = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
# What commands import when they need it; pyarrow does so with pandas, which takes longest of all.
_OFTEN = (
    *("tokenizers", "encodings.idna", "multiprocessing.connection", "jinja2.sandbox"),
    *("rich.console", "rich.table", "rich.progress", "rich.padding"),
    *("pandas", "pyarrow.parquet", "pyarrow.dataset", "duckdb"),
)


def _load() -> None:
    """Import what commands need but for torch: each fork would have its memory, and its exit."""
    hide_packages()
    import tokpack

    # An editable install has the folder above on its path, too.
    paths = [path for path in tokpack.__path__ if os.path.basename(path) == "tokpack"]
    for module in pkgutil.walk_packages(paths, "tokpack."):
        if not module.name.startswith((*_NEED_TORCH, "tokpack.__main__")):
            importlib.import_module(module.name)
    for name in _OFTEN:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("support.small_caches").use_small_caches()
    gc.collect()
    gc.freeze()


def _fork(tests: socket.socket, message: dict[str, Any], files: list[int]) -> None:
    """A process between dies at once, so that the tests inherit the one that it has forked."""
    number, its_number = os.pipe()
    gate, hinge = os.pipe()
    between = os.fork()
    if not between:
        try:
            pid = os.fork()
            if pid:
                os.write(its_number, pid.to_bytes(_SIZE, "little"))
        except OSError:
            traceback.print_exc()
            pid = 1
        if pid:
            os._exit(0)
        tests.close()
        os.close(hinge)
        os.read(gate, 1)  # until the template closes the other end
        for pipe in (gate, number, its_number):
            os.close(pipe)
        _run(message, files)
    os.close(its_number)
    pid = os.read(number, _SIZE)
    os.waitpid(between, 0)
    for pipe in (gate, hinge, number):
        os.close(pipe)
    if not pid:
        raise RuntimeError("no process could be forked")
    tests.sendall(pid)


def _run(message: dict[str, Any], files: list[int]) -> NoReturn:
    """Do as python does, to the end of the process."""
    code = 1
    words = message["words"]
    try:
        _begin(message, files)
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


def _begin(message: dict[str, Any], files: list[int]) -> None:
    """Take over the streams, the environment, the folder; leave what belongs to the template."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if message["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(message["umask"])
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["env"])
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    logging.getLogger().handlers.clear()
    warnings.resetwarnings()
    for category in _SILENT:
        warnings.simplefilter("ignore", category)


def _code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return 1
    return end.code or 0
