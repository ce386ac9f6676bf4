"""Shards whose plan, inputs and output lie on a store: made by several machines, and at once."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest
from support import forked
from support.stores import Fault, Store
from support.tasks import Here, on

import tokpack
from tokpack.cli import main
from tokpack.cli.commands import shards_status
from tokpack.dataset import Manifest
from tokpack.dataset.verify import verify
from tokpack.encoding import EncodeOptions, status
from tokpack.errors import OutputError, StoreError, UsageError
from tokpack.shards import committed
from tokpack.shards.committed import commit, survey
from tokpack.shards.cut import check_fits, encode_shard, make_shard_plan
from tokpack.shards.plan import ShardPlan, save_plan
from tokpack.sources import parts
from tokpack.storage.disk.durable import UNFINISHED
from tokpack.storage.objects import access

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.progress import Progress

SHARD = 3_000_000


@pytest.fixture
def url(
    store: Store, texts: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The prefix of a plan on the store for an input that is there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    prefix = f"s3://texts/{tmp_path.name}/pile"
    source = store.s3.put(f"{tmp_path.name}/x.jsonl", texts)
    options = EncodeOptions((source,), output=prefix, tokenizer=str(tokenizer))
    save_plan(make_shard_plan(options, SHARD), prefix)
    return prefix


def test_two_machines_make_the_same_shard(
    store: Store, url: str, texts: Path, tokenizer: Path, tmp_path: Path
) -> None:
    plan = ShardPlan.load(url)
    assert plan.shards == 2
    key = url.removeprefix("s3://texts/")
    command = ["-m", "tokpack", "encode", "--plan", url, "--shard", "0", "-q"]
    machines = [
        forked.Process([*command, "--scratch", str(tmp_path / name)]) for name in ("one", "two")
    ]
    assert [machine.wait() for machine in machines] == [0, 0]
    store.s3.put(f"{key}-00001.bin", b"of a machine that is lost")
    store.plan.faults.append(Fault("503", "PUT", "pile-00001.json", times=2))
    for number in range(1, plan.shards):
        encode_shard(plan, url, number, workers=1)
    assert {one.state for one in survey(plan, url)} == {"done"}
    (manifest,) = commit(plan, url)
    assert commit(plan, url)[0].pieces == manifest.pieces
    whole = tokpack.encode(texts, tmp_path / "whole", tokenizer=str(tokenizer), workers=1)
    assert (manifest.documents, manifest.tokens) == (whole.documents, whole.tokens)
    parts = [store.s3.get(f"{key}-{n:05d}.bin") or b"" for n in range(plan.shards)]
    assert b"".join(parts) == (tmp_path / "whole.bin").read_bytes()
    assert store.s3.uploads() == 0
    assert json.loads(store.s3.get(f"{key}.json") or b"") == json.loads(manifest.to_json())


def test_bytes_that_differ_are_said(store: Store, url: str) -> None:
    """A machine that computes wrong: the other shard is found only when the manifest is sent."""
    plan = ShardPlan.load(url)
    (made,) = encode_shard(plan, url, 0, workers=1)
    key = url.removeprefix("s3://texts/") + "-00000"
    wrong = json.loads(made.to_json())
    wrong["bin"]["xxh3_blocks"] = "0" * 32
    store.s3.delete(f"{key}.json")

    def other() -> None:
        store.s3.put(f"{key}.json", json.dumps(wrong).encode())

    store.plan.faults.append(Fault("call", "PUT", f"{key}.json", times=1, act=other))
    with pytest.raises(OutputError, match=r"/pile-00000\.json: .*\b0{32} and \w{32}\b"):
        encode_shard(plan, url, 0, workers=1)
    assert store.s3.get(f"{key}.json") is None  # nothing says that the data is good
    # Where the other has finished before anything is sent, its files are left alone.
    store.s3.put(f"{key}.bin", b"other")
    store.plan.faults.append(Fault("call", "PUT", f"{key}{UNFINISHED}", times=1, act=other))
    with pytest.raises(OutputError, match=r"/pile-00000\.json: .*\b0{32} and \w{32}\b"):
        encode_shard(plan, url, 0, workers=1)
    assert store.s3.get(f"{key}.bin") == b"other"
    assert Manifest.from_json(store.s3.get(f"{key}.json") or b"").bin == wrong["bin"]


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_what_a_lifecycle_rule_removed_is_made_again(store: Store, url: str, suffix: str) -> None:
    plan = ShardPlan.load(url)
    encode_shard(plan, url, 0, workers=1)
    key = f"{url.removeprefix('s3://texts/')}-00000.{suffix}"
    content = store.s3.get(key)
    for lost in (b"", b"shorter"):
        store.s3.delete(key)
        if lost:
            store.s3.put(key, lost)
        encode_shard(plan, url, 0, workers=1)
        assert store.s3.get(key) == content
        assert survey(plan, url)[0].state == "done"


def test_another_plan_takes_over_the_scratch_folder(
    store: Store, url: str, texts: Path, tokenizer: Path, tmp_path: Path
) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_shard(ShardPlan.load(url), url, 0, workers=1, progress=stop)
    assert list(tmp_path.glob("tokpack-pile-00000-*/pile-00000.unfinished"))
    source = f"s3://texts/{tmp_path.name}/x.jsonl"
    options = EncodeOptions((source,), output=url, tokenizer=str(tokenizer), append_eod=False)
    plan = make_shard_plan(options, SHARD)
    save_plan(plan, url, overwrite=True)
    encode_shard(plan, url, 0, workers=1)
    assert survey(plan, url)[0].state == "done"


def test_a_store_that_is_silent_is_worth_another_try(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "30")  # for the answers of a loaded machine
    monkeypatch.setattr(access, "_TURNS", 0.01)
    store.plan.faults.append(Fault("503", "PUT", "pile-00000.bin", times=999))
    command = ["encode", "--plan", url, "--shard", "0", "-q", "--workers", "1"]
    assert main(command) == 2  # as a machine that is lost, not as a bad record
    assert "503" in capsys.readouterr().err


def test_many_shards_are_looked_at_by_few_requests(
    store: Store,
    tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(committed, "_MOST_READ", 4)
    monkeypatch.setattr(parts, "_SMALL_GROUP", 0)
    prefix = f"s3://texts/{tmp_path.name}/many"
    text = b'{"text": "a b"}\n'
    inputs = tuple(store.s3.put(f"{tmp_path.name}/{n}.jsonl", text) for n in range(8))
    plan = make_shard_plan(EncodeOptions(inputs, output=prefix, tokenizer=str(tokenizer)), 1)
    save_plan(plan, prefix)
    assert plan.shards == 8
    assert check_fits(plan, prefix, machines=8, disk=0) == []  # it writes on conditions
    key, now = prefix.removeprefix("s3://texts/"), time.time()
    for number in range(plan.shards):
        report = status.Report(
            number, "running", f"node{number}", 7, now - 10, now, 1, 2, tokens=90
        )
        if number == 0:
            report = replace(report, state="failed", message="a bad record, and much to say")
        store.s3.put(f"{key}.plan/{number:05d}.json", json.dumps(asdict(report)).encode())
    for suffix in ("bin", "idx", "json"):
        store.s3.put(f"{key}-00001.{suffix}", b"12345678")
    store.plan.requests.clear()
    shards = survey(plan, prefix)
    assert len(store.plan.requests) <= 2 + 2 * 4
    states = ["failed", "done", *["running"] * (plan.shards - 2)]
    assert [one.state for one in shards] == states
    assert (shards[1].tokens, shards[1].report) == (4, None)  # of uint16
    while any(one.report is None for one in shards if one.state != "done"):
        shards = survey(plan, prefix, shards)
    monkeypatch.setattr(shards_status, "_WATCH_SECONDS", 0.0)
    looks = iter([shards, [replace(one, state="done") for one in shards]])
    monkeypatch.setattr(committed, "survey", lambda *_: next(looks))
    assert main(["shards", "status", prefix, "--watch"]) == 0
    said = capsys.readouterr().out
    assert f"1 failed, 1 done, {plan.shards - 2} running" in said
    assert f"{9 * (plan.shards - 2)} tokens/s, some " in said
    assert "slowest  node2, 9 tokens/s" in said
    assert "failed       0  node0, 10 s, 90 tokens, a bad record" in said
    assert "all are there: tokpack shards commit" in said


def test_a_url_with_a_secret_is_in_no_plan(store: Store, tokenizer: Path) -> None:
    del store
    options = EncodeOptions(
        ("https://u:pass@127.0.0.1:9/x.jsonl?signature=7",),
        output="s3://texts/secret",
        tokenizer=str(tokenizer),
        input_format="jsonl",
    )
    with pytest.raises((UsageError, tokpack.InputError)) as raised:
        make_shard_plan(options)
    assert "signature" not in str(raised.value)


def test_shards_are_of_one_version_of_an_object(store: Store, url: str, tmp_path: Path) -> None:
    plan = ShardPlan.load(url)
    encode_shard(plan, url, 0, workers=1)
    key = f"{tmp_path.name}/x.jsonl"
    content = store.s3.get(key) or b""
    store.s3.put(key, content.replace(b"the", b"eht"))
    with pytest.raises(StoreError, match=r"/x\.jsonl changed\b"):
        encode_shard(plan, url, 1, workers=1)


def test_the_clock_of_a_machine_does_not_say_that_it_is_lost(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ShardPlan.load(url)
    key = url.removeprefix("s3://texts/") + ".plan/00000.json"
    counts = dict.fromkeys(("shard", "done", "total", "documents", "tokens", "text_bytes"), 0)
    told = {**counts, "state": "running", "host": "a", "pid": 1, "message": ""}
    now = time.time()
    for at, most, state in (
        (now - 1000, status.LOST_SECONDS, "running"),
        (now + 4000, -60.0, "lost"),  # the store's time is at most now
    ):
        monkeypatch.setattr(status, "LOST_SECONDS", most)
        store.s3.put(key, json.dumps({**told, "began": at, "told": at}).encode())
        assert survey(plan, url)[0].state == state


@pytest.mark.parametrize("takers", [0, 2])
def test_copies_are_found_by_tasks_that_keep_keys_beside_shards(
    store: Store, url: str, takers: int
) -> None:
    """For another similarity none is made again, and nothing else is left behind."""
    plan = ShardPlan.load(url)
    for number in range(plan.shards):
        encode_shard(plan, url, number, workers=1)
    commit(plan, url)
    folder = url.rpartition("/")[0]
    tokpack.merge([url, url], f"{folder}/twice", virtual=True)
    tokpack.dedup(f"{folder}/twice", f"{folder}/whole", near=0.8)
    engine = Here()
    tasks = on(engine, f"{folder}/clean", takers=takers)
    store.plan.faults.append(Fault("503", "PUT", ".keys-", times=1))
    report = tokpack.dedup(f"{folder}/twice", f"{folder}/clean", near=0.8, tasks=tasks)
    assert report.datasets[0].exact.documents
    key = folder.removeprefix("s3://texts/")
    for suffix in (".selection", ".clusters.parquet"):
        made, whole = (store.s3.get(f"{key}/{name}{suffix}") for name in ("clean", "whole"))
        assert made == whole
        assert made
    begun = len(engine.begun)
    tokpack.dedup(f"{folder}/twice", f"{folder}/clean", near=0.9, tasks=tasks, overwrite=True)
    assert not any(".keys-" in command[2] for command in engine.begun[begun:])
    left = set(access.objects.listed(f"{folder}/clean"))
    assert left == {f"{folder}/clean{end}" for end in (".json", ".selection", ".clusters.parquet")}
    assert verify(f"{folder}/twice", tasks=tasks).checked == verify(f"{folder}/twice").checked
    assert store.s3.uploads() == 0
