"""A lock file: one process at a time, also where one is forked meanwhile, and without flock."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tokpack.errors import BusyError, OutputError
from tokpack.storage.disk import lock
from tokpack.storage.disk.durable import Identity, same_file
from tokpack.storage.disk.lock import Lock, turn

if TYPE_CHECKING:
    from pathlib import Path

HERE = socket.gethostname()


@pytest.fixture(params=["flock", "none"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the system's locks, and on a file system that has none."""
    if request.param == "none":
        monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "ORPHAN_SECONDS", 0.2)
    return str(request.param)


def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def record(path: Path, owner: Any, age: float = 0.0) -> None:
    path.write_text(json.dumps(owner))
    os.utime(path, (time.time() - age,) * 2)


@pytest.mark.usefixtures("locks")
def test_of_two_runs_the_second_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "work" / "lock"
    with Lock(path.parent):
        files = os.listdir("/proc/self/fd")
        owner = json.loads(path.read_bytes())
        assert (owner["host"], owner["pid"]) == (HERE, os.getpid())
        told = rf"\b{os.getpid()} on {HERE}, since 2\d\d\d-.*/work:"
        with pytest.raises(BusyError, match=told) as refused, Lock(path.parent):
            pass
        assert "seconds" not in str(refused.value)
        assert json.loads(path.read_bytes()) == owner
        assert os.listdir("/proc/self/fd") == files
    assert path.read_bytes() == b""
    with Lock(path.parent):
        record(path, {"host": "x", "pid": 1})
    assert path.stat().st_size  # another's record stays


@pytest.mark.parametrize(
    ("owner", "age", "is_held"),
    [
        ({"host": HERE, "pid": dead(), "more": "x" * 200}, 0, False),
        ({}, 0, False),
        ([1], 0, False),
        ({"host": "elsewhere", "pid": 1}, 0, True),
        ({"host": "elsewhere", "pid": 1}, lock.FOREIGN_SECONDS - 5, True),
        ({"host": "elsewhere", "pid": 1}, lock.FOREIGN_SECONDS + 5, False),
    ],
)
@pytest.mark.usefixtures("locks")
def test_the_dead_hold_nothing(tmp_path: Path, owner: Any, age: float, is_held: bool) -> None:
    record(tmp_path / "lock", owner, age)
    if "elsewhere" in str(owner):
        (tmp_path / "lock.probe").touch()  # of one that was killed
    if is_held:
        with pytest.raises(BusyError, match=r"\b1 on elsewhere, .* 60 seconds"):
            Lock(tmp_path).__enter__()
    else:
        with Lock(tmp_path):
            assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == ["lock"]


@pytest.mark.parametrize("since", [1e300, "x", None, -1e18, 0])
def test_a_record_of_any_kind_is_told(tmp_path: Path, since: Any) -> None:
    record(tmp_path / "lock", {"host": "elsewhere", "pid": "?", "since": since})
    with pytest.raises(BusyError, match=r"\? on elsewhere, .*60 seconds"):
        Lock(tmp_path).__enter__()


@pytest.mark.parametrize("pid", [os.getpid(), "?"], ids=["of this process", "none"])
def test_without_flock_the_record_alone_tells(tmp_path: Path, locks: str, pid: Any) -> None:
    """With it a free lock is free, though another process has the number by now."""
    record(tmp_path / "lock", {"host": HERE, "pid": pid})
    if locks == "flock":
        with Lock(tmp_path):
            return
    with pytest.raises(BusyError):
        Lock(tmp_path).__enter__()


def test_who_holds_a_lock_need_not_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "ORPHAN_SECONDS", 0.0)
    with Lock(tmp_path):
        (tmp_path / "lock").write_bytes(b"")
        with pytest.raises(BusyError, match=rf"^(?!process).*{tmp_path}:(?!.*seconds)"):
            Lock(tmp_path).__enter__()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file/lock"):
        Lock(tmp_path / "file").__enter__()


@pytest.mark.parametrize("seconds", [60.0, 0.2])
def test_a_run_waits_for_the_workers_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """They hold the lock for a moment when the process of the record is dead."""
    monkeypatch.setattr(lock, "ORPHAN_SECONDS", seconds)
    code = "from tokpack.storage.disk.lock import *; import sys; "
    code += "Lock(sys.argv[1]).__enter__(); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        worker.stdout.readline()
        record(tmp_path / "lock", {"host": HERE, "pid": dead()})
        tries, real = iter(range(3)), lock.try_flock

        def try_flock(file: int) -> bool | None:
            if next(tries, None) is None and seconds > 1:
                worker.communicate()
            return real(file)

        files = os.listdir("/proc/self/fd")
        monkeypatch.setattr(lock, "try_flock", try_flock)
        if seconds > 1:
            with Lock(tmp_path):
                assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
        else:
            with pytest.raises(BusyError):
                Lock(tmp_path).__enter__()
            assert os.listdir("/proc/self/fd") == files


