"""Faults at each request of merge, split and convert to a store: old, new or nothing is there."""

from __future__ import annotations

import errno
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import forked
from support.faults import failure, plant
from support.stores import Fault

import tokpack
from tokpack.cli.main import main

if TYPE_CHECKING:
    from support.stores import Store

URL = "s3://texts/faulty"
COMMANDS = {  # with {data}, a dataset; over another one where they say so
    "merge": f"merge {{data}} small -o {URL}/x -q",
    "merge virtual": f"merge {URL}/{{data}} -o {URL}/x --virtual --overwrite -q",
    "split": f"split {{data}} -o {URL}/x --parts 2 --overwrite -q",
    "convert datatrove": f"convert {{data}} {URL}/x --to datatrove --overwrite -q",
}
GOES_FIRST = {  # of an old output
    "merge virtual": "faulty/x.json",
    "split": "faulty/x_00000.json",
    "convert datatrove": "faulty/x",
}
WRITES = ("PUT", "POST", "DELETE")


@pytest.fixture
def work(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two small datasets, one of which is on the store, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    for name, documents in (("small", 3), ("large", 30)):
        builder = tokpack.MMapIndexedDatasetBuilder(f"{name}.bin", dtype=np.uint16)
        for length in range(documents):
            builder.add_item(np.arange(length))
            builder.end_document()
        builder.finalize(f"{name}.idx")
        for suffix in ("bin", "idx"):
            store.s3.put(f"faulty/{name}.{suffix}", Path(f"{name}.{suffix}"))
    return tmp_path


def there(store: Store) -> dict[str, bytes]:
    """What is at the output, undated; no upload and no file of this machine is left."""
    assert store.s3.uploads() == 0
    assert not list(Path().glob("tokpack-*"))
    keys = [key for key in store.s3.keys("faulty/x") if not key.endswith(".tokpack.tmp")]
    contents = {key: store.s3.get(key) or b"" for key in keys}
    return {key: re.sub(rb'"created": "[^"]*"', b"", one) for key, one in contents.items()}


def put_back(store: Store, state: dict[str, bytes]) -> None:
    for key in store.s3.keys("faulty/x"):
        store.s3.delete(key)
    for key, content in state.items():
        store.s3.put(key, content)


@pytest.mark.parametrize("name", COMMANDS)
def test_old_new_or_nothing(
    store: Store, work: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put_back(store, {})
    argv = COMMANDS[name].format(data="large").split()
    if name in GOES_FIRST:
        assert main(COMMANDS[name].format(data="small").split()) == 0
    old = there(store)
    store.plan.requests.clear()
    assert main(argv) == 0
    new = there(store)
    assert new != old
    requests = [tuple(line.partition("=")[0].split()) for line in store.plan.requests]
    for number, (method, path) in enumerate(requests):  # without the number of an upload
        if method not in WRITES:
            continue
        after = sum(m == method and path in p for m, p in requests[:number])
        put_back(store, old)
        store.plan.faults[:] = [Fault("403", method, path, after=after, times=1)]
        capsys.readouterr()
        code, errors = main(argv), capsys.readouterr().err
        assert store.plan.faults.pop().done
        found, where = there(store), f"{method} {path} {after}: {errors}"
        if code == 0:  # the removal of what tells whether one can write
            assert method == "DELETE", where
            assert path.endswith(".tokpack.tmp"), where
            assert found == new, where
            continue
        [line] = errors.splitlines()
        assert line.startswith(f"tokpack: error: cannot write {URL}/x"), where
        # Files of an old output may be gone, then also the one without which it is none.
        assert found.items() <= old.items(), where
        assert found == old or GOES_FIRST[name] not in found, where
    assert main(argv) == 0
    assert there(store) == new


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("merge", False),
        ("merge", True),
        ("merge virtual", True),
        ("split", False),
        ("convert datatrove", True),
    ],
)
def test_killed_at_each_request(store: Store, work: Path, name: str, done: bool) -> None:
    """kill -9 before a request, and while it waits for its answer: the next run leaves no rest."""
    put_back(store, {})
    command = COMMANDS[name].format(data="large").split()
    if name in GOES_FIRST:
        assert main(COMMANDS[name].format(data="small").split()) == 0
    old = there(store)
    store.plan.requests.clear()
    assert main(command) == 0
    new = there(store)
    requests = [tuple(line.partition("=")[0].split()) for line in store.plan.requests]
    for number, (method, path) in enumerate(requests):
        if method not in WRITES:
            continue
        after = sum(m == method and path in p for m, p in requests[:number])
        put_back(store, old)
        fault = Fault("call" if done else "reset", method, path, after=after, times=1)
        runs: list[forked.Process] = []
        fault.act = partial(kill, runs)
        store.plan.faults[:] = [fault]
        runs.append(forked.Process(["-m", "tokpack", *command], start_new_session=True))
        where = f"{method} {path}"
        assert runs[0].wait() == -signal.SIGKILL, where
        assert not done or fault.over.wait(10), where
        # What was whole before the kill is refused without --overwrite.
        is_whole = where == "PUT /texts/faulty/x.json" and done and not old
        assert main(command) == (1 if is_whole else 0), where
        assert there(store) == new, where
        assert not [key for key in store.s3.keys("faulty/x") if key.endswith(".tokpack.tmp")]


def kill(runs: list[forked.Process]) -> None:
    """End a process and its helpers, as a machine does that goes down."""
    os.killpg(runs[0].pid, signal.SIGKILL)
    runs[0].wait()


def test_a_folder_that_cannot_be_removed(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent is there, and that is no failure."""
    put_back(store, {})
    plant(os, "rmdir", failure(errno.EIO), patch=monkeypatch)
    assert main(f"convert small {URL}/x.npy --to npy -q".split()) == 0
    assert store.s3.keys("faulty/x") == ["faulty/x.npy"]
    assert list(work.glob("tokpack-*"))
