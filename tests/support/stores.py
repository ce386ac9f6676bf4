"""Stores that tests talk to: S3 by moto, a web server with ranges, a proxy that makes faults."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from support.ports import listening, own_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

Encode = Callable[..., tuple[bytes, bytes]]
BUCKET = "texts"
SUFFIXES = (".bin", ".idx", ".mask", ".weights", ".labels", ".json", ".docs.parquet",
            ".dropped.parquet")  # fmt: skip
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/s3/aws4_request"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTTESTTEST", "AWS_SECRET_ACCESS_KEY": "verysecretverysecret"}


def environment(endpoint: str) -> dict[str, str]:
    """What a user would set for an S3 server; little patience, so that faults end soon."""
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "TOKPACK_STORE_TIMEOUT": "2",
        "NO_PROXY": "127.0.0.1,localhost",
    }


# Moto's server, which would look through its own folder for each request, and write a line of it.
MOTO = """
import logging, sys
from moto import backends, server
modules = list(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: modules
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server.main(sys.argv[1:])
"""


@contextmanager
def s3_server() -> Iterator[str]:
    """Moto's server in a process of its own, with an empty bucket; gives its address."""
    port = own_port()
    moto = [sys.executable, "-W", "ignore", "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with listening(moto, port):
        endpoint = f"http://127.0.0.1:{port}"
        S3(endpoint).request("PUT", "")
        yield endpoint


class S3:
    """Direct access to the bucket, without tokpack; the server checks no signatures."""

    def __init__(self, endpoint: str) -> None:
        self._netloc = urlsplit(endpoint).netloc

    def request(self, method: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._netloc, timeout=60)
        try:
            connection.request(method, f"/{BUCKET}{'/' if key else ''}{key}", body, SIGNED)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object. Gives its URL."""
        body = content.read_bytes() if isinstance(content, Path) else content
        assert self.request("PUT", key, body)[0] == 200
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes | None:
        status, body = self.request("GET", key)
        return body if status == 200 else None

    def delete(self, key: str) -> None:
        self.request("DELETE", key)

    def keys(self, prefix: str) -> list[str]:
        body = self.request("GET", f"?list-type=2&prefix={prefix}")[1].decode()
        return [part.partition("</Key>")[0] for part in body.split("<Key>")[1:]]

    def uploads(self) -> int:
        """How many multipart uploads hold parts and are neither complete nor aborted.

        One whose name never arrived here stays, without parts.
        """
        body = self.request("GET", "?uploads")[1].decode()
        ids = re.findall("<UploadId>(.*?)</UploadId>", body)  # moto has them before or after keys
        found = zip(re.findall("<Key>(.*?)</Key>", body), ids, strict=True)
        return sum(
            b"<PartNumber>" in self.request("GET", f"{key}?uploadId={upload}")[1]
            for key, upload in found
        )


@dataclass
class Fault:
    """What goes wrong with the requests for ``path`` (any part of it) of a method, so many times.

    ``kind``: a status as "503"; error, an error with status 200; bare, status 200 and nothing else;
    reset, before an answer; cut, in the middle of the body; stall, there too; lost, where the
    request is done and the answer is not sent; or call, which runs ``act`` before the request.
    """

    kind: str
    method: str = "GET"
    path: str = ""
    after: int = 0  # so many requests succeed first
    beyond: int = 0  # only requests behind so many bytes fail
    times: int = 1 << 30
    act: Callable[[], object] | None = None
    seen: int = 0
    done: int = 0
    over: threading.Event = field(default_factory=threading.Event)  # one has been passed on


@dataclass
class Plan:
    """The faults of a server, and the requests that it has seen."""

    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    sent: int = 0  # bytes of answers to GET
    page: int = 1000  # objects that an answer to a listing has at most
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, method: str, path: str, begin: int) -> Fault | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.method == method and fault.path in path and begin >= fault.beyond:
                    fault.seen += 1
                    if fault.seen > fault.after and fault.done < fault.times:
                        fault.done += 1
                        return fault
        return None


class Store(NamedTuple):
    """A bucket, and the plan of faults of the proxy in front of it."""

    s3: S3
    plan: Plan
    proxy: str
    endpoint: str

    def put(self, prefix: Path) -> str:
        """Store a dataset of the disk; its prefix there."""
        for suffix in SUFFIXES:
            if (path := prefix.with_suffix(suffix)).exists():
                self.s3.put(f"sets/{path.name}", path)
        return f"s3://{BUCKET}/sets/{prefix.name}"

    def asked(self, method: str, name: str) -> int:
        """How many requests there were for objects with such a name."""
        return sum(one.startswith(method) and name in one for one in self.plan.requests)


class Handler(BaseHTTPRequestHandler):
    """A request, and the fault that a plan has for it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer in two pieces takes 40 ms
    plan: Plan

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        begin = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
        fault = self.plan.next(self.command, self.path, int(begin or 0))
        kind = fault.kind if fault else ""
        if fault and fault.act:
            fault.act()
        if kind.isdigit():
            self.send(int(kind), {}, b"<Error><Code>Injected</Code></Error>")
            return
        if kind in ("error", "bare"):
            text = b"<Error><Code>InternalError</Code></Error>"
            self.send(200, {}, text if kind == "error" else b"")
            return
        if kind == "reset":
            self.drop()
            return
        status, headers, content = self.answer(body)
        if fault:
            fault.over.set()
        if kind == "lost":
            self.drop()
            return
        self.send(status, headers, content, kind)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def send(self, status: int, headers: dict[str, str], content: bytes, kind: str = "") -> None:
        with suppress(OSError):
            self.send_response(status)
            headers.setdefault("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            self.plan.sent += len(content)
            if kind in ("cut", "stall"):
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                if kind == "stall":
                    time.sleep(3)  # longer than the patience of the environment
                self.drop()
            else:
                self.wfile.write(content)

    def drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()


@contextmanager
def serving(handler: type[Handler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server in threads of this process; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients go away
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def faulty_proxy(endpoint: str, plan: Plan) -> Iterator[str]:
    """A server in front of another that does as a plan says; gives its address."""
    netloc = urlsplit(endpoint).netloc

    class Proxy(Handler):
        def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(netloc, timeout=60)
            wanted = self.headers.get("x-amz-copy-source-if-match")
            source = "/" + self.headers.get("x-amz-copy-source", "").lstrip("/")
            if self.command == "POST" and not wanted:
                wanted, source = self.headers.get("If-Match"), urlsplit(self.path).path
            if wanted:  # moto copies whatever is there, and replaces it when an upload is complete
                connection.request("HEAD", source, headers=SIGNED)
                found = connection.getresponse()
                found.read()
                if found.getheader("ETag") != wanted:
                    return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            passed = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            pages = f"&max-keys={plan.page}" if "list-type=2" in self.path else ""
            try:
                connection.request(self.command, self.path + pages, body, passed)
                got = connection.getresponse()
                content = got.read()
            finally:
                connection.close()
            hop = ("connection", "transfer-encoding", "date", "server")
            headers = {k: v for k, v in got.getheaders() if k.lower() not in hop}
            return got.status, headers, content

    Proxy.plan = plan
    with serving(Proxy) as address:
        yield address


@contextmanager
def web_server(
    folder: Path,
    plan: Plan,
    *,
    tls: ssl.SSLContext | None = None,
    tags: bool = True,
    only: str = "",
    ranges: bool = True,
    missing: int = 404,
) -> Iterator[str]:
    """A web server of the files in a folder, with ranges; gives its address.

    ``only`` is the one method that is allowed, where it is not all of them; ``missing`` the answer
    where there is no file.
    """

    class Files(Handler):
        def answer(self, _body: bytes) -> tuple[int, dict[str, str], bytes]:
            if only and self.command != only:
                return 403, {}, b""
            path = folder / unquote(urlsplit(self.path).path).lstrip("/")
            if not path.is_file():
                return missing, {}, b""
            content = path.read_bytes()
            headers: dict[str, Any] = {
                "Last-Modified": self.date_time_string(int(path.stat().st_mtime))
            }
            tag = f'"{md5(content, usedforsecurity=False).hexdigest()}"'
            if tags:
                headers["ETag"] = tag
            if self.headers.get("If-Match", tag) != tag:
                return 412, {}, b""
            wanted = self.headers.get("Range") if ranges else None
            if wanted and wanted.startswith("bytes="):
                first, _, last = wanted[6:].partition("-")
                begin, end = int(first), min(int(last or len(content)) + 1, len(content))
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
                return 206, headers, content[begin:end]
            headers["Content-Length"] = str(len(content))
            return 200, headers, content

    Files.plan = plan
    with serving(Files, tls) as address:
        yield address
