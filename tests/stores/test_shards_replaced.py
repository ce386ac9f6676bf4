"""Shards of a plan that was replaced meanwhile: late by minutes, they destroy nothing."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.encoding_tools import documents, write_jsonl
from support.stores import Fault, Store

import tokpack
from tokpack.storage.disk.durable import UNFINISHED

if TYPE_CHECKING:
    from pathlib import Path

LONG = {"TOKPACK_STORE_TIMEOUT": "100"}  # it waits for an answer as long as the test needs


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON lines of which a shard is made soon, 50 KB."""
    return write_jsonl(tmp_path_factory.mktemp("few") / "x.jsonl", documents(60, words=150))


@pytest.mark.parametrize(
    ("late", "waits"),
    [
        *((late, True) for late in ("00000.bin", "00000.json", f"00000{UNFINISHED}")),
        *((late, False) for late in ("00000.bin", "00000.json")),
    ],
)
def test_a_shard_of_an_old_plan_is_late(
    store: Store, few: Path, tokenizer: Path, tmp_path: Path, late: str, *, waits: bool
) -> None:
    """Its request arrives when a new plan has been committed, also when it was given up before."""
    key = f"{tmp_path.name}/pile"
    url = f"s3://texts/{key}"
    options = {"tokenizer": str(tokenizer), "shard_size": 10**9, "scratch": str(tmp_path / "new")}
    tokpack.plan(few, url, **options)
    arrived, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        goes_on.wait(100)

    fault = Fault("call", "PUT", f"{key}-{late}", times=1, act=hold)
    store.plan.faults.append(fault)
    words = ("-m", "tokpack", "encode", "--plan", url, "--shard", "0", "-q", "--workers", "1")
    old = forked.Process(
        [*words, "--scratch", str(tmp_path / "old")],
        env={**os.environ, **LONG},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert arrived.wait(100)
    if not waits:
        old.kill()
    tokpack.plan(few, url, append_eod=False, overwrite=True, **options)
    tokpack.encode_shard(url, 0, workers=1, scratch=str(tmp_path / "new"))
    tokpack.commit(url)
    made = {name: store.s3.get(name) for name in store.s3.keys(key) if ".plan/" not in name}
    assert len(made) == 4
    goes_on.set()
    said = old.communicate()[1]
    assert fault.over.wait(100)
    assert {name: store.s3.get(name) for name in store.s3.keys(key) if ".plan/" not in name} == made
    tokpack.verify(url)
    assert [one.state for one in tokpack.status(url)] == ["done"]
    if waits:
        assert old.returncode == 1
        assert "was replaced or removed meanwhile" in said
        assert "computes wrong" not in said


@pytest.mark.parametrize("name", ["pile.json", "pile-00000.json", "pile-00001.docs.parquet"])
def test_a_plan_and_a_commit_replace_nothing_of_others(
    store: Store, tokenizer: Path, tmp_path: Path, name: str
) -> None:
    """Neither an input that has the name of an output, nor an object that tokpack did not make."""
    key = f"{tmp_path.name}/pile"
    url, precious = f"s3://texts/{key}", b'{"text": "of somebody"}\n'
    # A part of a shard is a whole file, or megabytes.
    inputs = [write_jsonl(tmp_path / f"{i}.jsonl", documents(450, words=150)) for i in range(2)]
    options = {"tokenizer": str(tokenizer), "shard_size": 300_000, "scratch": str(tmp_path)}
    tokpack.plan(inputs, url, **options)
    for number in range(2):
        tokpack.encode_shard(url, number, workers=1, scratch=str(tmp_path))
    strange = store.s3.put(f"{tmp_path.name}/{name}", precious)
    before = {name: store.s3.get(name) for name in store.s3.keys(key)}
    with pytest.raises(tokpack.OutputError, match="pile"):
        tokpack.plan(inputs, url, append_eod=False, overwrite=True, **options)
    with pytest.raises(tokpack.UsageError, match="pile"):
        tokpack.plan(strange, url, input_format="jsonl", overwrite=True, **options)
    if name == "pile.json":
        with pytest.raises(tokpack.OutputError, match="pile"):
            tokpack.commit(url, overwrite=True)
    assert {name: store.s3.get(name) for name in store.s3.keys(key)} == before
    store.s3.delete(f"{tmp_path.name}/{name}")
    tokpack.plan(inputs, url, append_eod=False, overwrite=True, **options)
    assert store.s3.keys(key) == [f"{key}.plan/plan.jsonl"]


def test_a_plan_that_two_machines_make_keeps_its_shards(
    store: Store, few: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both replace another plan; the second finds the same plan there, and a shard of it."""
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", LONG["TOKPACK_STORE_TIMEOUT"])
    key = f"{tmp_path.name}/pile"
    url = f"s3://texts/{key}"
    options = {"tokenizer": str(tokenizer), "shard_size": 10**9, "scratch": str(tmp_path)}
    tokpack.plan(few, url, **options)
    make = functools.partial(tokpack.encode_shard, url, 0, workers=1, scratch=str(tmp_path))
    make()  # of the same .bin as the next plan's
    again = {**options, "max_document_bytes": 10**8, "overwrite": True}

    def other() -> None:
        tokpack.plan(few, url, **again)
        make()
        tokpack.commit(url)

    fault = Fault("call", "PUT", f"{key}.plan/plan.jsonl", times=1, act=other)
    store.plan.faults[:] = [fault]
    tokpack.plan(few, url, **again)
    assert fault.done
    tokpack.verify(url)


def test_a_shard_that_two_machines_make_stays(
    store: Store, few: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """The other has finished, and its .bin has another ETag, when this one looks at its own."""
    key = f"{tmp_path.name}/pile"
    url, bin_key = f"s3://texts/{key}", f"{key}-00000.bin"
    tokpack.plan(few, url, tokenizer=str(tokenizer), shard_size=10**9)
    words = ("-m", "tokpack", "encode", "--plan", url, "--shard", "0", "-q", "--workers", "1")

    def make(scratch: str) -> int:
        argv = [*words, "--scratch", str(tmp_path / scratch)]
        return forked.run(argv, env={**os.environ, **LONG}, check=False).returncode

    store.plan.requests.clear()
    assert make("first") == 0
    lines = [line for line in store.plan.requests if bin_key in line]
    looks = sum(line.startswith("HEAD") for line in lines)
    made = {name: store.s3.get(name) for name in store.s3.keys(f"{key}-")}
    for name in made:
        store.s3.delete(name)

    def other() -> None:
        assert make("second") == 0
        begun = store.s3.request("POST", f"{bin_key}?uploads")[1].decode()
        upload = begun.partition("<UploadId>")[2].partition("<")[0]
        part = f"{bin_key}?partNumber=1&uploadId={upload}"
        assert store.s3.request("PUT", part, made[bin_key] or b"")[0] == 200
        etag = f'"{hashlib.md5(made[bin_key] or b"").hexdigest()}"'
        xml = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
        assert store.s3.request("POST", f"{bin_key}?uploadId={upload}", body)[0] == 200
        tokpack.commit(url)

    for after in range(looks):
        fault = Fault("call", "HEAD", bin_key, after=after, times=1, act=other)
        store.plan.faults[:] = [fault]
        assert make("first") == 0, after
        assert fault.done
        found = {name: store.s3.get(name) for name in store.s3.keys(f"{key}-")}
        assert found.keys() == made.keys(), after
        tokpack.verify(url)
        for name in [*made, f"{key}.json"]:
            store.s3.delete(name)