def test_a_lock_that_its_holder_removes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened it before takes the one that is there now."""
    real, removed = lock.try_flock, list[int]()

    def try_flock(file: int) -> bool | None:
        if not removed:
            removed.append(file)
            os.unlink(tmp_path / "lock")
        return real(file)

    monkeypatch.setattr(lock, "try_flock", try_flock)
    with Lock(tmp_path) as held:
        assert removed
        assert same_file(str(tmp_path / "lock")) == Identity.of(os.fstat(held._file))[:2]


@pytest.mark.parametrize("is_left", [False, True])
def test_a_run_that_removes_its_lock_removes_the_folder(tmp_path: Path, is_left: bool) -> None:
    folder = tmp_path / "work"
    with Lock(folder):
        os.unlink(folder / "lock")
        if is_left:
            (folder / "file").touch()
    assert folder.exists() == is_left


def test_a_beat_keeps_the_file_young_and_tells_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    with Lock(tmp_path) as held:
        for ago, is_due in ((9, False), (11, True), (0, False)):
            if ago:
                monkeypatch.setattr(held, "_beaten", time.monotonic() - ago)
            os.utime(path, (0, 0))
            held.beat()
            assert (path.stat().st_mtime > 0) == is_due
        monkeypatch.setattr(held, "_beaten", -99.0)
        record(path, {"host": "elsewhere", "pid": 1})
        with pytest.raises(BusyError, match=r"\b1 on elsewhere"):
            held.beat()


def test_what_this_process_holds_is_held_until_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.001)
    for _ in range(2):
        lock.hold(tmp_path)
    path = tmp_path / "lock"
    with pytest.raises(BusyError):
        Lock(tmp_path).__enter__()
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 30
    while not path.stat().st_mtime and time.monotonic() < deadline:
        time.sleep(0.001)
    assert path.stat().st_mtime
    lock.release()
    with lock.held(str(tmp_path)), pytest.raises(BusyError):
        Lock(tmp_path).__enter__()
    with Lock(tmp_path):
        pass


def test_a_fork_keeps_no_turn(tmp_path: Path) -> None:
    """It has the file open too, and lives longer."""
    path = f"{tmp_path}/lock"
    reading, writing = os.pipe()
    with turn(path):
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the test ends
            os._exit(0)
    begun = time.monotonic()
    with turn(path, seconds=20) as waited:
        assert not waited
    assert time.monotonic() - begun < 20
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


def test_a_fork_does_not_end_a_turn(tmp_path: Path) -> None:
    """The file is locked until the process ends it that began it."""
    path = f"{tmp_path}/lock"
    ours = turn(path)
    with ours:
        child = os.fork()
        if not child:
            ours.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        with turn(path, seconds=0.1) as waited:
            assert waited


def test_a_turn_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/new/lock"
    with turn(path) as first:
        assert not first
        begun = time.monotonic()
        with turn(path, seconds=0.1) as second:
            assert second
        assert time.monotonic() - begun >= 0.1
        monkeypatch.setattr(lock, "fcntl", None)  # nor where nothing locks
        with turn(path) as third:
            assert not third


def test_a_turn_whose_file_is_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work" / "lock"
    real, make = lock.try_flock, os.makedirs
    removed, unmade = list[int](), [2]

    def try_flock(file: int) -> bool | None:
        if not removed:
            removed.append(file)
            os.unlink(path)
        return real(file)

    def makedirs(folder: str, exist_ok: bool) -> None:
        if not unmade[0]:
            make(folder, exist_ok=exist_ok)
        unmade[0] -= unmade[0] > 0

    monkeypatch.setattr(lock, "try_flock", try_flock)
    monkeypatch.setattr(os, "makedirs", makedirs)
    with turn(str(path)) as waited:
        assert waited
        assert path.exists()
    unmade[0] = lock._REMOVED + 1
    with pytest.raises(FileNotFoundError), turn(str(tmp_path / "none" / "lock")):
        pass
    assert not unmade[0]
