"""A short round of each kind of torture (``make torture``: the long ones); odd surroundings."""

from __future__ import annotations

import ast
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.encoding_tools import (
    DRIVER,
    dataset,
    documents,
    drive,
    finish,
    nothing_whole,
    pieces,
    start,
    twin,
    wait_until,
    write_jsonl,
)
from support.places import ROOT
from support.small_parts import small_parts
from torture import bombs, disk, kill, power
from torture.tools import OPTIONS, Setting

import tokpack

PRODUCT = sorted((ROOT / "src").rglob("*.py"))


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting.make(tmp_path_factory.mktemp("setting"), 1 << 20, files=5)


@pytest.fixture(scope="module")
def tokenizer(setting: Setting) -> Path:
    return setting.tokenizer


# -- short rounds -------------------------------------------------------------------------------


@pytest.mark.promises
@pytest.mark.parametrize("files", [None, 3])
def test_killed_at_random_moments(setting: Setting, tmp_path: Path, files: int | None) -> None:
    kills = kill.Kills(setting, tmp_path / "out", seed=7, part_bytes=32 << 10, files=files)
    kills.run(6, workers=(2, 3))


def test_power_loss_at_every_stage(setting: Setting, tmp_path: Path) -> None:
    results = power.rounds(setting, tmp_path, 3, part_bytes=256 << 10, workers=2, every=48)
    assert results["right"] >= 4
    assert results["refused"] == 0


