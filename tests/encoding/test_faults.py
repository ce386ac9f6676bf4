"""Kill real processes, fill real disks: a dataset is whole or absent, and a run goes on."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import (
    byte_tokenizer,
    children,
    dataset,
    documents,
    drive,
    finish,
    nothing_whole,
    pieces,
    processor_seconds,
    start,
    twin,
    used_by_children,
    wait_for_end,
    wait_until,
    word_tokenizer,
    write_jsonl,
)
from support.faults import plant, remount

import tokpack
from tokpack.encoding import engine, part
from tokpack.encoding.coordinator import StreamEnd, TaskDone, UseSlot
from tokpack.errors import OutputError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

FILES = 10


class Corpus:
    """Some files, a tokenizer that takes its time, and what must come out."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = word_tokenizer(folder / "tokenizer.json")
        texts = documents(2_500, words=150)
        each = len(texts) // FILES
        self.inputs = [
            write_jsonl(folder / f"{n}.jsonl", texts[n * each : (n + 1) * each])
            for n in range(FILES)
        ]
        self.expected = twin(self.tokenizer, texts)

    def start(self, output: Path, **options: Any) -> subprocess.Popen[str]:
        options = {"tokenizer": self.tokenizer, "workers": 2, **options}
        return start(self.inputs, output, **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def tmpfs(mount: Callable[[int], Path]) -> Path:
    """A file system of its own, of two megabytes; only root may make one."""
    return mount(2 << 20)


@pytest.mark.promises
def test_what_is_done_is_not_done_again(corpus: Corpus, output: Path) -> None:
    interrupted(corpus.start(output), output, 3)
    said = finish(corpus.start(output))
    records = int(said.split()[1])  # documents that were there when the second run began
    assert records >= 3 * 200
    assert dataset(output) == corpus.expected
    # Once more: it is already encoded, and not touched.
    before = Path(f"{output}.bin").stat().st_mtime_ns
    assert "begin" not in finish(corpus.start(output))
    assert Path(f"{output}.bin").stat().st_mtime_ns == before


@pytest.mark.promises
def test_a_killed_worker_ends_the_run(corpus: Corpus, output: Path) -> None:
    process = corpus.start(output)
    wait_until(lambda: pieces(output))
    victim, other = wait_until(lambda: c if len(c := children(process.pid)) == 2 else None)
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "WorkerError a worker was killed by SIGKILL" in err
    assert ".jsonl" in err
    assert "run again to continue" in err
    wait_for_end([other])
    nothing_whole(output)
    finish(corpus.start(output))
    assert dataset(output) == corpus.expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_in_order(
    corpus: Corpus, output: Path, number: signal.Signals, workers: int
) -> None:
    for _ in range(5):
        process = corpus.start(output, workers=workers)
        wait_until(lambda: pieces(output) or Path(f"{output}.json").exists())
        alive, before = children(process.pid), used_by_children()
        used = processor_seconds(process.pid)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()
        _, said = process.communicate(timeout=100)
        if process.returncode:
            break
        for path in output.parent.glob("out.*"):  # it had ended before the signal came
            path.unlink()
    assert process.returncode == -number, said
    assert used_by_children() - before - used < 2  # of the processor: others may hold the clock
    assert len(pieces(output)) < FILES
    wait_for_end(alive)
    nothing_whole(output)
    assert (output.parent / "out.unfinished" / "lock").read_text() == ""
    finish(corpus.start(output))
    assert dataset(output) == corpus.expected


INTERRUPT = """
import sys
at = int(sys.argv[2])
def enter(frame, event, value):
    return step if frame.f_code.co_name in ("_release_save", "_acquire_restore") else None
def step(frame, event, value):
    global at
    at -= event == "line"
    if at == 0:
        raise KeyboardInterrupt
    return step
sys.settrace(enter)
"""


def test_an_interrupt_inside_of_a_condition(tmp_path: Path) -> None:
    """Python turns it into a RuntimeError there, as a lock is released twice."""
    tokenizer = word_tokenizer(tmp_path / "tokenizer.json")
    texts = documents(20)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    options = {"inputs": str(source), "tokenizer": str(tokenizer), "workers": 1}
    for at in range(1, 200):
        output = tmp_path / f"out{at}"
        done = drive({**options, "output": str(output)}, INTERRUPT, at)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGINT, done.stderr
        nothing_whole(output)
    assert at > 4
    assert dataset(output) == twin(tokenizer, texts)


@pytest.mark.promises
def test_two_runs_at_once(corpus: Corpus, output: Path) -> None:
    first = corpus.start(output)
    wait_until(lambda: pieces(output))
    first.send_signal(signal.SIGSTOP)
    err = fails(corpus.start(output))
    first.send_signal(signal.SIGCONT)
    assert f"BusyError process {first.pid} on " in err
    assert "is writing to" in err
    finish(first)
    assert dataset(output) == corpus.expected


def test_another_host_holds_the_lock(corpus: Corpus, output: Path) -> None:
    folder = Path(f"{output}.unfinished")
    folder.mkdir()
    lock = folder / "lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": 0}))
    err = fails(corpus.start(output))
    assert "process 1 on elsewhere" in err
    assert "if it is dead, try again in 60 seconds" in err
    os.utime(lock, (time.time() - 100, time.time() - 100))
    finish(corpus.start(output))
    assert dataset(output) == corpus.expected


