"""``encode --report-to``: a real server is told how far a run is, and can do it no harm."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from support import forked

from tokpack.dataset import Manifest
from tokpack.encoding.status import Report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = 3000


class Hook(ThreadingHTTPServer):
    """Answers POST with ``status``; ``reports`` are what was sent."""

    status = 200
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reports: list[dict[str, Any]] = []
        self.others: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.url = f"http://127.0.0.1:{self.server_port}/a/secret?key=1"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        assert self.path == "/a/secret?key=1"
        self.server.reports.append(json.loads(content))
        self.server.goes_on.wait()
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.others.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.goes_on.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words of a text"}\n' * TEXTS)
    return path


def command(texts: Path, tokenizer: Path, where: str, *more: str) -> list[str]:
    return [
        *("-m", "tokpack", "encode", str(texts), "-o", str(texts.with_name("out"))),
        *("--tokenizer", str(tokenizer), "--report-to", where, "--workers", "2", *more),
    ]


def encode(texts: Path, tokenizer: Path, where: str, *more: str) -> str:
    """What the run said; it must end well."""
    words = command(texts, tokenizer, where, *more)
    done = forked.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Manifest.load(texts.with_name("out")).documents == TEXTS
    assert "secret" not in done.stderr
    return done.stderr


def test_a_server_is_told_how_far_the_run_is(hook: Hook, texts: Path, bpe: Path) -> None:
    assert "report" not in encode(texts, bpe, hook.url)
    last = hook.reports[-1]  # where the sender starts slowly it may be the only one
    assert set(last) == {"dataset", *(field.name for field in fields(Report))}
    assert last["dataset"] == str(texts.with_name("out"))
    assert last["state"] == "done"
    manifest = Manifest.load(texts.with_name("out"))
    assert (last["documents"], last["tokens"]) == (manifest.documents, manifest.tokens)
    assert last["done"] == last["total"] == texts.stat().st_size
    before = len(hook.reports)
    encode(texts, bpe, hook.url)  # there is nothing to do
    assert len(hook.reports) == before
    assert "report_to" not in texts.with_name("out.json").read_text()
    assert "secret" not in texts.with_name("out.json").read_text()


def test_a_failed_run_is_told_with_its_reason(hook: Hook, texts: Path, bpe: Path) -> None:
    texts.write_text(texts.read_text() + "no json\n")
    words = command(texts, bpe, hook.url)
    done = forked.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert hook.reports[-1]["state"] == "failed"
    assert f"{texts}:{TEXTS + 1}: malformed JSON" in hook.reports[-1]["message"]


def test_a_stopped_run_is_told(hook: Hook, texts: Path, bpe: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    words = command(texts, bpe, hook.url)
    words[words.index(str(texts))] = str(pipe)
    run = forked.Process(words, stderr=subprocess.PIPE)
    with pipe.open("wb") as file:
        file.write(b'{"text": "one more"}\n' * 200_000)  # several blocks: then it waits for more
        file.flush()
        end = time.monotonic() + 120
        while not hook.reports:
            assert run.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        run.communicate()
    assert run.returncode == 130
    first, *_, last = hook.reports
    assert set(first) == set(last)
    assert first["dataset"] == last["dataset"] == str(texts.with_name("out"))
    assert (first["state"], last["state"]) == ("running", "stopped")


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_server_that_refuses_is_one_warning(
    hook: Hook, texts: Path, bpe: Path, status: int
) -> None:
    hook.status = status
    said = encode(texts, bpe, hook.url)
    assert said.count("--report-to") == 1
    assert f"http://127.0.0.1 did not take a report: HTTP Error {status}" in said
    assert hook.reports[-1]["state"] == "done"  # it is tried all the same
    assert not hook.others


def test_a_server_that_is_not_there_is_one_warning(texts: Path, bpe: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        said = encode(texts, bpe, f"http://127.0.0.1:{taken.getsockname()[1]}/a/secret")
    assert said.count("--report-to") == 1
    assert "refused" in said


def test_a_server_that_hangs_is_not_waited_for(hook: Hook, texts: Path, bpe: Path) -> None:
    hook.goes_on.clear()
    said = encode(texts, bpe, hook.url)
    assert said.count("did not take a report: timed out") == 1
    assert hook.reports


@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_a_cluster_is_refused(texts: Path, bpe: Path, hook: Hook, engine: str) -> None:
    words = command(texts, bpe, hook.url, "--engine", engine)
    done = forked.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--report-to is for one machine" in done.stderr


def test_a_project_of_weights_and_biases(
    texts: Path, bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: no run of it is tested")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert "report" not in encode(texts, bpe, "wandb:mine")
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for word in (b"mine", b"tokens", b"documents", str(texts.with_name("out")).encode()):
        assert word in content
