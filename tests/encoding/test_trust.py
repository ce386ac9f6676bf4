"""Nothing stale is called complete, and nothing in a work folder is believed unproved."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import (
    DRIVER,
    byte_tokenizer,
    dataset,
    documents,
    finish,
    start,
    twin,
    wait_until,
    write_jsonl,
)

import tokpack
from tokpack.encoding import part, plan
from tokpack.encoding.folder import WorkFolder
from tokpack.operations import verify
from tokpack.sources import blocks, discover

if TYPE_CHECKING:
    from collections.abc import Iterator

# Parts and blocks of a file, far smaller than they would be, and a join that is durable often.
SMALL = """
import functools
import tokpack.sources.blocks as blocks
import tokpack.encoding.join as join
import tokpack.encoding.plan as plan
join.SYNC_SECONDS = 0.02
plan.make_parts = functools.partial(plan.make_parts, smallest_bytes=48 << 10)
blocks.BLOCK_BYTES = 4 << 10
"""
# The run ends with a SIGKILL at part STOP, when the journal has some of the parts before.
STOP_AT_PART = (
    SMALL
    + """
import json, os, sys, time
import tokpack.encoding.part as part
journal = json.loads(sys.argv[1])["output"] + ".unfinished/journal.json"
def stops(self, number, *more, real=part.PartEncoder.run):
    if number == {part}:
        while not os.path.exists(journal):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    return real(self, number, *more)
part.PartEncoder.run = stops
"""
)
# The run ends when all is joined, before it writes what is missing.
STOP_AT_END = (
    SMALL
    + """
import os
import tokpack.encoding.run as run
run.stage = lambda *_: os.kill(os.getpid(), 9)
"""
)
# The run ends at one of the renames that give the names.
STOP_AT_RENAME = """
import os
def replace(source, target, real=os.replace, count=[0]):
    if ".unfinished" in source and ".unfinished" not in target:
        count[0] += 1
        if count[0] > {done}:
            os.kill(os.getpid(), 9)
    real(source, target)
