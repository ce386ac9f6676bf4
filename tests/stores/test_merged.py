"""Datasets that a store puts together, and others that are made for it: as on a disk, or none."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.encoding_tools import documents, write_jsonl
from support.indexed_twin import Plain, write_plainly
from support.places import GOLDEN
from support.ports import own_port
from support.stores import Fault, Plan, web_server
from support.table_tools import other_table

import tokpack
from tokpack import InputError, Manifest, MMapIndexedDataset, OutputError
from tokpack.cli.main import main
from tokpack.errors import FormatError, UsageError
from tokpack.storage.objects import access, upload
from tokpack.storage.objects.urls import Range, StoredObject, object_of

if TYPE_CHECKING:
    from support.stores import Store

MIB = 1 << 20
SUFFIXES = (".bin", ".idx", ".json")
SIZES = {"a": 10 * MIB + 2, "b": 10, "c": 0, "d": 10 * MIB, "e": 100_000}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets of SIZES bytes; "b" has no manifest; "all" is all of them."""
    folder = tmp_path_factory.mktemp("disk")
    for number, (name, size) in enumerate(SIZES.items()):
        prefix = folder / (name if name == "b" else f"raw-{name}")
        builder = tokpack.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        ids = np.random.default_rng(number).integers(0, 50_000, size // 2, np.uint16)
        for some in np.array_split(ids, 9):
            builder.add_item(some)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        if name != "b":
            tokpack.merge([prefix], folder / name)
    tokpack.merge([folder / name for name in SIZES], folder / "all")
    return folder


@pytest.fixture(scope="module")
def uploaded(served: Store, disk: Path) -> list[str]:
    """The same datasets on the store."""
    for name in SIZES:
        for path in (disk / f"{name}{suffix}" for suffix in SUFFIXES):
            if path.exists():
                served.s3.put(f"sets/{path.name}", path)
    return [f"s3://texts/sets/{name}" for name in SIZES]


@pytest.fixture
def sets(
    store: Store, uploaded: list[str], disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The same, and nothing beside them; and an empty folder to work in."""
    for key in (key for made in ("one", "half", "new/") for key in store.s3.keys(made)):
        store.s3.delete(key)
    monkeypatch.setenv("TOKPACK_CACHE", str(disk / "cache"))
    monkeypatch.setenv("TOKPACK_STORE_TIMEOUT", "30")  # moto takes its time with large objects
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(upload, "COPY_BYTES", 6 * MIB)
    return uploaded


def same(store: Store, key: str, prefix: Path) -> bool:
    """Whether the files on the store are those of a disk; nothing half done is beside them."""
    assert store.s3.uploads() == 0
    assert not [name for name in store.s3.keys(key) if "tmp" in name]
    assert not list(Path().glob("tokpack-*"))
    return all(
        store.s3.get(key + suffix) == Path(f"{prefix}{suffix}").read_bytes()
        for suffix in (".bin", ".idx")
    )


def test_parts_are_within_the_limits_of_s3() -> None:
    random = np.random.default_rng(5)
    cases = [[0, 5, 0], [5 * MIB - 1, 5 * MIB], [7], [30 << 40], [6 * MIB] * 10_500]
    cases += [[5 << 30, 1, 5 << 30], [20 << 40, 1, 20 << 40, 5 * MIB]]
    cases += [random.integers(0, 12 * MIB, 50).tolist() for _ in range(20)]
    for sizes in cases:
        objects = [StoredObject(f"s3://t/{n}", size, "", 0) for n, size in enumerate(sizes)]
        ranges = [Range(one, 0, one.size) for one in objects if one.size]
        parts = upload.parts_of(ranges, "s3://t/one")
        assert len(parts) <= 10_000
        pieces = [piece for part in parts for piece in part.ranges]
        assert sum(piece.size for piece in pieces) == sum(sizes)
        for one, other in pairwise(pieces):
            follows = one.end == other.begin if one.source == other.source else not other.begin
            assert follows
            assert one.source == other.source or one.end == one.source.size
        amounts = [sum(piece.size for piece in part.ranges) for part in parts]
        assert all(5 * MIB <= amount <= 5 << 30 for amount in amounts[:-1])
        assert all(
            amount < 100 * MIB
            for amount, part in zip(amounts, parts, strict=True)
            if not part.copied
        )
    with pytest.raises(UsageError, match=r"^s3://t/one: 10001 .*\b10000 parts\b"):
        upload.parts_of([Range(objects[0], 0, 100 * MIB)] * 10_001, "s3://t/one")


def test_merged_by_the_store(store: Store, disk: Path, sets: list[str]) -> None:
    """As on a disk; what the store can copy itself is neither read here nor written."""
    before = access.objects.amounts()
    made = tokpack.merge(sets, "s3://texts/one/one")
    assert same(store, "one/one", disk / "all")
    # "b" is read, and sent with the beginning of "d".
    assert access.objects.amounts()[2] - before[2] < 5 * MIB + 10_000
    assert made == Manifest.load("s3://texts/one/one")
    assert len(made.bin["pieces"]) == len(SIZES)
    assert tokpack.verify("s3://texts/one/one").tokens == made.tokens
    with pytest.raises(OutputError, match=r"one\.bin"):
        tokpack.merge(sets, "s3://texts/one/one")
    # Also of what was put together itself, and of files of a disk.
    few = [sets[1], sets[2], sets[4]]
    tokpack.merge(few, "s3://texts/one/few")
    again = tokpack.merge([disk / "e", "s3://texts/one/few", disk / "b"], "s3://texts/one/two")
    tokpack.merge([disk / name for name in "ebceb"], "mixed")
    assert same(store, "one/two", Path("mixed"))
    assert len(again.bin["pieces"]) == len(few) + 2
    assert tokpack.verify("s3://texts/one/two").tokens == again.tokens
    tokpack.merge(sets[4:], "s3://texts/one/one", overwrite=True)
    assert same(store, "one/one", disk / "e")


def test_a_byte_that_changes(disk: Path, sets: list[str], store: Store) -> None:
    tokpack.merge(sets[1:], "s3://texts/one")
    content = bytearray(store.s3.get("one.bin") or b"")
    content[3 * MIB] ^= 1
    store.s3.put("one.bin", bytes(content))
    begin = SIZES["b"]
    where = rf"one\.bin, bytes {begin:,} to {begin + SIZES['d']:,}: xxh3_blocks "
    with pytest.raises(FormatError, match=where):
        tokpack.verify("s3://texts/one")
    text = (store.s3.get("one.json") or b"").decode()
    for old, new in (('"bytes": 10,', '"bytes": 12,'), ('"xxh3_blocks"', '"pieces"')):
        with pytest.raises(FormatError, match=r"^manifest: bin .*'bytes'"):
            Manifest.from_json(text.replace(old, new, 1))


def test_it_fails_as_a_whole(store: Store, sets: list[str]) -> None:
    """Nothing is there then, no upload is under way, and the same command again succeeds."""
    content = store.s3.get("sets/d.bin") or b""
    change = lambda: store.s3.put("sets/d.bin", b"x")  # noqa: E731
    store.plan.faults[:] = [Fault("call", "POST", "uploads", times=1, act=change)]
    with pytest.raises(InputError, match=r"/sets/d\.bin changed\b"):
        tokpack.merge(sets[1:], "s3://texts/one")
    store.s3.put("sets/d.bin", content)
    assert store.s3.uploads() == 0
    assert store.s3.keys("one") == []
    store.plan.faults[:] = [Fault(kind, "PUT", "partNumber=1", times=1) for kind in ("503", "lost")]
    store.plan.faults.append(Fault("lost", "POST", "uploadId", times=1))
    tokpack.merge(sets[1:], "s3://texts/one", overwrite=True)
    assert len(MMapIndexedDataset("s3://texts/one")) == 9 * (len(SIZES) - 1)


def test_names_of_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    assert object_of("az://tokens/a") == object_of("abfs://tokens@me.dfs.core.windows.net/a")
    assert object_of("az://tokens/a") != object_of("abfs://tokens@you.dfs.core.windows.net/a")


def test_modes_of_sequences(store: Store, sets: list[str]) -> None:
    """A multimodal dataset, merged on the store."""
    multimodal = GOLDEN / "v1" / "multimodal"
    for suffix in (".bin", ".idx"):
        store.s3.put(f"sets/modes{suffix}", multimodal.with_suffix(suffix))
    tokpack.merge(["s3://texts/sets/modes", multimodal], "s3://texts/new/modes")
    there, here = MMapIndexedDataset("s3://texts/new/modes"), MMapIndexedDataset(multimodal)
    assert there.modes is not None
    assert here.modes is not None
    assert there.modes.tolist() == 2 * here.modes.tolist()


def test_a_virtual_one_beside_its_pieces(store: Store, disk: Path, sets: list[str]) -> None:
    tokpack.merge(sets, "s3://texts/sets/v", virtual=True)
    records = json.loads(store.s3.get("sets/v.json") or b"")["pieces"]
    assert [record["prefix"] for record in records] == list(SIZES)
    assert (
        tokpack.verify("s3://texts/sets/v").tokens == MMapIndexedDataset(disk / "all").token_count
    )
    with pytest.raises(UsageError, match=r"/a: .*\bdisk\b.*\bvirtual=True"):
        tokpack.merge([disk / "a"], "s3://texts/sets/w", virtual=True)


def test_the_table_of_what_is_replaced_goes(store: Store, sets: list[str]) -> None:
    for content, stays in ((other_table(), False), (b"mine", True)):
        store.s3.put("one.docs.parquet", content)
        tokpack.merge(sets[4:], "s3://texts/one", overwrite=True)
        assert (store.s3.get("one.docs.parquet") is not None) == stays


def test_split_and_converted(store: Store, disk: Path, sets: list[str]) -> None:
    """From a store, to a store, as from a disk to a disk."""
    whole, there = str(disk / "e"), sets[4]
    tokpack.split(whole, "half", parts=2)
    tokpack.split(there, "s3://texts/half", parts=2)
    for name in ("half_00000", "half_00001"):
        assert same(store, name, Path(name))
        assert Manifest.load(f"s3://texts/{name}").bin == Manifest.load(name).bin
    targets = ("x.npy --to npy", "x.ds", "x.parquet", "wide --dtype int32")
    for target in targets:
        name = target.partition(" ")[0]
        words = f"convert {there} s3://texts/new/{target} -q".split()
        assert main(words) == 0
        assert main(["convert", whole, *target.split(), "-q"]) == 0
        keys = [key.removeprefix("new/") for key in store.s3.keys(f"new/{name}")]
        assert keys == sorted(path.name for path in Path().glob(f"{name}*"))
        for key in keys:
            if not key.endswith(".json"):
                assert store.s3.get(f"new/{key}") == Path(key).read_bytes()
        if not name.startswith("x.npy"):
            back = f"back-{name.replace('.', '')}"
            assert main(f"convert s3://texts/new/{name} {back} --dtype uint16 -q".split()) == 0
            assert Path(f"{back}.bin").read_bytes() == (disk / "e.bin").read_bytes()
    write_plainly("ended", Plain("H", [[5, 1], [1]], [0, 1, 2]))
    tokpack.convert("ended", "s3://texts/new/o.npy", to="olmo", eod=1)
    assert store.s3.keys("new/o") == ["new/o.csv.gz", "new/o.npy"]
    tokpack.convert("s3://texts/new/o.npy", "back-o", from_="olmo")
    assert Path("back-o.idx").read_bytes() == Path("ended.idx").read_bytes()
    with pytest.raises(OutputError, match=r"x\.npy"):
        tokpack.convert(whole, "s3://texts/new/x.npy", to="npy")
    with web_server(disk, Plan()) as address, pytest.raises(UsageError, match=r"/x\.npy:"):
        tokpack.convert(whole, f"{address}/x.npy", to="npy")
    assert not list(Path().glob("tokpack-*"))


@pytest.mark.usefixtures("store")
def test_a_signed_url_is_converted(disk: Path, sets: list[str]) -> None:
    """Nothing but its file is asked for: the server gives no other."""
    tokpack.convert(str(disk / "e"), "web/x.parquet")
    with web_server(Path("web"), Plan(), only="GET", missing=403) as address:
        for name, source in (("a", ""), ("b", "parquet")):
            url = f"{address}/x.parquet?signature={'SECRET' * 50}"
            tokpack.convert(url, name, from_=source, dtype="uint16")
            assert Path(f"{name}.bin").read_bytes() == (disk / "e.bin").read_bytes()
            assert Manifest.load(name).inputs[0]["name"] == "x.parquet"
            assert "SECRET" not in Path(f"{name}.json").read_text()


def test_settings_that_are_wrong(
    store: Store,
    sets: list[str],
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One error before any work, which names the setting."""
    write_jsonl(Path("x.jsonl"), documents(3))

    def said(command: str, *faults: Fault) -> str:
        store.plan.faults[:] = faults
        assert main(command.split()) == 1
        store.plan.faults.clear()
        return capsys.readouterr().err

    for command in (
        f"merge {sets[4]} -o s3://texts/x",
        f"convert {sets[4]} s3://texts/x.npy --to npy",
        f"plan x.jsonl -o s3://texts/x --tokenizer {tokenizer}",
    ):
        elsewhere = command.replace("//texts/x", "//nowhere/x")
        assert "there is no bucket 'nowhere' at AWS_ENDPOINT_URL=" in said(elsewhere)
        assert "permission denied (403 Injected): check AWS" in said(command, Fault("403", "PUT"))
        assert "check AWS_ENDPOINT_URL" in said(command, Fault("404", "PUT"))
    assert "there is no bucket 'nowhere'" in said("merge s3://nowhere/e -o x")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    hidden = said(f"merge {sets[4]} -o s3://texts/x", Fault("403", "HEAD"))
    assert "(403 Forbidden), or AWS_SESSION_TOKEN has expired" in hidden
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{own_port()}")
    silent = said(f"merge {sets[4]} -o s3://texts/x")
    assert "does not answer: check AWS_ENDPOINT_URL" in silent
    assert not store.s3.keys("x")
    assert [path.name for path in Path().iterdir()] == ["x.jsonl"]
