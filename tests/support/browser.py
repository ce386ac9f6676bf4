"""A real browser without a window, told what to do over a pipe by its own protocol (CDP)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
]
_KEYS = {"Tab": 9, "Enter": 13}
_SECONDS = 120
_START = """
import os, sys
ends = [os.dup(os.dup(int(word))) for word in sys.argv[1:3]]
for number, end in enumerate(ends, 3):  # where a browser looks for its pipes
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class NavigatedError(Exception):
    """The page was left before it had answered."""


class Browser:
    """One page of a browser: the fixture ``browser``."""

    def __init__(self, program: str, profile: Path) -> None:
        inward, outward = os.pipe(), os.pipe()
        command = [program, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [sys.executable, "-IS", "-c", _START, str(inward[0]), str(outward[1]), *command],
            pass_fds=(inward[0], outward[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inward[0])
        os.close(outward[1])
        self._to = os.fdopen(inward[1], "wb", buffering=0)
        self._from = os.fdopen(outward[0], "rb")
        self._count, self._session = 0, ""
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        attached = self.tell("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._to.close()
        self._from.close()
        self._process.kill()
        self._process.wait()

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._count:
                if "navigated" in answer.get("error", {}).get("message", ""):
                    raise NavigatedError
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> bytes:
        """The next message, which ends with a NUL."""
        text = bytearray()
        while byte := self._from.read(1):
            if byte == b"\0":
                return bytes(text)
            text += byte
        raise AssertionError("the browser has ended")

    def look(self, width: int, *, dark: bool) -> None:
        """Set the width of the window, and the preferred colour scheme."""
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to a page, and wait until it is there."""
        self.tell("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def arrive(self, title: str) -> None:
        """Wait until a page of this title is there."""
        self.wait(f"document.title === {json.dumps(title)} && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.tell("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + _SECONDS
        while True:
            with suppress(NavigatedError):
                if self.ask(expression):
                    return
            assert time.monotonic() < end, (expression, self.ask("location.href"))
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        with suppress(NavigatedError):  # to where the key leads
            self.tell("Input.dispatchKeyEvent", type="keyDown", **common, **text)
            self.tell("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Type a text."""
        self.tell("Input.insertText", text=text)