def interrupted(process: subprocess.Popen[str], output: Path, done: int = 1) -> None:
    """Leave an unfinished run behind, with so many pieces."""
    wait_until(lambda: len(pieces(output)) >= done)
    process.kill()
    process.communicate()


def fails(process: subprocess.Popen[str], code: int = 1) -> str:
    """Wait for a process that must fail, with a request that is wrong; what it said."""
    _, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    return err


@pytest.mark.promises
def test_another_run_is_refused(corpus: Corpus, output: Path, tmp_path: Path) -> None:
    interrupted(corpus.start(output), output)
    err = fails(corpus.start(output, append_eod=False))
    assert "ResumeError" in err
    assert "it has append_eod = True, this run has False" in err
    other = byte_tokenizer(tmp_path / "other.json")
    assert "it uses the tokenizer" in fails(corpus.start(output, tokenizer=other))
    fewer = start(corpus.inputs[1:], output, tokenizer=corpus.tokenizer)
    assert "it has 10 inputs, this run has 9" in fails(fewer)
    swapped = [*corpus.inputs[:-2], corpus.inputs[-1], corpus.inputs[-2]]
    assert "where this run reads" in fails(start(swapped, output, tokenizer=corpus.tokenizer))
    nothing_whole(output)
    finish(corpus.start(output, append_eod=False, overwrite=True))
    assert dataset(output)[0] != corpus.expected[0]
    err = fails(corpus.start(output))
    assert "exists and is another dataset (it has append_eod = False, this run has True)" in err
    assert "choose another output, or replace it with overwrite=True" in err
    finish(corpus.start(output, overwrite=True))
    assert dataset(output) == corpus.expected


