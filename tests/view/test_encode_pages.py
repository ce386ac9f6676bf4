"""``tokpack view`` and ``tokpack shards status`` of a dataset that is being made."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import byte_tokenizer, write_jsonl
from support.report_tools import run, run_json, sample_texts
from support.view_server import Elements, Server

pytest.importorskip("uvicorn")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.browser import Browser

EVIL = "<script>document.title='owned'<script>.jsonl"


@contextlib.contextmanager
def endless(folder: Path, prefix: str) -> Iterator[subprocess.Popen[bytes]]:
    """A real run whose input goes on until somebody closes it."""
    words = ["-m", "tokpack", "encode", "-", "-o", prefix, "--workers", "1"]
    with forked.Process(
        [*words, "--tokenizer", "tokenizer.json", "--quiet"],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def send(process: subprocess.Popen[bytes], texts: list[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    process.stdin.flush()


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def words_of(server: Server, page: str) -> str:
    answer = server.get(page)
    assert answer.code == 200, answer.text
    return " ".join(" ".join(Elements(answer.text).words).split())


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_run_in_progress_killed_and_finished(folder: Path, stack: contextlib.ExitStack) -> None:
    prefix = str(folder / "one")
    report = Path(f"{prefix}.unfinished/report.json")
    with endless(folder, prefix) as process:
        send(process, sample_texts() * 2000)  # its first bytes say what it is
        until(report.exists)
        server = stack.enter_context(Server(folder, "one"))
        page = server.get("0/")
        assert 'http-equiv="refresh"' in page.text
        assert f"process {process.pid} on " in page.text
        assert "1 input" in page.text
        still = server.get("0/?still=1").text
        assert "http-equiv" not in still
        assert "automatically" in still
        told = run("status", prefix, code=1).stdout
        assert "one.unfinished: running" in told
        assert "goes on" not in told
        assert "of 0 B" not in told + page.text  # nobody knows how long a stream is
        assert run("status", f"{prefix}.unfinished/", code=1).stdout.startswith(f"{prefix}.unf")
    said = words_of(server, "0/")
    assert "killed, or its machine is gone" in said
    assert "http-equiv" not in server.get("0/").text
    assert "lost" in run("status", prefix, code=1).stdout
    source = write_jsonl(folder / "one.jsonl", sample_texts())
    run("encode", source, "-o", prefix, "--tokenizer", folder / "tokenizer.json", "--overwrite")
    said = words_of(server, "0/")
    assert "It is finished." in said
    assert "Datasets dataset tokens documents size tokenizer one" in words_of(server, "")
    assert f"documents {len(sample_texts())}" in words_of(server, "1/")
    assert run("status", prefix).stdout == f"{prefix}: done\n"
    assert run_json("status", prefix)["state"] == "done"
    assert server.end()[0] == 0


def test_a_run_that_was_stopped_or_failed_says_so(folder: Path) -> None:
    prefix = str(folder / "two")
    report = Path(f"{prefix}.unfinished/report.json")
    with endless(folder, prefix) as process:
        send(process, sample_texts() * 2000)
        until(report.exists)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert run_json_of(prefix)["state"] == "stopped"
    # What somebody else left there is no report.
    for content in ("", "{", '{"state": "done"}', json.dumps({**run_json_of(prefix), "pid": "x"})):
        report.write_text(content)
        assert run_json_of(prefix)["state"] == "starting"
    report.unlink()
    os.symlink("/etc/passwd", report)
    assert run_json_of(prefix)["state"] == "starting"


def test_a_run_that_failed_and_bears_the_name_of_a_plan(
    folder: Path, stack: contextlib.ExitStack
) -> None:
    source, prefix = folder / "bad.jsonl", str(folder / "x.plan")
    source.write_text('{"text": "fine"}\n{}\n{}\n')
    words = ("encode", source, "-o", prefix, "--tokenizer", folder / "tokenizer.json")
    run(*words, "--on-error", "skip:1", code=1)
    server = stack.enter_context(Server(folder, "x.plan", "x.plan.unfinished/"))
    for told in (words_of(server, "0/"), run("status", prefix, code=1).stdout):
        assert "2 bad records, more than the 1 allowed" in told
        assert re.search("fix that, then the same command resumes it", told, re.IGNORECASE)
    run(*words, "--on-error", "skip")
    assert run("status", prefix).stdout == f"{prefix}: done\n"
    assert "no dataset, run of encode or plan" in run("status", f"{prefix}x", code=1).stderr
    assert server.end()[0] == 0


def run_json_of(prefix: str) -> dict[str, object]:
    return json.loads(run("status", prefix, "--json", code=1).stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Pages of a plan of which one shard is done and one has failed."""
    folder = tmp_path_factory.mktemp("shards")
    tokenizer = ("--tokenizer", byte_tokenizer(folder / "tokenizer.json"))
    inputs = [write_jsonl(folder / name, sample_texts() * 700) for name in (EVIL, "b")]
    prefix = folder / "pile"
    run("plan", *inputs, "-o", prefix, "--shard-size", "1MB", *tokenizer)
    run("encode", "--plan", prefix, "--shard", "1", "--workers", "1")
    Path(inputs[0]).write_text("changed\n")
    run("encode", "--plan", prefix, "--shard", "0", "--workers", "1", code=1)
    with Server(folder, "pile", "pile.plan") as server:
        yield server
        assert server.end()[0] == 0


def test_shards(shards: Server) -> None:
    said = words_of(shards, "0/")
    assert re.search(r"\d shards of .*: 1 failed, 1 done, \d open", said)
    assert "has changed since the plan was made" in said
    assert "<script>" not in shards.get("0/").text


def test_shards_in_a_browser(shards: Server, browser: Browser) -> None:
    browser.look(400, dark=True)
    browser.open(shards.address + "0/")
    assert browser.ask("document.documentElement.scrollWidth") <= 400
    assert browser.ask("document.title") == "Making pile"
    assert browser.ask("document.querySelector('progress').value") == 1


def test_a_run_of_several_keys_is_done_when_all_are_there(folder: Path) -> None:
    source = folder / "two.jsonl"
    source.write_text('{"text": "a b", "title": "c"}\n')
    prefix, tokenizer = folder / "two", folder / "tokenizer.json"
    run("encode", source, "-o", prefix, "--json-keys", "text,title", "--tokenizer", tokenizer)
    assert run("status", prefix).stdout == f"{prefix}: done\n"
    assert run("status", f"{prefix}_text").stdout == f"{prefix}_text: done\n"
    (folder / "two_other.json").write_text("{}")
    Path(f"{prefix}_title.idx").unlink()
    assert "no dataset, run of encode" in run("status", prefix, code=1).stderr
