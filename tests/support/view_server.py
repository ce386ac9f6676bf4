"""A real server of pages, and what its pages hold."""

from __future__ import annotations

import html.parser
import http.client
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from support import forked

if TYPE_CHECKING:
    from pathlib import Path


class Answer(NamedTuple):
    """What the server sent."""

    code: int
    text: str
    headers: dict[str, str]


class Server:
    """A real process of `tokpack view`, which ends with a ``with`` at the latest."""

    def __init__(self, folder: Path, *items: str) -> None:
        self.folder = folder
        self._process = forked.Process(
            ["-m", "tokpack", "view", *items],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        where = urlsplit(self.address)
        self.host, self.base = where.netloc, where.path

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def get(self, page: str, *, method: str = "GET", host: str = "", base: str = "") -> Answer:
        """Request a page by its exact path, without normalizing it."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        connection.putrequest(method, (base or self.base) + page, skip_host=True)
        connection.putheader("Host", host or self.host)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, text, headers)

    def end(self) -> tuple[int, str]:
        """Interrupt it, as a person does; its exit code and what it has said."""
        self._process.send_signal(signal.SIGINT)
        _, said = self._process.communicate(timeout=60)
        return self._process.returncode, said


class Elements(html.parser.HTMLParser):
    """Tags, addresses and text of a page, of which every element must end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        assert all((value or "").startswith("/") for name, value in attrs if name == "action")
        if tag not in ("meta", "link", "br", "input"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "link", "br", "input"):
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