@pytest.mark.promises
def test_a_changed_input_is_refused(corpus: Corpus, tmp_path: Path, output: Path) -> None:
    copies = [tmp_path / path.name for path in corpus.inputs]
    for path, copy in zip(corpus.inputs, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    interrupted(start(copies, output, tokenizer=corpus.tokenizer, workers=2), output)
    original = copies[4].read_bytes()
    copies[4].write_bytes(original.replace(b"the", b"eht", 1))
    err = fails(start(copies, output, tokenizer=corpus.tokenizer))
    assert "ResumeError" in err
    assert "4.jsonl has changed since" in err
    copies[4].unlink()
    assert "InputError" in fails(start(copies, output, tokenizer=corpus.tokenizer))
    copies[4].write_bytes(original)  # a new time does not matter, a new content would
    finish(start(copies, output, tokenizer=corpus.tokenizer))
    assert dataset(output) == corpus.expected


@pytest.mark.parametrize("how", ["grows", "vanishes"])
def test_an_input_that_changes_while_it_is_read(corpus: Corpus, output: Path, how: str) -> None:
    copies = [output.parent / path.name for path in corpus.inputs]
    for path, copy in zip(corpus.inputs, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    process = start(copies, output, tokenizer=corpus.tokenizer, workers=2)
    wait_until(lambda: pieces(output))
    if how == "vanishes":
        copies[-1].unlink()
    else:
        with copies[-1].open("ab") as file:
            file.write(b'{"text": "late"}\n')
    err = fails(process)
    assert "InputError" in err
    assert "9.jsonl" in err
    nothing_whole(output)


def test_a_defect_in_a_worker(
    corpus: Corpus, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that nobody expected comes with its traceback and the name of the input."""
    plant(part.PartEncoder, "_tokens", ZeroDivisionError("a defect"), patch=monkeypatch)
    with pytest.raises(tokpack.WorkerError, match=r"/\d\.jsonl\b") as caught:
        tokpack.encode(
            [str(path) for path in corpus.inputs],
            str(output),
            tokenizer=str(corpus.tokenizer),
            workers=2,
        )
    assert "ZeroDivisionError: a defect" in str(caught.value)
    assert caught.value.exit_code == 2
    nothing_whole(output)


def test_what_a_worker_says_before_it_ends() -> None:
    """A worker that fails just when it is sent something more ends the run with its own error."""
    ours, theirs = multiprocessing.Pipe()
    theirs.send([StreamEnd(0, 1, None)])
    theirs.send([TaskDone(), OutputError("the disk is full")])
    theirs.close()
    processes: Any = engine.Processes.__new__(engine.Processes)
    processes._workers = [engine._Process(None, ours)]  # type: ignore[arg-type]
    with pytest.raises(OutputError, match="the disk is full"), ours:
        processes._send(SimpleNamespace(outbox=deque([(0, UseSlot(0))])))


def test_spawned_workers(corpus: Corpus, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes cannot be forked they are started anew, and get the job in a pickle."""
    monkeypatch.setattr(engine, "sys", SimpleNamespace(platform="darwin"))
    tokpack.encode(
        [str(path) for path in corpus.inputs],
        str(output),
        tokenizer=str(corpus.tokenizer),
        workers=2,
    )
    assert dataset(output) == corpus.expected


def test_full_disk(corpus: Corpus, tmpfs: Path) -> None:
    output = tmpfs / "out"
    for workers in (1, 2):
        err = fails(corpus.start(output, workers=workers, dtype="int32"), code=2)
        assert "OutputError cannot write" in err
        assert "No space left on device" in err
        nothing_whole(output)
    remount(tmpfs, "size=64m")
    finish(corpus.start(output, dtype="int32"))
    tokens = b"".join(dataset(output)[:1])
    assert len(tokens) == 2 * len(corpus.expected[0])


def test_unwritable_folder(corpus: Corpus, tmpfs: Path) -> None:
    remount(tmpfs, "ro")
    err = fails(corpus.start(tmpfs / "out"))
    assert "OutputError cannot write" in err
    assert "Read-only file system" in err


def test_a_strange_folder_is_left_alone(corpus: Corpus, output: Path) -> None:
    folder = Path(f"{output}.unfinished")
    folder.mkdir()
    (folder / "thesis.tex").write_text("my life")
    assert "it is not a work folder of tokpack" in fails(corpus.start(output, overwrite=True))
    assert (folder / "thesis.tex").read_text() == "my life"


def test_the_manifest_does_not_take_an_inputs_place(corpus: Corpus, tmp_path: Path) -> None:
    source = tmp_path / "wiki.json"
    source.write_bytes(corpus.inputs[0].read_bytes())
    err = fails(start(source, tmp_path / "wiki", tokenizer=corpus.tokenizer, overwrite=True))
    assert "wiki.json is an input and an output" in err
    assert source.read_bytes() == corpus.inputs[0].read_bytes()


def test_the_parent_dies_while_a_stream_is_shared(tmp_path: Path, bpe: Path) -> None:
    """One compressed file, read by one worker for two, killed at random moments."""
    source = write_jsonl(tmp_path / "a.jsonl", documents(12_000, words=160))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes(), 1))
    tokpack.encode(str(source), str(tmp_path / "plain"), tokenizer=str(bpe), workers=1)
    output = tmp_path / "out"
    rng = random.Random(3)
    for _ in range(3):
        process = start(packed, output, tokenizer=bpe, workers=2)
        if process.stdout:
            process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.15))
        process.kill()
        process.communicate()
    finish(start(packed, output, tokenizer=bpe, workers=2))
    assert dataset(output) == dataset(tmp_path / "plain")
