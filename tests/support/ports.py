"""Ports of this machine for servers that are told where to listen."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def own_port() -> int:
    """A port of this machine that nobody else is given while this process lives.

    A socket holds it at every address, without listening: held at 127.0.0.1 alone, it is given to
    those who ask for any port of another address, as gloo does, and no server can listen at all
    addresses then. One that sets SO_REUSEADDR, as torch's store and moto do, can listen now.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    port = int(holder.getsockname()[1])
    holder.detach()
    return port


@contextmanager
def listening(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server in the background, from when it answers at ``port`` until the block ends."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        for _ in range(600):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()
