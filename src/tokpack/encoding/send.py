"""Passes the reports of a run on to a URL or to Weights & Biases, if that is asked for."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokpack import machine
from tokpack.display import first_line, shown
from tokpack.encoding import send_reports
from tokpack.encoding.send_reports import TIMEOUT_SECONDS, WANDB
from tokpack.errors import Remark, needs_extra, option

if TYPE_CHECKING:
    from tokpack.dataset import Manifest
    from tokpack.encoding.options import EncodeOptions

_log = logging.getLogger(__name__)
_LAST_SECONDS = 6 * TIMEOUT_SECONDS  # for the last report: the one before may still wait
_MOST_MESSAGE = 1000  # characters: a line shorter than what a pipe takes whole


class Sender:
    """Sends the reports of a run to where ``report_to`` says, for a while: a context.

    They go through a process of its own, so nothing that happens there ends the run, or holds it
    up: the first failure is a warning. UsageError where Weights & Biases is not installed.
    """

    def __init__(self, options: EncodeOptions) -> None:
        self._to, self._dataset = options.report_to, shown(options.output)
        self._process: subprocess.Popen[bytes] | None = None
        self._last: dict[str, Any] = {}
        if self._to and self._to.startswith(WANDB) and find_spec("wandb") is None:
            with needs_extra("wandb"):
                import_module("wandb")

    def __call__(self, content: bytes) -> None:
        """Send a report, which is the content of its file."""
        if self._to is not None:
            self._send(json.loads(content))

    def done(self, manifest: Manifest) -> None:
        """Send that the run is done, if it has said anything."""
        counts = {name: getattr(manifest, name) for name in ("documents", "tokens", "text_bytes")}
        self._end("done", done=self._last.get("total", 0), **counts)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self._end("failed", message=str(error)[:_MOST_MESSAGE])
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._warn(f"no answer in {_LAST_SECONDS:.0f} seconds")
            self._process.kill()
            self._process.wait()
        self._listen()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _end(self, state: str, **values: Any) -> None:
        if self._last.get("state") == "running":
            self._send(self._last | {"state": state, "told": machine.clock.wall()} | values)

    def _send(self, report: dict[str, Any]) -> None:
        # The first report comes when all workers are forked: none of them has these pipes.
        if self._process is None and not self._start():
            return
        self._last = report | {"message": report["message"][:_MOST_MESSAGE]}
        self._write({"dataset": self._dataset, **self._last})
        self._listen()

    def _start(self) -> bool:
        """Whether the process could be started."""
        try:
            # In a session of its own, so that Ctrl-C does not reach it: it tells of that, too.
            self._process = subprocess.Popen(
                [sys.executable, "-P", send_reports.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._warn(first_line(error))
            self._to = None
            return False
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._write(self._to)
        return True

    def _write(self, value: object) -> None:
        """Write a line, or leave it out while too much waits; what has died is not waited for."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(value).encode() + b"\n")

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if said := self._process.stdout.read(1 << 12):
            self._warn(said.decode(errors="replace").strip())

    def _warn(self, reason: str) -> None:
        where = str(self._to)
        if not where.startswith(WANDB):  # the path of a URL may be a secret
            where = f"{urlsplit(where).scheme}://{urlsplit(where).hostname}"
        _log.warning(
            Remark(
                f"{option('report_to')}: {where} did not take a report: {reason}; the run goes on"
            )
        )
