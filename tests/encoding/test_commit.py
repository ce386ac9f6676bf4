"""What is complete gets its names, and nothing else; whose folder and whose disk a run may use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import drive, finish, start, wait_until, write_jsonl
from support.faults import flip, plant
from support.stopped_runs import SMALL, STOP_AT_END, Place, stop_at_rename

import tokpack
from tokpack.encoding import part
from tokpack.encoding.folder import WorkFolder
from tokpack.storage.disk import lock

if TYPE_CHECKING:
    from collections.abc import Callable


# -- the commit ---------------------------------------------------------------------------------


def test_a_commit_names_nothing_outside(place: Place) -> None:
    """Where files go is computed, also when commit.json has the right checksum."""
    victim = place.folder / "victim"
    victim.write_text("mine")
    folder = WorkFolder(str(place.work))
    for value in (
        {"renames": [["plan.json", "../victim"]], "remove": ["victim"]},
        {"prefixes": {"text": "out"}, "files": {"../victim": {}}, "replaces": {}},
        {"prefixes": {"text": "../victim"}, "files": {}, "replaces": {}},
        {"prefixes": {"text": "out"}, "files": [], "replaces": {}},
        {"prefixes": {"text": "out"}, "files": {}, "replaces": 5},
    ):
        place.stop_at_part()
        folder.write_json("commit.json", value)
        with pytest.raises(tokpack.ResumeError):
            place.encode()
        shutil.rmtree(place.work)
    assert victim.read_text() == "mine"
    assert not (place.folder / "out.bin").exists()


@pytest.mark.parametrize("kind", ["ids", "idx", "manifest.json"])
def test_what_is_damaged_before_it_has_its_name_is_made_again(place: Place, kind: str) -> None:
    place.stop(stop_at_rename(0))
    path = place.work / f"joined.text.{kind}"
    flip(path)
    damaged = path.read_bytes()
    place.stop(stop_at_rename(0))  # it is made, and stopped there again
    assert path.read_bytes() != damaged
    place.encode()
    place.right()


@pytest.mark.promises
def test_what_is_damaged_among_the_renames_is_refused(place: Place) -> None:
    place.stop(stop_at_rename(1))
    flip(place.output.with_suffix(".bin"))
    with pytest.raises(tokpack.OutputError, match=r"out\.bin .*out\.unfinished"):
        place.encode()
    place.output.with_suffix(".bin").unlink()
    shutil.rmtree(place.work)
    place.encode()
    place.right()


@pytest.mark.parametrize("done", [0, 1])
def test_an_input_that_changed_before_the_renames(place: Place, done: int) -> None:
    place.stop(stop_at_rename(done))
    place.touch()
    place.encode()
    place.right()
    for path in place.folder.glob("out.*"):
        path.unlink()
    place.stop(stop_at_rename(done))
    place.edit(0.2, 0.4)
    if done:
        with pytest.raises(tokpack.OutputError, match=r"out\.bin"):
            place.encode()
    place.encode(overwrite=bool(done))
    place.right()


@pytest.mark.promises
@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("done", [0, 1])
def test_what_came_while_a_run_was_stopped_is_not_replaced(
    place: Place, done: int, is_link: bool
) -> None:
    place.stop(stop_at_rename(done))
    mine = place.output.with_suffix(".idx")
    mine.symlink_to("nowhere") if is_link else mine.write_text("mine")
    with pytest.raises(tokpack.OutputError, match=r"out\.idx appeared"):
        place.encode()
    assert mine.is_symlink() if is_link else mine.read_text() == "mine"
    mine.unlink()
    place.encode()
    place.right()


def test_what_is_no_manifest_is_not_replaced_by_a_run_that_goes_on(place: Place) -> None:
    place.stop(stop_at_rename(0))
    mine = place.output.with_suffix(".json")
    mine.write_text('{"mine": 1}')
    with pytest.raises(tokpack.OutputError, match=r"out\.json"):
        place.encode(overwrite=True)
    assert mine.read_text() == '{"mine": 1}'
    mine.unlink()
    place.encode(overwrite=True)
    place.right()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_came_while_a_run_worked_is_not_replaced(place: Place, overwrite: bool) -> None:
    """Also where it may replace what was there when it began."""
    mine = place.output.with_suffix(".bin")
    script = f"""
import tokpack.encoding.run as run
def late(*args, real=run.stage):
    open({str(mine)!r}, "w").write("mine")
    return real(*args)