os.replace = replace
"""


class Place:
    """A folder with one input of many lines, which is cut into several parts.

    ``kept`` is where runs that were stopped are kept: the same one is not made again.
    """

    def __init__(self, folder: Path, tokenizer: Path, kept: Path) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.kept = kept
        self.texts = documents(600, words=100)
        self.source = write_jsonl(folder / "a.jsonl", self.texts)
        os.utime(self.source, (1_700_000_000, 1_700_000_000))
        self.output = folder / "out"
        self.work = Path(f"{self.output}.unfinished")

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "inputs": str(self.source),
            "output": str(self.output),
            "tokenizer": str(self.tokenizer),
            "workers": 1,
            **more,
        }

    def encode(self, **more: Any) -> list[tokpack.Manifest]:
        with pytest.MonkeyPatch.context() as patch:
            cut = functools.partial(plan.make_parts, smallest_bytes=48 << 10)
            patch.setattr(plan, "make_parts", cut)
            patch.setattr(blocks, "BLOCK_BYTES", 4 << 10)
            return tokpack.encode(**self.options(**more))

    def stop(self, script: str, **more: Any) -> None:
        """A run that kills itself."""
        state = [script, more, hashlib.sha256(self.source.read_bytes()).hexdigest()]
        kept = self.kept / hashlib.sha256(json.dumps(state).encode()).hexdigest()
        if not kept.exists():
            command = [sys.executable, "-c", script + DRIVER, json.dumps(self.options(**more))]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == -signal.SIGKILL, done.stderr
            kept.mkdir()
            for path in self.folder.glob("out*"):
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, kept / path.name)
        for path in kept.iterdir():
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            shutil.rmtree(self.output.parent / path.name, ignore_errors=True)
            copy(path, self.output.parent / path.name)

    def stop_at_part(self, number: int = 4, **more: Any) -> None:
        self.stop(STOP_AT_PART.format(part=number), **more)

    def right(self) -> None:
        """The dataset is that of the input as it is now, and verify says so."""
        texts = [json.loads(line)["text"] for line in self.source.read_bytes().splitlines()]
        assert dataset(self.output) == twin(self.tokenizer, texts)
        verify(str(self.output))
        assert not self.work.exists()

    def edit(self, begin: float, end: float) -> None:
        """Change letters in a part of the input, in place, that is in no sample of its fingerprint.

        The time is a new one.
        """
        status = self.source.stat()
        before = discover([str(self.source)])[0].fingerprint()
        data = bytearray(self.source.read_bytes())
        first, last = int(len(data) * begin), int(len(data) * end)
        data[first:last] = data[first:last].replace(b"the", b"and").replace(b"was", b"for")
        assert bytes(data) != self.source.read_bytes()
        with self.source.open("r+b") as file:
            file.write(data)
        os.utime(self.source, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
        assert self.source.stat().st_size == status.st_size
        assert discover([str(self.source)])[0].fingerprint() == before

    def touch(self) -> None:
        status = self.source.stat()
        os.utime(self.source, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def place(tmp_path: Path, tokenizer: Path, kept: Path) -> Place:
    return Place(tmp_path, tokenizer, kept)


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 4
    path.write_bytes(data)


# -- inputs that change -------------------------------------------------------------------------


def test_an_edited_input_is_not_complete(place: Place) -> None:
    place.encode()
    before = place.output.with_suffix(".bin").stat().st_mtime_ns
    place.encode()
    place.touch()  # another time, the same content
    place.encode()
    assert place.output.with_suffix(".bin").stat().st_mtime_ns == before
    place.edit(0.2, 0.4)
    with pytest.raises(tokpack.OutputError, match=r"made from .*a\.jsonl, which has changed since"):
        place.encode()
    place.encode(overwrite=True)
    place.right()


def test_the_content_of_an_input_does_not_depend_on_its_parts(place: Place) -> None:
    whole = place.encode()[0].inputs[0]["content"]
    place.stop_at_part(3, overwrite=True)
    parts = place.encode()[0].inputs[0]["content"]
    assert whole == parts
    assert len(whole) == 32


def test_a_manifest_without_times(place: Place) -> None:
    """Of an earlier version: an input that is older than the dataset is taken for the same."""
    os.utime(place.source, (1, 1))
    place.encode()
    path = place.output.with_suffix(".json")
    manifest = json.loads(path.read_text())
    for name in ("mtime_ns", "content"):
        del manifest["inputs"][0][name]
    path.write_text(json.dumps(manifest))
    place.encode()
    os.utime(place.source)
    with pytest.raises(tokpack.OutputError, match="may have changed since"):
        place.encode()


def test_the_first_records_of_an_input_that_may_have_changed(place: Place) -> None:
    """Of an input that was not read to its end nothing is known but its time."""
    place.encode(limit=10)
    place.encode(limit=10)
    place.touch()
    with pytest.raises(tokpack.OutputError, match="may have changed since"):
        place.encode(limit=10)


def test_an_input_that_was_edited_while_its_run_was_stopped(place: Place) -> None:
    place.stop_at_part()
    place.edit(0.2, 0.25)  # of a part that is done
    with pytest.raises(tokpack.ResumeError, match=r"a\.jsonl has changed since"):
        place.encode()
    place.encode(overwrite=True)
    place.right()


@pytest.mark.parametrize("how", ["touched", "edited"])
def test_an_input_that_was_touched_or_edited_further_on(place: Place, how: str) -> None:
    """What was encoded is kept where all that it depends on is the same."""
    place.stop_at_part()
    if how == "touched":
        place.touch()
    else:
        place.edit(0.7, 0.8)
    began: list[int] = []
    place.encode(progress=lambda now: began.append(now.documents))
    assert began[0] > 100
    place.right()


def test_a_stream_whose_time_changed(place: Place) -> None:
    """A stream that is read as a whole is compared as a whole, or read again."""
    packed = gzip.compress(place.source.read_bytes(), 0)
    stream = place.folder / "b.jsonl.gz"
    stream.write_bytes(packed)
    other = str(shutil.copy2(place.source, place.folder / "c.jsonl"))
    inputs = [str(stream), str(place.source), other]
    place.stop_at_part(2, inputs=inputs)  # which no other test has
    os.utime(stream, (5, 5))
    place.encode(inputs=inputs)
    assert dataset(place.output) == twin(place.tokenizer, place.texts * 3)
    os.utime(stream, (6, 6))
    place.encode(inputs=inputs)
    with stream.open("r+b") as file:
        file.seek(len(packed) // 4)
        file.write(b"\0\0\0\0")
    with pytest.raises(tokpack.OutputError, match=r"b\.jsonl\.gz, which has changed since"):
        place.encode(inputs=inputs)


# -- what is found in a work folder -------------------------------------------------------------


@pytest.mark.parametrize("track", ["ids", "lengths", "lines"])
@pytest.mark.parametrize("at", [0.0, 0.5, 0.999])
def test_a_flipped_bit_in_what_is_joined(place: Place, track: str, at: float) -> None:
    place.stop(STOP_AT_END, trace=True)
    flip(place.work / f"joined.text.{track}", at)
    place.encode(trace=True)
    place.right()


def test_a_flipped_bit_after_some_parts(place: Place) -> None:
    place.stop_at_part()
    flip(place.work / "joined.text.ids")
    place.encode()
    place.right()


def edited_plan(place: Place, change: Any) -> None:
    path = place.work / "plan.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["parts"].pop(1),
        lambda value: value["parts"].reverse(),
        lambda value: value["parts"][0].update(end=1000),
        lambda value: value["inputs"][0].update(size=7),
        lambda value: value.update(parts="all"),
        lambda value: value.clear(),
    ],
)
def test_a_damaged_plan_is_refused(place: Place, change: Any) -> None:
    place.stop_at_part()
    edited_plan(place, change)
    with pytest.raises(tokpack.ResumeError, match=r"plan\.json is damaged.*--overwrite"):
        place.encode()
    place.encode(overwrite=True)
    place.right()


WRONG = ["[]", "null", '{"groups": 99}', "[" * 50_000, "9" * 5000]


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("name", ["journal.json", "commit.json", "000001.json"])
def test_json_of_the_wrong_kind(place: Place, name: str, text: str) -> None:
    place.stop_at_part()
    (place.work / name).write_text(text)
    place.encode()
    place.right()


@pytest.mark.parametrize("value", [{"groups": "x"}, {"groups": 99}, {}])
def test_a_journal_that_only_looks_right(place: Place, value: Any) -> None:
    place.stop_at_part()
    WorkFolder(str(place.work)).write_json("journal.json", value)
    place.encode()
    place.right()


@pytest.mark.parametrize(
    "change",
    [
        {"records": "x"},
        {"records": -1},
        {"keys": []},
        {"extents": [[0, 1]]},
        {"checksums": []},
        {"number": 2},
        {"more": 1},
    ],
)
def test_a_piece_that_only_looks_right(place: Place, change: dict[str, Any]) -> None:
    place.stop_at_part()
    folder = WorkFolder(str(place.work))
    value = folder.read_json("000001.json")
    assert value is not None
    folder.write_json("000001.json", {**value, **change})
    place.encode()
    place.right()


@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "text"])
def test_damaged_bad_records_are_made_again(place: Place, damage: str) -> None:
    with place.source.open("ab") as file:
        file.write(b'{"text": 1}\n' * 5)
    lines = place.source.read_bytes().splitlines(keepends=True)
    place.source.write_bytes(b"".join(lines[-5:] + lines[:-5]))
    place.stop_at_part(on_error="skip")
    path = place.work / "000000.rejects.jsonl"
    if damage == "flip":
        flip(path)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 20)
    elif damage == "text":
        path.write_bytes(b"\n" * 5)
    else:
        path.unlink()
    manifest = place.encode(on_error="skip")[0]
    assert manifest.rejected == 5
    rejects = Path(f"{place.output}.rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in rejects] == [1, 2, 3, 4, 5]
    verify(str(place.output))


def test_verify_proves_the_run(place: Place) -> None:
    """The checksum of the manifest is that of what was encoded, not of what is found at the end."""
    script = """
