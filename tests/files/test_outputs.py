"""Nothing is replaced that tokpack did not make, and never an input: for every command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import byte_tokenizer, documents
from support.faults import PLANT

import tokpack
from tokpack.cli.main import main
from tokpack.dataset.outputs import NewFiles
from tokpack.errors import OutputError, UsageError
from tokpack.storage.disk import whole_folder
from tokpack.storage.disk.durable import NAMES, UNFINISHED, same_file
from tokpack.storage.disk.replaceable import (
    DATA,
    check_outputs,
    is_sealed,
    remove_partial,
    sealed,
    write_output,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECIOUS = b"somebody's own\n"


def write(path: Path, *texts: str) -> Path:
    lines = [json.dumps({"text": text}) for text in texts or documents(20, words=30, seed=1)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two datasets, their text and tokenizer; the current one."""
    monkeypatch.chdir(tmp_path)
    tokenizer = str(byte_tokenizer(tmp_path / "tokenizer.json"))
    for name in "ab":
        write(tmp_path / f"{name}.jsonl")
        tokpack.encode([f"{name}.jsonl"], name, tokenizer=tokenizer, workers=1)
    return tmp_path


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuses(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command changes nothing, and says why in one line."""
    before = state(Path.cwd())
    capsys.readouterr()
    assert main(command.split()) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert state(Path.cwd()) == before


@pytest.mark.promises
def test_an_input_is_never_an_output(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokpack.merge(["a", "b"], "virtual", virtual=True)
    shutil.copy("a.jsonl", "q.rejects.jsonl")
    for command in (
        "encode q.rejects.jsonl -o q --on-error skip --tokenizer tokenizer.json",
        "vocab a.jsonl -o a.jsonl",
        "vocab @list -o list",
        "stats a --html a.bin",
        "stats a --html a.json",
        "stats virtual --html b.idx",
        "stats a --html tokenizer.json",
        "merge a b -o a",
        "merge a b -o b --virtual",
        "merge virtual b -o a",
        "merge virtual -o a --virtual",
        "convert a a --dtype int32",
        "convert a a.idx --to npy",
        "convert virtual a.bin --to raw",
        "convert raw.bin raw --from raw --input-dtype uint16 --eod 0",
    ):
        Path("list").write_text("a.jsonl\n")
        Path("raw.bin").write_bytes(bytes(8))
        refuses(command + " --overwrite", "and an output: choose another", capsys)
    for link in (os.symlink, os.link):  # a hard link and a symbolic one are the file itself
        link("a.bin", "other.html")
        refuses("stats a --html other.html --overwrite", "an input under the name a.bin", capsys)
        os.unlink("other.html")
    refuses(f"stats a --html {here}/./a.bin --overwrite", "under the name a.bin", capsys)


def test_pieces_of_a_virtual_input_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        for suffix in ("bin", "idx", "json"):
            os.rename(f"{name}.{suffix}", f"x_0000{'ab'.index(name)}.{suffix}")
    tokpack.merge(["x_00000", "x_00001"], "v", virtual=True)
    said = "is an input and an output"
    refuses("split v -o x --parts 3 --overwrite", said, capsys)
    refuses("merge v -o x_00000 --overwrite", said, capsys)
    refuses("merge v -o x_00001 --virtual --overwrite", said, capsys)
    assert here.joinpath("v.json").exists()


@pytest.mark.promises
def test_what_another_made_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = "blend a --order megatron-0.4 --samples 9 --seq-length 8 --split 1,0,0 --megatron-cache"
    assert main([*index.split(), "cache", "-q"]) == 0
    arrays = sorted(Path("cache").iterdir())
    for command, output in (
        ("encode a.jsonl -o x --tokenizer tokenizer.json", "x.bin"),
        ("encode a.jsonl -o x --tokenizer tokenizer.json", "x.idx"),
        ("vocab a.jsonl -o x.json", "x.json"),
        ("stats a --html x.html", "x.html"),
        ("merge a b -o x", "x.bin"),
        ("merge a b -o x --virtual", "x.idx"),
        ("split a -o x --parts 2", "x_00001.bin"),
        ("convert a x --dtype int32", "x.idx"),
        ("convert a x.ds --to datatrove", "x.ds.metadata"),
        ("convert a x.npy --to npy", "x.npy"),
        ("convert a x.raw --to raw", "x.raw"),
        ("blend a b --seq-length 8 -o x.yaml", "x.yaml"),
        (f"{index} cache", str(arrays[0])),
    ):
        Path(output).write_bytes(PRECIOUS)
        refuses(command, f"{output} exists: choose another output", capsys)
        assert main([*command.split(), "--overwrite", "-q"]) == 0, command
        assert Path(output).read_bytes() != PRECIOUS if Path(output).exists() else True
        for path in here.glob("x*"):
            path.unlink()
    beside = {
        "encode a.jsonl -o x --tokenizer tokenizer.json": ("x.json", "a manifest"),
        "encode a.jsonl -o x --tokenizer tokenizer.json --trace": (
            "x.docs.parquet",
            "a table of documents",
        ),
        "encode a.jsonl -o x --tokenizer tokenizer.json --on-error skip": (
            "x.rejects.jsonl",
            "a list of bad records",
        ),
        "merge a b -o x": ("x.json", "a manifest"),
        "merge a b -o x --virtual": ("x.json", "a manifest"),
        "convert a x --dtype int32": ("x.json", "a manifest"),
    }
    for command, (output, kind) in beside.items():  # not even with --overwrite
        Path(output).write_bytes(PRECIOUS)
        refuses(f"{command} --overwrite", f"{output}: exists and is not {kind}, so", capsys)
        Path(output).unlink()


def test_a_virtual_dataset_is_not_replaced_unasked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokpack.merge(["a", "b"], "v", virtual=True)
    for command in (
        "encode a.jsonl -o v --tokenizer tokenizer.json",
        "merge a b -o v",
        "convert a v --dtype int32",
    ):
        refuses(command, "v.json exists", capsys)
    assert here.joinpath("v.json").exists()


@pytest.mark.promises
def test_what_the_command_made_is_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.jsonl").write_text('{"text": "good"}\n{"text": 1}\n')
    encode = "encode bad.jsonl -o x --tokenizer tokenizer.json --on-error skip -q"
    for command in (
        "stats a --html x.html -q",
        "blend a b --seq-length 8 -o x.yaml -q",
        "blend a --order megatron-0.4 --samples 9 --seq-length 8 --split 1,0,0 "
        "--megatron-cache cache -q",
        encode,
    ):
        assert main(command.split()) == 0
        assert main(command.split()) == 0, command
    for suffix in ("bin", "idx", "json"):
        Path(f"x.{suffix}").unlink()
    assert main(encode.split()) == 0  # its list of bad records is known again
    assert here.joinpath("x.rejects.jsonl").exists()
    Path("x.yaml").write_text("# my comment\n" + Path("x.yaml").read_text())
    refuses("blend a b --seq-length 8 -o x.yaml -q", "x.yaml exists", capsys)


@pytest.mark.promises
def test_somebodys_rejects_stay(here: Path) -> None:
    Path("x.rejects.jsonl").write_bytes(PRECIOUS)
    tokpack.encode(["a.jsonl"], "x", tokenizer="tokenizer.json")  # no bad record is allowed
    assert here.joinpath("x.rejects.jsonl").read_bytes() == PRECIOUS


@pytest.mark.promises
def test_library_calls_obey(here: Path) -> None:
    from tokpack.samples import plan_blend, save_blend

    Path("hand.yaml").write_text("# mine\ndatasets: [a]\n")
    plan = plan_blend(["a"], seq_length=8)
    with pytest.raises(OutputError, match=r"hand\.yaml exists"):
        save_blend(plan, "hand.yaml")
    with pytest.raises(UsageError):
        tokpack.merge(["a"], here / "a", overwrite=True)
    save_blend(plan, "hand.yaml", overwrite=True)
    save_blend(plan, "hand.yaml")


KILLED = f"""{PLANT}
import os, sys
from tokpack.storage.disk import durable
plant(os, "replace", kill, at=2)
with durable.AtomicFiles() as staged:
    for path in sys.argv[1:]:
        staged.create(path).write(b"new")
    staged.commit()
"""


def test_what_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    outputs = [(str(tmp_path / name), DATA) for name in ("x.bin", "x.idx", "x.json")]

    def kill() -> None:
        command = ["-c", KILLED, *(path for path, _ in outputs)]
        assert forked.run(command, check=False).returncode == -signal.SIGKILL
        assert (tmp_path / "x.bin").exists()
        assert not (tmp_path / "x.idx").exists()

    kill()
    with pytest.raises(OutputError, match=r"x\.bin"):
        check_outputs(outputs, (), overwrite=False)
    remove_partial([path for path, _ in outputs])
    check_outputs(outputs, (), overwrite=False)
    assert not (tmp_path / "x.bin").exists()
    assert not (tmp_path / "x.json.tokpack.names").exists()
    kill()
    (tmp_path / "mine").write_text("not of that run")
    (tmp_path / "mine").rename(tmp_path / "x.bin")
    remove_partial([path for path, _ in outputs])
    assert (tmp_path / "x.bin").read_text() == "not of that run"


def test_a_note_names_nothing_but_outputs(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    found = victim.stat()
    note = {str(victim): [found.st_dev, found.st_ino]}
    (tmp_path / "x.json.tokpack.names").write_text(json.dumps(note))
    remove_partial([str(tmp_path / "x.json")])
    assert victim.exists()


def test_what_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    """Looking into a pipe would wait for somebody to write to it."""
    text = tmp_path / "a.txt"
    text.write_text("a text\n")
    data = tmp_path / "data"
    tokenizer = str(byte_tokenizer(tmp_path / "tokenizer.json"))
    words = ["encode", str(text), "--tokenizer", tokenizer, "-o", str(data)]
    run = ["-m", "tokpack", *words]
    forked.run([*run], check=True, capture_output=True)
    cases = {
        "g.json": [*run[:-1], "{}/g"],
        "h.rejects.jsonl": [*run[:-1], "{}/h", "--on-error", "skip"],
        "i.docs.parquet": [*run[:-1], "{}/i", "--trace"],
        "j.yaml": [*run[:2], "blend", "1", str(data), "-o", "{}/j.yaml"],
        "k.html": [*run[:2], "stats", str(data), "--html", "{}/k.html"],
    }
    for name, command in cases.items():
        os.mkfifo(tmp_path / name)
        done = forked.run(
            [*(word.format(tmp_path) for word in command)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, (name, done.stderr)
        assert f"{name}" in done.stderr
        assert "not a regular file" in done.stderr


def test_outputs_differ_from_each_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    outputs = [(f"{tmp_path}/x", DATA), (f"{tmp_path}/link/x", DATA)]
    with pytest.raises(UsageError):
        check_outputs(outputs, (), overwrite=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="/folder"):
        check_outputs([(f"{tmp_path}/folder", DATA)], (), overwrite=True)


def test_a_sealed_file_is_known_until_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(sealed("a: 1\n", "tokpack blend"))
    assert is_sealed(str(path), "tokpack blend")
    assert not is_sealed(str(path), "tokpack train")
    path.write_text(path.read_text().replace("a: 1", "a: 2"))
    assert not is_sealed(str(path), "tokpack blend")
    assert not is_sealed(str(tmp_path / "none"), "tokpack blend")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Path]:
    """A whole folder of the kind "model"."""
    target = tmp_path / "m"
    work = whole_folder.begin(target, "model")
    (work / "weights").write_text("1")
    whole_folder.finish(target, "model")
    yield target
    assert not list(tmp_path.glob("*.tokpack.*"))


@pytest.mark.promises
def test_whole_folders_go_only_where_they_are_ours(made: Path) -> None:
    old, unfinished = made.parent / "m.old", made.parent / "m.unfinished"
    for foreign in (old, unfinished):  # a user's, or the work folder of an encode
        foreign.mkdir()
        (foreign / "precious").write_bytes(PRECIOUS)
    work = whole_folder.begin(made, "model")
    (work / "weights").write_text("2")
    whole_folder.finish(made, "model")
    assert (made / "weights").read_text() == "2"
    assert (old / "precious").exists()
    assert (unfinished / "precious").exists()
    with pytest.raises(OutputError, match=r"/m .*\(checkpoint\)"):
        whole_folder.begin(made, "checkpoint")
    (made / "notes.txt").write_bytes(PRECIOUS)
    with pytest.raises(OutputError, match=r"notes\.txt"):
        whole_folder.begin(made, "model")
    assert not whole_folder.is_ours(made, "model")


def test_a_folder_whose_marker_was_not_finished_is_begun_again(tmp_path: Path) -> None:
    left = tmp_path / "m.tokpack.tmp"
    left.mkdir()
    (left / ".tokpack-folder.json.tokpack.tmp").write_bytes(b'{"tok')  # killed there
    work = whole_folder.begin(tmp_path / "m", "model")
    assert [path.name for path in work.iterdir()] == [".tokpack-folder.json"]


def test_folders_under_our_names_that_are_not_ours_stay(tmp_path: Path) -> None:
    for ending in (".tokpack.tmp", ".tokpack.old"):
        foreign = tmp_path / f"m{ending}"
        foreign.mkdir()
        (foreign / "precious").write_bytes(PRECIOUS)
        with pytest.raises(OutputError, match=str(foreign)):
            whole_folder.begin(tmp_path / "m", "model")
        whole_folder.discard_leftovers(tmp_path, "m", "model")
        assert (foreign / "precious").exists()
        shutil.rmtree(foreign)


def test_one_file_is_replaced_as_the_rule_says(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    write_output(path, [b"1"], [], overwrite=False)
    os.utime(path, (1, 1))
    write_output(path, [b"1"], [], overwrite=False)  # these bytes are there
    assert os.stat(path).st_mtime == 1
    for other in (b"2", b"12"):
        with pytest.raises(OutputError, match=r"/x\b"):
            write_output(path, [other], [], overwrite=False)
        assert Path(path).read_bytes() == b"1"
    write_output(path, [b"2"], [], overwrite=True)
    assert Path(path).read_bytes() == b"2"
    for name in (path, f"file://{path}", f"FILE://{path}", f"local://{path}"):
        with pytest.raises(UsageError, match=r"/x\b"):
            write_output(path, [b"3"], [name], overwrite=True)
    beside = tmp_path / f"x{UNFINISHED}"  # whose name the new file has until it is whole
    beside.write_text("mine")
    with pytest.raises(UsageError):
        write_output(path, [b"3"], [str(beside)], overwrite=True)
    assert beside.read_text() == "mine"


def test_an_input_is_not_taken_for_what_a_killed_run_left(tmp_path: Path) -> None:
    """Though the note of that run names it: a command may read what it then replaces in part."""
    data, last = f"{tmp_path}/x.bin", f"{tmp_path}/x.json"
    Path(data).write_bytes(b"1")
    Path(last + NAMES).write_text(json.dumps({data: list(same_file(data) or ())}))
    with pytest.raises(UsageError, match=r"x\.bin"):
        NewFiles([(data, DATA), (last, DATA)], [data], overwrite=True)
    assert Path(data).read_bytes() == b"1"
    NewFiles([(data, DATA), (last, DATA)], [], overwrite=False)
    assert not os.listdir(tmp_path)