run.stage = late
"""
    if overwrite:
        mine.write_text("old")
    done = drive(place.options(overwrite=overwrite), script)
    assert done.returncode == 1
    assert "out.bin exists: choose another output" in done.stderr
    assert mine.read_text() == "mine"
    mine.unlink()
    place.encode()
    place.right()


def test_runs_with_a_prefix_in_common_exclude_each_other(place: Place) -> None:
    keys = {**place.options(), "keys": ["text", "id"], "on_error": "skip"}
    write_jsonl(place.source, place.texts * 20, title="x")
    keys["keys"] = ["text", "title"]
    inputs, output = Path(keys.pop("inputs")), Path(keys.pop("output"))
    first = start(inputs, output, **keys)
    wait_until(lambda: (place.work / "plan.json").exists() or first.poll() is not None)
    first.send_signal(signal.SIGSTOP)
    second = start(inputs, Path(f"{output}_title"), tokenizer=place.tokenizer)
    _, said = second.communicate(timeout=60)
    first.send_signal(signal.SIGCONT)
    assert f"BusyError process {first.pid} on " in said
    finish(first)
    assert sorted(path.name for path in place.folder.glob("out*")) == sorted(
        f"out_{key}.{end}" for key in ("text", "title") for end in ("bin", "idx", "json")
    )


@pytest.mark.parametrize("hidden", [".nfs0001", ".fuse_hidden0001"])
def test_a_removed_file_that_stays_while_it_is_open(
    place: Place, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    """NFS and FUSE keep it in its folder, by another name: the folder goes with the lock."""
    unlink, close, names = os.unlink, os.close, set[str]()

    def hide(path: str) -> None:
        if os.path.basename(path) != "lock":
            return unlink(path)
        names.add(os.path.join(os.path.dirname(path), hidden))
        return os.rename(path, *names)

    def unhide(file: int) -> None:
        close(file)
        for path in names:
            Path(path).unlink(missing_ok=True)

    monkeypatch.setattr(os, "unlink", hide)
    monkeypatch.setattr(lock.os, "close", unhide)
    place.encode()
    place.right()
    assert sorted(path.name for path in place.folder.glob("out*")) == [
        "out.bin",
        "out.idx",
        "out.json",
    ]
    place.source.write_text('{"text": 1}\n')
    with pytest.raises(tokpack.RecordError):
        place.encode(overwrite=True)
    assert len(names) == 1
    assert not place.work.exists()


def test_a_run_ends_whose_lock_another_host_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", -1.0)
    taken = json.dumps({"host": "elsewhere", "pid": 1, "since": 0})
    with lock.Lock(tmp_path) as own:
        own.beat()
        (tmp_path / "lock").write_text(taken)
        with pytest.raises(tokpack.BusyError):
            own.beat()
    assert (tmp_path / "lock").read_text() == taken


# -- links and other users ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "joined.text.ids", "journal.jsonl", "plan.json"])
def test_links_in_a_work_folder_are_not_followed(place: Place, name: str) -> None:
    victim = place.folder / "victim"
    victim.write_text("mine")
    place.stop_at_part()
    (place.work / name).unlink(missing_ok=True)
    (place.work / name).symlink_to(victim)
    with pytest.raises(tokpack.OutputError, match=name):
        place.encode()
    shutil.rmtree(place.work)
    place.encode()
    assert victim.read_text() == "mine"
    place.right()


def test_a_link_is_no_work_folder(place: Place) -> None:
    other = place.folder / "other"
    other.mkdir()
    place.work.symlink_to(other)
    with pytest.raises(tokpack.OutputError, match=r"out\.unfinished .*link"):
        place.encode()
    assert not list(other.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_not_used(place: Place) -> None:
    place.stop_at_part()
    os.chown(place.work, 12345, -1)
    with pytest.raises(tokpack.OutputError, match=r"out\.unfinished .*\b12345\b"):
        place.encode()
    os.chown(place.work, 0, -1)
    place.encode()
    place.right()


# -- what a run says at its end -----------------------------------------------------------------


@pytest.fixture
def small_disk(mount: Callable[[int], Path]) -> Path:
    """A file system of its own, of eight megabytes; only root may make one."""
    return mount(8 << 20)


def test_a_disk_without_room_for_the_index_is_an_error(small_disk: Path, place: Place) -> None:
    """No map is written to a file that has no space: that would end the process."""
    place.source.write_text('{"text": "a"}\n' * 60_000)
    place.stop(STOP_AT_END)
    place.output = Path(shutil.move(place.work, small_disk / "out.unfinished")).with_suffix("")
    place.work = Path(f"{place.output}.unfinished")
    free = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as file:
        file.write(bytes(free.f_bavail * free.f_bsize - (64 << 10)))
    done = drive(place.options(), SMALL)
    assert done.returncode == 2, done.returncode  # not the request is wrong, but the machine
    assert "No space left on device" in done.stderr
    (small_disk / "filler").unlink()
    place.encode()
    place.right()


@pytest.mark.parametrize("workers", [1, 2])
def test_want_of_memory_names_the_input(
    place: Place, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(part.PartEncoder, "_tokens", MemoryError("std::bad_alloc"), patch=monkeypatch)
    other = shutil.copy(place.source, place.folder / "b.jsonl")
    with pytest.raises(tokpack.WorkerError, match=r"\.jsonl .*bad_alloc.*workers") as caught:
        place.encode(inputs=[str(place.source), other], workers=workers)
    assert "\n" not in str(caught.value)


def test_an_input_that_cannot_be_read_is_named(place: Place) -> None:
    """The memory of a process is a file that gives EIO at its beginning."""
    if not Path("/proc/self/mem").exists():
        pytest.skip("no /proc here")
    broken = place.folder / "b.jsonl"
    broken.symlink_to("/proc/self/mem")
    with pytest.raises(tokpack.InputError, match=r"b\.jsonl"):
        place.encode(inputs=[str(place.source), str(broken)])


NO_MEMORY = """
import functools, json, re, resource, sys
import tokpack
from tokpack.encoding import engine, plan
plan.make_parts = functools.partial(plan.make_parts, smallest_bytes=48 << 10)
def limited(real=engine.use_in_this_process):
    real()
    used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    most = used + (9000 << 10)  # enough for the stack of a thread
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    rest = []
    try:
        while True:
            rest.append(bytearray(3000))
    except MemoryError:
        del rest[-4:]
    limited.kept = rest
engine.use_in_this_process = limited
engine.START_SECONDS = 3.0
try:
    tokpack.encode(**json.loads(sys.argv[1]))
except tokpack.WorkerError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_worker_that_has_no_memory_to_start(place: Place) -> None:
    """It does not wait for a thread that died for want of memory."""
    command = [sys.executable, "-c", NO_MEMORY, json.dumps(place.options(workers=2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "memory" in done.stdout, done
    assert "Traceback" not in done.stdout
