"""Run the ranks of a run on this machine, with the environment that torchrun gives. No torch
here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tokpack.display import tell
from tokpack.machine import ending_with, interrupts, usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE = 15.0  # seconds from the end of one rank to the end of all
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def start(command: Sequence[str], count: int, request: bytes = b"") -> int:
    """The exit code of ``command``, run as ranks 0 to ``count`` - 1 with ``request`` as their
    input.

    Signals are forwarded to every rank; a second SIGINT ends them at once. When one rank fails, the
    others get SIGTERM, and SIGKILL ``GRACE`` seconds later. The exit code is that of the failed
    rank, or 128 + the number of the signal that ended it.
    """
    # This reserves a port: bound at every address, it is given to no other socket, and rank 0 can
    # still listen on it. (If it were bound at one address only, gloo could be given it.)
    with socket.socket() as meeting:
        meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        meeting.bind(("", 0))
        world = {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(meeting.getsockname()[1]),
        }
        return _run(command, count, world, request)


def _run(command: Sequence[str], count: int, world: dict[str, str], request: bytes) -> int:
    """The exit code of the ranks, run with ``world`` in their environment; see ``start``."""
    threads = {"OMP_NUM_THREADS": str(max(usable_cores() // count, 1))}
    end_with_us = ending_with(os.getpid())
    ranks: list[subprocess.Popen[bytes]] = []
    received: list[int] = []
    heard = (n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN)
    before = {n: signal.signal(n, lambda n, _: received.append(n)) for n in heard}
    try:
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            environment = {**threads, **os.environ, **world, **place}
            # In sessions of their own: otherwise Ctrl-C would reach them twice, from the
            # terminal and from this process.
            ranks.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=end_with_us,  # noqa: PLW1509  # there are no threads here
                )
            )
        for process in ranks:
            assert process.stdin is not None
            # A rank that has already ended says why by its exit code.
            with suppress(BrokenPipeError), process.stdin as stream:
                stream.write(request)
        return _wait(ranks, received)
    finally:
        _send(ranks, signal.SIGKILL)
        for process in ranks:
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], received: list[int]) -> int:
    """The exit code of the first rank that fails, or 0 when all have ended. Signals in ``received``
    are forwarded.
    """
    is_again = interrupts()
    while not (failed := [i for i, rank in enumerate(ranks) if rank.poll()]):
        if all(rank.returncode == 0 for rank in ranks):
            return 0
        while received:
            if (number := received.pop(0)) == signal.SIGINT and is_again():
                raise KeyboardInterrupt  # the ranks may hang
            _send(ranks, number)
        time.sleep(0.05)
    code = ranks[failed[0]].returncode
    if code < 0:
        name = signal.Signals(-code).name
        tell(f"tokpack: rank {failed[0]} was ended by {name}; stopping the others")
    _send(ranks, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.05)
    return code if code > 0 else 128 - code


def _send(ranks: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)