@pytest.mark.usefixtures("may_mount")
def test_a_disk_that_is_full_at_every_stage(setting: Setting, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    assert disk.grow(setting, place, 1, step=300 << 10, part_bytes=64 << 10, workers=2) >= 3


@pytest.mark.parametrize("kind", bombs.KINDS)
def test_a_huge_document_takes_no_memory(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    """A small file with a document of 80 MiB, of which 1 MB is allowed."""
    small = bombs.make(tmp_path / "small", kind, 0)
    path = bombs.make(tmp_path / "bomb", kind, 80 << 20)
    assert path.stat().st_size < 4 << 20
    records, good, rejected, more = bombs.encode(path, small, tokenizer, tmp_path / "out")
    assert (records, good, rejected) == (3, 2, 1)
    assert more < 60


# -- odd surroundings ---------------------------------------------------------------------------


def encode(inputs: Any, output: Path, tokenizer: Path, **options: Any) -> tokpack.Manifest:
    return tokpack.encode(inputs, str(output), tokenizer=str(tokenizer), **options)


def test_file_names_of_all_kinds(tokenizer: Path, tmp_path: Path) -> None:
    texts = documents(60)
    folder = tmp_path / "a folder, with\nall kinds"
    folder.mkdir()
    names = [
        "a b.jsonl",
        "c\nd.jsonl",
        "e,f.jsonl",
        "g\udcff\udce9.jsonl",
        "[h]*.jsonl",
        "é字.jsonl",
    ]
    paths = [folder / name for name in names]
    for number, path in enumerate(paths):
        write_jsonl(path, texts[number * 10 : number * 10 + 10])
    output = folder / "out \udcfe\n"
    manifest = encode([str(path) for path in paths], output, tokenizer, workers=2)
    assert dataset(output) == twin(tokenizer, texts)
    assert len({entry["name"] for entry in manifest.inputs}) == len(names)
    json.dumps(manifest.inputs).encode()  # what is written is always UTF-8
    assert tokpack.Manifest.load(str(output)) == manifest
    assert len(tokpack.MMapIndexedDataset(str(output))) == manifest.sequences
    # An error that names such a file can be printed anywhere.
    paths[3].write_bytes(b'{"text": 1}\n')
    with pytest.raises(tokpack.TokpackError) as caught:
        encode([str(paths[3])], tmp_path / "other", tokenizer)
    str(caught.value).encode()


def limited(what: int, limit: int) -> Any:
    """A function that sets a limit of the process to come."""
    return lambda: resource.setrlimit(what, (limit, limit))


def test_few_open_files(tokenizer: Path, tmp_path: Path) -> None:
    """With a limit of 64, of which Python and its libraries need some, 300 files are no problem."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = documents(300, words=5)
    for number, text in enumerate(texts):
        write_jsonl(folder / f"{number:03d}.jsonl", [text])
    output = tmp_path / "out"
    options = {"inputs": str(folder), "output": str(output), "tokenizer": str(tokenizer)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps({**options, "workers": 3})],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited(resource.RLIMIT_NOFILE, 64),
    )
    assert done.returncode == 0, done.stderr
    assert dataset(output) == twin(tokenizer, texts)


STARVE = """
import resource
import tokpack.encoding.engine as engine
begin = engine._work
def starved(*args, **more):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + ({megabytes} << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    begin(*args, **more)
engine._work = starved
"""


def test_workers_without_memory(setting: Setting, tmp_path: Path) -> None:
    """Whatever the memory of a worker suffices for, the run ends soon, and a later one goes on."""
    output = tmp_path / "out"
    text = json.dumps(setting.request(output, workers=2))
    failed = 0
    for megabytes in (2, 8, 30):
        script = STARVE.format(megabytes=megabytes) + small_parts(1 << 18)
        done = subprocess.run(
            [sys.executable, "-c", script + DRIVER, text],  # a fork has free memory of its parent
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode == 0:
            break
        failed += 1
        innocent = "Cannot allocate memory" in done.stderr  # the system said so for an input
        assert done.returncode == (1 if innocent else 2), done.stderr
        assert innocent or "WorkerError a worker " in done.stderr
        nothing_whole(output)
    assert failed >= 2
    tokpack.encode(**setting.request(output, workers=2))
    kill.Kills(setting, output, 0, 0).check_and_remove()


def test_a_clock_that_goes_backwards(setting: Setting, tmp_path: Path) -> None:
    """Inputs, lock and pieces from the future are what they are; a run in the past goes on."""
    output = tmp_path / "out"
    for path in setting.inputs:
        os.utime(path, (2**31 + 5, 2**31 + 5))
    script = small_parts(1 << 16)
    request = setting.request(output, workers=2)
    command = ["-c", script + DRIVER, json.dumps(request)]
    process = forked.Process(command, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: pieces(output) or process.poll() is not None)
    process.kill()
    process.wait()
    for path in Path(f"{output}.unfinished").glob("*"):
        os.utime(path, (2**31 + 9, 2**31 + 9))
    back = "import time\ntime.time = lambda: 1e9\n"
    done = drive(request, back + script)
    assert done.returncode == 0, done.stderr
    kill.Kills(setting, output, 0, 0).check_and_remove()


@pytest.mark.parametrize("how", ["longer", "touched", "replaced"])
def test_an_input_changes_between_plan_and_encode(
    how: str, tokenizer: Path, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(50))
    output = tmp_path / "out"
    change = {
        "longer": 'file.write(file.read() and b\'{"text": "late"}\\n\')',
        "touched": "os.utime(file.fileno(), (1, 1))",
        "replaced": "file.truncate(0)",
    }[how]
    script = f"""
import os
import tokpack.encoding.plan as planned
real = planned.divided  # the last step of planning
def divided(*args):
    files = real(*args)
    with open({str(source)!r}, "r+b") as file:
        {change}
    return files
planned.divided = divided
"""
    options = {"inputs": str(source), "output": str(output), "tokenizer": str(tokenizer)}
    done = drive(options, script)
    assert done.returncode == 1, done.stderr
    assert "InputError" in done.stderr
    assert "a.jsonl changed while it was read" in done.stderr
    assert not list(tmp_path.glob("out.[bij]*"))


def test_a_killed_clean_up_goes_on(setting: Setting, tmp_path: Path) -> None:
    """A run that is killed while it removes its work folder leaves nothing that blocks the next."""
    output = tmp_path / "out"
    tokpack.encode(**setting.request(output))
    before = dataset(output)
    # The least that a kill can leave: everything but the plan, and the lock, is gone.
    other = tmp_path / "other"
    same = {"tokenizer": setting.tokenizer, "workers": 2, **OPTIONS}
    process = start(setting.inputs, other, **same)
    wait_until(lambda: Path(f"{other}.unfinished/plan.json").exists() or process.poll() is not None)
    process.kill()
    process.communicate()
    plan = Path(f"{other}.unfinished/plan.json").read_bytes()
    folder = Path(f"{output}.unfinished")
    folder.mkdir()
    (folder / "plan.json").write_bytes(plan)
    (folder / "lock").write_bytes(b"")
    (folder / "joined.text.ids").write_bytes(b"left")
    finish(start(setting.inputs, output, **same))
    assert not folder.exists()
    assert dataset(output) == before


CUT = """
import os, sys, tokpack
prefix, how = sys.argv[1:]
dataset = tokpack.MMapIndexedDataset(prefix)
before = [dataset[n].tolist() for n in range(len(dataset))]
if how == "delete":
    os.unlink(prefix + ".bin"), os.unlink(prefix + ".idx")
else:
    os.truncate(prefix + ".bin", 0)
print("read" if before == [dataset[n].tolist() for n in range(len(dataset))] else "wrong")
"""


@pytest.mark.parametrize(("how", "code", "said"), [("delete", 0, "read\n"), ("cut", -7, "")])
def test_reading_what_is_taken_away(
    how: str, code: int, said: str, tokenizer: Path, tmp_path: Path
) -> None:
    """A deleted dataset is read on; one cut off in its place ends the reader: no wrong tokens."""
    encode(str(write_jsonl(tmp_path / "a.jsonl", documents(200))), tmp_path / "out", tokenizer)
    command = ["-c", CUT, str(tmp_path / "out"), how]
    done = forked.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said)


# -- what is never done -------------------------------------------------------------------------


def test_nothing_is_unpickled() -> None:
    """A dataset, a manifest or a tokenizer from elsewhere cannot run code here."""
    refused = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    calls = {"eval", "exec", "extractall", "unpack_archive"}
    found = []
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                allowed = {alias.name for alias in node.names} == {"UnpicklingError"}
                names = [] if allowed else [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call):
                found += [f"{path.name}:{node.lineno}: {bad}" for bad in _bad_call(node, calls)]
            found += [f"{path.name}: imports {name}" for name in names if name in refused]
    # What jinja2's sandbox compiled of a template, as its Template.from_code runs it.
    assert [one.partition(":")[0] for one in found if one.endswith(": exec")] == ["program.py"]
    assert [one for one in found if not one.endswith(": exec")] == []
    assert len(PRODUCT) > 50


def _bad_call(node: ast.Call, calls: set[str]) -> list[str]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    called = node.func.id if isinstance(node.func, ast.Name) else called
    words = {word.arg: word.value for word in node.keywords}
    is_switch = called == "eval" and not node.args  # a model's eval(), which reads no text
    is_written_here = called == "exec" and isinstance(node.args[0], ast.Constant)
    bad = [called] if called in calls and not (is_switch or is_written_here) else []
    if "allow_pickle" in words and getattr(words["allow_pickle"], "value", True) is not False:
        bad.append("allow_pickle")
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    weights_only = getattr(words.get("weights_only"), "value", False)
    if called == "load" and getattr(owner, "id", "") == "torch" and weights_only is not True:
        bad.append("torch.load")
    return bad


def test_the_rounds_are_native(tokenizer: Path) -> None:
    """What is tortured above is the fast path."""
    assert tokpack.load_tokenizer(str(tokenizer)).native
