"""Datasets on a store: what a disk gives, by few requests, or one clear error."""

from __future__ import annotations

import os
import pickle
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.stores import Fault

import tokpack
from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.cli.main import main
from tokpack.dataset import shards
from tokpack.errors import StoreError
from tokpack.samples import SampleIterator, gather
from tokpack.samples.orders import by_name
from tokpack.storage.objects import access, cache

if TYPE_CHECKING:
    from pathlib import Path

    from support.stores import Store

    from tokpack.samples.orders.rules import OrderName

TRACKS = ("mask", "weights", "labels")
LENGTH = 128


def test_reads_as_from_a_disk(store: Store, disk: Path, url: str) -> None:
    here, there = MMapIndexedDataset(disk), MMapIndexedDataset(url)
    sent = store.plan.sent
    assert MMapIndexedDataset.exists(url)
    assert there[17].tolist() == here[17].tolist()
    assert there.get(20, 3, 5).tolist() == here.get(20, 3, 5).tolist()
    assert there.document(1_400).tolist() == here.document(1_400).tolist()
    assert store.plan.sent - sent < 100_000  # of 1 MB
    assert store.asked("GET", "one.idx") == 1
    assert (len(there), there.token_count, there.dtype) == (len(here), here.token_count, here.dtype)
    assert np.array_equal(there.sizes, here.sizes)
    assert np.array_equal(there.doc_idx, here.doc_idx)
    assert (there.fingerprint, there.manifest) == (here.fingerprint, here.manifest)
    requests = store.asked("GET", "one.bin")
    pairs = zip(pickle.loads(pickle.dumps(there)), here, strict=True)
    assert all(np.array_equal(own, right) for own, right in pairs)
    assert store.asked("GET", "one.bin") - requests < 12  # more is read ahead each time
    assert store.asked("GET", "one.idx") == 1
    with pytest.raises(tokpack.UsageError, match=r"^s3://texts/sets/one: .*\btokens\b"):
        _ = there.tokens


COMMANDS = (
    "inspect {}",
    "inspect {} --doc 17 --doc -2: --max-tokens 4",
    "inspect {} --grep the --limit 2",
    "stats {}* -q",
    "verify {} --json",
    "inspect {} --doc 17 --trace",
    "inspect {} --source texts.jsonl:3",
    "blend {} --seq-length 128",
)


