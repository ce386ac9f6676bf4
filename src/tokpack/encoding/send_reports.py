"""Sends reports of a run to a URL, or to Weights & Biases: a program, which ``send`` starts.

Nothing of tokpack is imported here, so that it starts fast, and what hangs or fails in here cannot
touch the run. Its input is a line of JSON that says where to, then a report a line. It writes a
line when a report could not be sent, once.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

EVERY_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0  # of a connection, and of each wait for an answer
WANDB = "wandb:"  # and the name of a project, or ENTITY/PROJECT
_NO_CURVE = {"pid", "shard", "began", "told", "written"}


class _Url:
    """Where the last report is sent by POST; each is tried once."""

    def __init__(self, url: str) -> None:
        # Every run imports this file for its constants, and few send anything.
        from urllib.request import HTTPRedirectHandler, Request, build_opener

        class NotFollowed(HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                """Let it be an error: what follows a redirect is a GET, without the report."""

        self._url, self._request = url, Request
        self._opener = build_opener(NotFollowed)

    def send(self, report: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "tokpack"}
        request = self._request(self._url, json.dumps(report).encode(), headers)
        self._opener.open(request, timeout=TIMEOUT_SECONDS).close()

    def close(self, *, failed: bool) -> None:
        """Nothing is open."""


class _Board:
    """A run of Weights & Biases, configured by its environment variables too."""

    def __init__(self, project: str) -> None:
        entity, _, self._project = project.rpartition("/")
        self._entity = entity or None
        self._run: Any = None

    def send(self, report: dict[str, Any]) -> None:
        if self._run is None:
            import wandb

            words = {name: value for name, value in report.items() if isinstance(value, str)}
            self._run = wandb.init(
                project=self._project, entity=self._entity, name=report["dataset"], config=words,
                settings=wandb.Settings(silent=True),
            )  # fmt: skip
        numbers = {k: v for k, v in report.items() if isinstance(v, int | float)}
        seconds = numbers["told"] - numbers["began"]
        self._run.log(
            {k: v for k, v in numbers.items() if k not in _NO_CURVE} | {"seconds": seconds}
        )

    def close(self, *, failed: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(failed))


def main() -> None:
    """Send the latest report when it is time, and the last one at the end of the input."""
    # Libraries print, too: only what is written to this file is for the run.
    tells = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    text, due, waits = b"", 0.0, False
    report: dict[str, Any] = {}
    place: _Url | _Board | None = None
    is_open = True
    while is_open or waits:
        now = time.monotonic()
        if is_open and select.select([0], [], [], max(0.0, due - now) if waits else None)[0]:
            received = os.read(0, 1 << 16)
            is_open = bool(received)
            *lines, text = (text + received).split(b"\n")
            if place is None and lines:
                to = json.loads(lines.pop(0))
                place = _Board(to.removeprefix(WANDB)) if to.startswith(WANDB) else _Url(to)
            if lines:
                report, waits = json.loads(lines[-1]), True
            continue
        if waits and place is not None:
            waits, due = False, now + EVERY_SECONDS
            try:
                place.send(report)
                if not (is_open or waits):
                    place.close(failed=report["state"] != "done")
            except Exception as error:  # of a library, or of the network
                reason = str(error).strip().splitlines() or [type(error).__name__]
                if not tells.closed:
                    print(reason[0], file=tells)
                    tells.close()
                if isinstance(place, _Board):
                    return  # its library has tried for long


if __name__ == "__main__":
    main()