import tokpack.encoding.run as run
def late(job, *more, real=run.stage):
    with open(job.folder.joined("text.ids"), "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    real(job, *more)
run.stage = late
"""
    finish_script(place, script)
    with pytest.raises(tokpack.TokpackError):
        verify(str(place.output))


def finish_script(place: Place, script: str, **more: Any) -> None:
    command = [sys.executable, "-c", script + DRIVER, json.dumps(place.options(**more))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


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
        {"prefixes": {"text": "out"}, "files": [], "replaces": 5},
    ):
        place.stop_at_part()
        folder.write_json("commit.json", value)
        with pytest.raises(tokpack.ResumeError, match="remove"):
            place.encode()
        shutil.rmtree(place.work)
    assert victim.read_text() == "mine"
    assert not (place.folder / "out.bin").exists()


@pytest.mark.parametrize("kind", ["ids", "idx", "manifest.json"])
def test_what_is_damaged_before_it_has_its_name_is_made_again(place: Place, kind: str) -> None:
    place.stop(STOP_AT_RENAME.format(done=0))
    flip(place.work / f"joined.text.{kind}")
    place.encode()
    place.right()


def test_what_is_damaged_among_the_renames_is_refused(place: Place) -> None:
    place.stop(STOP_AT_RENAME.format(done=1))
    flip(place.output.with_suffix(".bin"))
    with pytest.raises(tokpack.OutputError, match=r"out\.bin is not what the run wrote.*remove"):
        place.encode()
    place.output.with_suffix(".bin").unlink()
    shutil.rmtree(place.work)
    place.encode()
    place.right()


@pytest.mark.parametrize("done", [0, 1])
def test_what_came_while_a_run_was_stopped_is_not_replaced(place: Place, done: int) -> None:
    place.stop(STOP_AT_RENAME.format(done=done))
    mine = place.output.with_suffix(".idx")
    mine.write_text("mine")
    with pytest.raises(tokpack.OutputError, match=r"out\.idx was put there"):
        place.encode()
    assert mine.read_text() == "mine"
    mine.unlink()
    place.encode()
    place.right()


def test_what_came_while_a_run_worked_is_not_replaced(place: Place) -> None:
    mine = place.output.with_suffix(".bin")
    script = f"""
import tokpack.encoding.run as run
def late(*args, real=run.stage):
    open({str(mine)!r}, "w").write("mine")
    real(*args)
run.stage = late
"""
    command = [sys.executable, "-c", script + DRIVER, json.dumps(place.options())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
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
    assert f"OutputError process {first.pid} on " in said
    finish(first)
    assert sorted(path.name for path in place.folder.glob("out*")) == sorted(
        f"out_{key}.{end}" for key in ("text", "title") for end in ("bin", "idx", "json")
    )


# -- links and other users ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "joined.text.ids", "000004.text.ids", "plan.json"])
def test_links_in_a_work_folder_are_not_followed(place: Place, name: str) -> None:
    victim = place.folder / "victim"
    victim.write_text("mine")
    place.stop_at_part()
    (place.work / name).unlink(missing_ok=True)
    (place.work / name).symlink_to(victim)
    if name == "000004.text.ids":  # it is made anew
        place.encode()
    else:
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
    with pytest.raises(tokpack.OutputError, match="is a link or a file"):
        place.encode()
    assert not list(other.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_not_used(place: Place) -> None:
    place.stop_at_part()
    os.chown(place.work, 12345, -1)
    with pytest.raises(tokpack.OutputError, match=r"belongs to another user \(number 12345\)"):
        place.encode()
    os.chown(place.work, 0, -1)
    place.encode()
    place.right()


# -- what a run says at its end -----------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of eight megabytes; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if made.returncode:
        pytest.skip(f"cannot mount a small file system here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_without_room_for_the_index_is_an_error(small_disk: Path, place: Place) -> None:
    """No map is written to a file that has no space: that would end the process."""
    place.source.write_text('{"text": "a"}\n' * 60_000)
    place.stop(STOP_AT_END)
    place.output = Path(shutil.move(place.work, small_disk / "out.unfinished")).with_suffix("")
    place.work = Path(f"{place.output}.unfinished")
    free = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as file:
        file.write(bytes(free.f_bavail * free.f_bsize - (64 << 10)))
    command = [sys.executable, "-c", SMALL + DRIVER, json.dumps(place.options())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.returncode
    assert "No space left on device" in done.stderr
    (small_disk / "filler").unlink()
    place.encode()
    place.right()


@pytest.mark.parametrize("workers", [1, 2])
def test_want_of_memory_names_the_input(
    place: Place, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(part.PartEncoder, "_tokens", broken)
    other = shutil.copy(place.source, place.folder / "b.jsonl")
    with pytest.raises(tokpack.WorkerError, match=r"memory for .*\.jsonl.*--workers") as caught:
        place.encode(inputs=[str(place.source), other], workers=workers)
    assert "\n" not in str(caught.value)


def test_an_input_that_cannot_be_read_is_named(place: Place) -> None:
    """The memory of a process is a file that gives EIO at its beginning."""
    if not Path("/proc/self/mem").exists():
        pytest.skip("no /proc here")
    broken = place.folder / "b.jsonl"
    broken.symlink_to("/proc/self/mem")
    with pytest.raises(tokpack.InputError, match=r"b\.jsonl: Input/output error"):
        place.encode(inputs=[str(place.source), str(broken)])
