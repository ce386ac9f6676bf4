"""A python that begins with torch and DeepSpeed loaded: its processes are forked from a server.

From outside they are like any others: arguments, environment, working folder, open files, signals
and exit codes pass through a small client, whose end by SIGKILL is theirs too.
"""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from support.rank_server import server

CLIENT = """#!{python} -IS
import marshal, os, signal, socket, sys

words = sys.argv[1:]
if not os.path.basename(sys.argv[0]).startswith("python"):
    words.insert(0, os.path.join({scripts!r}, os.path.basename(sys.argv[0])))
request = marshal.dumps((words, dict(os.environ), os.getcwd()))
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(request)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda number, _: server.sendall(bytes([number])))
    code = int(server.recv(8))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def warm_python() -> Path:
    """The folder of ``python`` and the launchers, to be put in PATH; the first call starts it."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = str(folder / "server")
    text = CLIENT.format(
        python=sys.executable, scripts=str(Path(sys.executable).parent), address=address
    )
    for name in ("python", "python3", "tokpack", "torchrun", "deepspeed"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    with listener:
        server().Process(target=_serve, args=(listener, str(folder)), daemon=True).start()
    return folder


def _serve(listener: socket.socket, folder: str) -> None:
    """Fork a keeper for each client, as long as the tests live."""
    sys.executable = f"{folder}/python"
    parent = os.getppid()
    listener.settimeout(10)
    while os.getppid() == parent:
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        if not os.fork():
            listener.close()
            _keep(client)
        client.close()
        while os.waitpid(-1, os.WNOHANG)[0]:  # the one that was just forked lives
            pass


def _keep(client: socket.socket) -> None:
    """Fork what a client asks for; pass its signals on, and its exit code back."""
    size, files, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as reader:
        words, environment, folder = marshal.loads(reader.read(int.from_bytes(size, "little")))
    process = os.fork()
    if not process:
        client.close()
        _become(words, environment, folder, files)
    for file in files:
        os.close(file)

    def pass_signals() -> None:
        with suppress(ProcessLookupError):
            while number := client.recv(1):
                os.kill(process, number[0])
            os.kill(process, signal.SIGKILL)

    threading.Thread(target=pass_signals, daemon=True).start()
    _, status = os.waitpid(process, 0)
    with suppress(BrokenPipeError):
        client.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(words: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Run what the words ask of a python: a module or a script."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if words[0] == "-u":
        words = words[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, folder)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    sys.exit()
