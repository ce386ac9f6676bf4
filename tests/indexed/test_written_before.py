"""What tokpack 0.1.0 wrote is read, verified, chosen from, blended and gone on with, as then."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest
from support.cli_tools import tokpack as command
from support.places import GOLDEN
from support.written import contents, digests, first_samples

import tokpack
from tokpack import cli

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = GOLDEN / "written"
EXPECTED: dict[str, Any] = json.loads((WRITTEN / "expected.json").read_text())
DATASETS: dict[str, Any] = EXPECTED["datasets"]
LONG_AGO = 1_700_000_000


def copy_to(folder: Path) -> Path:
    """A copy elsewhere, with times of its own, as a checkout has."""
    copy = folder / "moved"
    shutil.copytree(WRITTEN, copy, copy_function=shutil.copyfile)
    for lock in copy.glob("*/lock"):  # names another machine, whose run may live for a minute
        os.utime(lock, (LONG_AGO, LONG_AGO))
    return copy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy for a test that writes; the current folder."""
    copy = copy_to(tmp_path)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for tests that read."""
    return copy_to(tmp_path_factory.mktemp("written"))


@pytest.fixture
def only_read(moved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(moved)


def run(*words: str) -> None:
    assert not cli.main(list(words))


@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize("prefix", DATASETS)
def test_documents_tracks_and_tables(prefix: str) -> None:
    assert contents(prefix) == DATASETS[prefix]


@pytest.mark.usefixtures("only_read")
def test_all_of_it_verifies() -> None:
    run("verify", *DATASETS)


@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize("prefix", DATASETS)
def test_what_inspect_says(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of views without their tokenizer, whose path names nothing: it says no bytes for a token."""
    run("inspect", prefix, "--json")
    said, before = json.loads(capsys.readouterr().out), EXPECTED["inspect"][prefix]
    assert {name: said[name] for name in before} == before


@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize("blend", EXPECTED["samples"])
def test_samples_of_blends(blend: str) -> None:
    assert first_samples(blend) == EXPECTED["samples"][blend]


def test_a_cache_is_used(folder: Path) -> None:
    before = {path: path.read_bytes() for path in (folder / "cache").iterdir()}
    built = tokpack.open_blend("megatron.yaml", cache="cache")
    parts = [built.train[k]["tokens"].tolist() for k in range(6)]
    assert parts == EXPECTED["samples"]["megatron.yaml"]["train"]
    assert {path: path.read_bytes() for path in (folder / "cache").iterdir()} == before


def test_a_finished_run_is_known_again(folder: Path) -> None:
    """Its inputs and tokenizer lie elsewhere, and have other times."""
    before = digests("plain")
    time = (folder / "plain.bin").stat().st_mtime_ns
    words = "encode texts.jsonl -o plain --tokenizer tokenizer --workers 1 -q"
    run(*words.split())
    assert digests("plain") == before
    assert (folder / "plain.bin").stat().st_mtime_ns == time


@pytest.mark.skipif(sys.platform != "linux", reason="the plan names its inputs below /proc")
def test_a_plan_goes_on(folder: Path) -> None:
    done = (folder / "begun-00001.bin").stat().st_mtime_ns
    words = ("encode", "--plan", "begun", "--shard", "0-2", "--workers", "1", "-q")
    if tokpack.__version__ != EXPECTED["version"]:
        with pytest.raises(tokpack.ResumeError, match=EXPECTED["version"]):
            tokpack.encode_shard("begun", 0, workers=1)
        return
    run(*words)
    run("shards", "commit", "begun")
    assert (folder / "begun-00001.bin").stat().st_mtime_ns == done
    run("merge", "begun", "-o", "one", "-q")
    found = digests("one")
    assert {name: found[name] for name in (".bin", ".idx")} == {
        name: EXPECTED["whole"][name] for name in (".bin", ".idx")
    }
    assert contents("begun")["sequences"] == DATASETS["whole"]["sequences"]
    numbers = [[row["n"] for row in x["table"]] for x in (contents("begun"), DATASETS["whole"])]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("prefix", EXPECTED["runs"])
def test_a_killed_run_goes_on(folder: Path, prefix: str) -> None:
    """Where it ended, and to the bytes of one run; another version says what began it.

    It is a process of its own: where templates run, it forks.
    """
    journal = (folder / f"{prefix}.unfinished" / "journal.jsonl").read_text()
    assert journal.count('"piece"') == 2
    expected = EXPECTED["runs"][prefix]
    changed = other_version(folder / f"{prefix}.unfinished")
    done = command(*expected["words"].split(), "-o", prefix)
    if changed:
        assert done.returncode == 1
        assert changed in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert digests(prefix) == expected["digests"]
    if prefix == "stopped":
        assert contents(prefix) == DATASETS["whole"]
    assert not (folder / f"{prefix}.unfinished").exists()
    tokpack.verify(prefix)


def other_version(work: Path) -> str:
    """What is of another version than when a run was begun; it is refused with that name."""
    plan = json.loads((work / "plan.json").read_text())
    if plan["tokpack"] != tokpack.__version__:
        return f"it was begun by tokpack {plan['tokpack']}"
    chat = plan["options"]["chat"]
    return "jinja2" if chat and chat["jinja2"] != metadata.version("jinja2") else ""