def test_commands_say_the_same(
    disk: Path,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # so that no path is broken
    for command in COMMANDS:
        said = []
        for prefix in (url, str(disk)):
            assert main(command.format(prefix).split()) == 0
            out = capsys.readouterr().out.replace(prefix, "PREFIX")
            lines = [line for line in out.split("\n") if '"seconds"' not in line]
            said.append([word for word in " ".join(lines).split() if "█" not in word])
        assert said[0] == said[1], command
    assert main(["inspect", url, "--doc", "17", "--debug"]) == 0
    assert "requests, " in capsys.readouterr().err
    saved = tmp_path / "saved.yaml"
    assert main(["blend", url, "--seq-length", "128", "-o", str(saved)]) == 0
    assert f"prefix: {url}\n" in saved.read_text()
    assert main(["blend", str(saved)]) == 0
    assert main(["stats", url, "-q", "--html", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["blend", url, "--seq-length", "128", "-o", "s3://texts/b.yaml"]) == 1
    assert "only datasets can be written to stores" in capsys.readouterr().err


def test_a_virtual_dataset(store: Store, disk: Path, url: str, tmp_path: Path) -> None:
    """Its shards lie beside its manifest, wherever that is."""
    tokpack.merge([str(disk)] * 3, disk.parent / "all", virtual=True, overwrite=True)
    whole = store.put(disk.parent / "all")
    here, there = MMapIndexedDataset(disk.parent / "all"), MMapIndexedDataset(whole)
    assert there[3_017].tolist() == here[3_017].tolist()
    assert there.fingerprint == here.fingerprint
    assert tokpack.verify(whole).tokens == here.token_count
    mine = GPTDataset(there, LENGTH).batch(range(50))
    assert np.array_equal(mine["tokens"], GPTDataset(here, LENGTH).batch(range(50))["tokens"])
    store.s3.delete("sets/one.idx")
    with pytest.raises(tokpack.InputError, match=r"/all\.json: piece 0, s3://texts/sets/one, "):
        MMapIndexedDataset(whole)[0]


def test_documents_are_chosen_on_a_store(disk: Path, url: str, tmp_path: Path) -> None:
    """Without copies, and without evaluation texts: as on a disk, written to either."""
    here = disk.parent / "clean"
    tokpack.split(disk, tmp_path / "part", documents=1_400)
    tokpack.dedup([disk, disk], here, near=0.5, overwrite=True)
    expected = list(MMapIndexedDataset(here))
    clean = url.replace("/one", "/clean")
    report = tokpack.dedup([url, url], clean, near=0.5, overwrite=True)
    assert sum(share.kept.documents for share in report.datasets) == len(expected)
    for one, other in zip(MMapIndexedDataset(clean), expected, strict=True):
        assert np.array_equal(one, other)
    table = tmp_path / "spans.parquet"
    evaluation = tmp_path / "part_00001"
    result = tokpack.decontaminate(clean, against=evaluation, unit="tokens", table=table, common=0)
    assert result.datasets[0].matched >= 100 - (1_500 - len(expected))


def test_a_run_goes_on_with_the_same_documents_on_a_store(
    store: Store, disk: Path, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one file on a disk to shards on a store, and to one object made of them."""
    monkeypatch.setattr(by_name, "BLOCK_TOKENS", 1 << 15)
    tokpack.split(disk, tmp_path / "part", parts=3)
    names = [store.put(tmp_path / f"part_{number:05}") for number in range(3)]
    whole = "s3://texts/sets/whole"
    tokpack.merge(names, f"{whole}-virtual", virtual=True, overwrite=True)
    tokpack.merge(names, f"{whole}-joined", overwrite=True)
    orders: tuple[OrderName, ...] = ("stateless", "stateless-blocks", "megatron")
    for order in orders:
        here = SampleIterator(GPTDataset(disk, LENGTH, order=order), 8)
        next(here)
        state = here.state_dict()
        expected = [next(here) for _ in range(3)]
        for form in ("virtual", "joined") if order != "megatron" else ("joined",):
            there = SampleIterator(GPTDataset(f"{whole}-{form}", LENGTH, order=order), 8)
            there.load_state_dict(state)
            for batch in expected:
                assert np.array_equal(next(there)["tokens"], batch["tokens"]), (order, form)


def test_many_shards_are_looked_for_together(
    store: Store, disk: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also where few of them stay open."""
    monkeypatch.setattr(shards, "OPEN_SHARDS", 2)
    tokpack.merge([str(disk)] * 5, disk.parent / "five", virtual=True, overwrite=True)
    there = MMapIndexedDataset(store.put(disk.parent / "five"))
    store.plan.requests.clear()
    here = MMapIndexedDataset(disk)
    assert len(there.sizes) == 5 * len(here)
    for shard in (0, 2, 1, 4, 3, 0):
        assert there[shard * len(here) + 17].tolist() == here[17].tolist()
    assert (store.asked("HEAD", "one.idx"), store.asked("HEAD", "one.bin")) == (10, 5)
    assert store.asked("GET", "one.idx") == 1


def test_samples(store: Store, disk: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro batches, asked for ahead, in this process and in one that was forked from it."""
    monkeypatch.setattr(gather, "MOST_AHEAD", 4)

    def blend(prefix: str) -> BlendedDataset:
        members = [GPTDataset(prefix, LENGTH, seed=seed) for seed in (1, 2)]
        return BlendedDataset(members, [3, 1], size=4_000)

    here, there = blend(str(disk)), blend(url)
    store.plan.requests.clear()
    mine, right = SampleIterator(there, 8, prefetch=2), SampleIterator(here, 8)
    for _ in range(12):
        got, expected = next(mine), next(right)
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
    child = os.fork()
    if not child:
        same = all(
            np.array_equal(there.batch(some)["tokens"], here.batch(some)["tokens"])
            for some in (range(9), range(104, 112))  # of these the second was asked for
        )
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert here.on_store is False


@pytest.mark.parametrize("order", ["stateless", "stateless-blocks"])
def test_tracks_are_read_with_the_tokens(
    store: Store, tmp_path: Path, copies: Path, monkeypatch: pytest.MonkeyPatch, order: OrderName
) -> None:
    monkeypatch.setattr(by_name, "BLOCK_TOKENS", 1 << 10)
    draw = np.random.default_rng(0)
    for name, tracks in (("chat", TRACKS), ("more", ("mask",)), ("plain", ())):
        with MMapIndexedDatasetBuilder(tmp_path / f"{name}.bin", np.uint16, tracks=tracks) as new:
            for length in draw.integers(0, 300, 60).tolist():
                values = {"mask": draw.integers(0, 2, length), "weights": draw.random(length)}
                values["labels"] = draw.integers(-100, 9, length)
                ids = draw.integers(0, 1000, length)
                new.add_item(ids, **{track: values[track] for track in tracks})
                new.end_document()
            new.finalize(tmp_path / f"{name}.idx")
    for names in (["chat"], ["chat", "more", "plain"]):
        prefix = tmp_path / names[0]
        urls = [store.put(tmp_path / name) for name in names]
        if len(names) > 1:
            prefix = tmp_path / "virtual"
            tokpack.merge([str(tmp_path / name) for name in names], str(prefix), virtual=True)
            far_away = urls[0].replace("chat", "virtual")
            tokpack.merge(urls, far_away, virtual=True, overwrite=True)
        there = urls[0].replace("chat", prefix.name)
        here, far = (GPTDataset(one, LENGTH, order=order) for one in (prefix, there))
        assert here.fingerprint == far.fingerprint
        iterator = SampleIterator(far, 8)
        for first, batch in zip(range(0, 40, 8), iterator, strict=False):
            right = here.batch(range(first, first + 8))
            assert all(np.array_equal(right[name], array) for name, array in batch.items())
        assert 0 < here.batch(range(40))["loss_mask"].mean() < 1


def test_blocks_are_read_once(
    store: Store, disk: Path, url: str, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all processes of a machine together, and again where a copy is damaged or gone."""
    monkeypatch.setattr(by_name, "BLOCK_TOKENS", 1 << 15)
    blocks = -(-disk.with_suffix(".bin").stat().st_size // (1 << 16))
    assert blocks > 10

    def same(rank: int, batches: int = 40) -> bool:
        here, there = (
            SampleIterator(
                GPTDataset(prefix, LENGTH, order="stateless-blocks"), 8, rank=rank, world_size=2
            )
            for prefix in (disk, url)
        )
        store.plan.requests.clear()
        pairs = islice(zip(here, there, strict=True), batches)
        return all(np.array_equal(a["tokens"], b["tokens"]) for a, b in pairs)

    GPTDataset(url, LENGTH)
    child = os.fork()
    if not child:
        os._exit(0 if same(1) else 1)
    assert same(0)
    assert os.waitpid(child, 0)[1] == 0
    assert 0 < store.asked("GET", "one.bin") <= blocks + 3  # of the child's fingerprint
    damaged = max(copies.glob("*/*[0-9]"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    cache._checked.clear()
    gather._files.clear()
    access.shut_down()
    assert same(1)
    assert store.asked("GET", "one.bin") == 1
    assert same(0, 1)
    assert store.asked("GET", "one.bin") == 0
    monkeypatch.setenv("TOKPACK_CACHE_SIZE", "300KB")
    for path in copies.glob("*/*[0-9]"):
        path.unlink()
    assert same(0, 1)
    assert same(0, 4)
    assert 0 < sum(path.stat().st_size for path in copies.glob("*/*[0-9]")) < 600_000
    store.plan.faults.append(Fault("403", "GET", "one.bin"))
    with pytest.raises(StoreError, match=r"one.bin: .*403"):
        same(0, 1)


PASSING = ("503", "429", "reset", "cut", "stall")


def test_faults_that_pass(
    store: Store, disk: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "3")  # a loaded machine's store may take a second
    for number, kind in enumerate(PASSING):
        store.plan.faults.append(Fault(kind, "GET", "one.bin", after=number // 2, times=1))
        store.plan.faults.append(Fault(kind, "GET", "one.idx", times=1))
    samples = GPTDataset(url, LENGTH)
    right = GPTDataset(disk, LENGTH).batch(range(99))
    assert np.array_equal(samples.batch(range(99))["tokens"], right["tokens"])
    assert tokpack.verify(url).checked == tokpack.verify(disk).checked
    assert all(fault.done for fault in store.plan.faults)


def test_a_dataset_that_is_replaced(
    store: Store, disk: Path, url: str, copies: Path, tmp_path: Path
) -> None:
    """What was opened ends with an error; what is opened then is the new one."""
    old = MMapIndexedDataset(url)
    builder = tokpack.MMapIndexedDatasetBuilder(tmp_path / "one.bin", dtype=np.uint16)
    builder.add_item(np.full(LENGTH * 9, 7, np.uint16))
    builder.end_document()
    builder.finalize(tmp_path / "one.idx")
    store.put(tmp_path / "one")
    store.s3.delete("sets/one.json")
    with pytest.raises(StoreError, match=r"one\.bin changed"):
        old[0]
    new = MMapIndexedDataset(url)
    assert new[0].tolist() == [7] * LENGTH * 9
    assert len(list(copies.iterdir())) == 2

    def replace() -> None:
        store.put(disk)

    store.plan.faults.append(Fault("call", "GET", "one.bin", times=1, act=replace))
    with pytest.raises(tokpack.InputError, match=r"/one: .*\breplaced\b"):
        tokpack.verify(url)
