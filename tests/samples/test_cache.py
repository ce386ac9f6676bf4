"""The index cache: atomic, verified, and safe when many processes start at once."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import forked
from support.faults import PLANT
from support.places import GOLDEN

from tokpack import GPTDataset, MMapIndexedDatasetBuilder
from tokpack.dataset import format as binary_format
from tokpack.samples import cache as cache_module
from tokpack.samples.cache import ChunkedArray, IndexCache
from tokpack.storage.disk.durable import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"fingerprint": 2**64 - 1, "seed": 7, "split": None, "range": [0, 12]}
ARRAYS = {
    "first": np.arange(1000, dtype=np.int32),
    "second": np.arange(14, dtype=np.int64).reshape(7, 2),
    "none": np.empty((0, 2), np.uint32),
}
# Each process appends a byte to the file ``builds`` for every time it builds.
PROCESS = """
import os, sys, time
import numpy as np
from tokpack.samples.cache import ChunkedArray, IndexCache
folder, builds, key, slow, others = sys.argv[1:]
def chunks(seed):
    for part in range(20):
        time.sleep(float(slow))
        yield np.random.RandomState(seed + part).bytes(40_000)
def build():
    with open(builds, "ab") as file:
        file.write(b"x")
    return [ChunkedArray("a", np.dtype("<u4"), (200_000,),
                 (np.frombuffer(chunk, "<u4") for chunk in chunks(int(key))))]
open(f"{builds}.{os.getpid()}.here", "w").close()
while sum(name.endswith(".here") for name in os.listdir(os.path.dirname(builds))) < int(others):
    time.sleep(0.001)  # until so many processes have loaded what they need
arrays = IndexCache(folder).entry("test", {"key": key}, build).arrays
expected = np.concatenate([np.frombuffer(chunk, "<u4") for chunk in
                           (np.random.RandomState(int(key) + part).bytes(40_000)
                            for part in range(20))])
assert not arrays["a"].flags.writeable
assert np.array_equal(arrays["a"], expected)
print("same")
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    cache_module._logged.clear()
    cache_module._verified.clear()


def built(times: list[int]) -> Any:
    def build() -> list[ChunkedArray]:
        times.append(1)
        return [ChunkedArray.of(name, array.copy()) for name, array in ARRAYS.items()]

    return build


def check(arrays: Any) -> None:
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, ARRAYS[name])


def start(folder: Path, builds: Path, key: int, slow: float, others: int) -> subprocess.Popen[str]:
    words = [folder, builds, key, slow, others]
    return forked.Process(["-c", PROCESS, *words], stdout=subprocess.PIPE, text=True)


def test_built_once_then_mapped(tmp_path: Path) -> None:
    times: list[int] = []
    cache = IndexCache(tmp_path / "new" / "folder")
    for _ in range(3):
        check(cache.entry("test", SETTINGS, built(times)).arrays)
    assert len(times) == 1
    path = Path(cache.path("test", SETTINGS))
    assert len(os.listdir(path.parent)) == 4
    for name, array in ARRAYS.items():  # plain files, which map aligned
        loaded = np.load(path.with_suffix(f".{name}.npy"), mmap_mode="r")
        np.testing.assert_array_equal(loaded, array)
        assert loaded.offset % 64 == 0


def test_another_setting_or_kind_is_another_file(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path)
    others = [SETTINGS | {"seed": 8}, SETTINGS | {"range": [0, 13]}, SETTINGS | {"more": 0}]
    paths = {cache.path("test", one) for one in (SETTINGS, *others)} | {cache.path("b", SETTINGS)}
    assert len(paths) == 5
    assert cache.path("test", dict(reversed(SETTINGS.items()))) in paths


def test_parts_are_written_as_they_are_made(tmp_path: Path) -> None:
    def parts() -> Iterator[ChunkedArray]:
        for name, array in ARRAYS.items():
            pieces = np.array_split(array, 3) if len(array) else []
            yield ChunkedArray(name, array.dtype, array.shape, iter(pieces))

    cache = IndexCache(tmp_path)
    check(cache.entry("test", SETTINGS, parts).arrays)
    whole = IndexCache(tmp_path / "whole")
    check(whole.entry("test", SETTINGS, built([])).arrays)
    assert contents(tmp_path) == contents(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"^a: .*\(3,\)"):
        cache.entry(
            "short", {}, lambda: [ChunkedArray("a", np.dtype("i4"), (3,), [np.zeros(2, "i4")])]
        )
    assert len(contents(tmp_path)) == 4


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def flip(content: bytearray, place: int) -> bytearray:
    content[place] ^= 1
    return content


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (".first.npy", lambda c: c[:-1], "its checksum is wrong"),
        (".first.npy", lambda c: b"", "its checksum is wrong"),
        (".first.npy", lambda c: c + b"\0", "its checksum is wrong"),
        (".second.npy", lambda c: flip(c, 0), "its checksum is wrong"),
        (".second.npy", lambda c: flip(c, len(c) - 1), "its checksum is wrong"),
        (".none.npy", None, "No such file"),
        (".json", lambda c: c[:-1], "not JSON"),
        (".json", lambda c: b"", "not JSON"),
        (".json", lambda c: b"[]", "expected a JSON object"),
        (
            ".json",
            lambda c: bytes(c).replace(b'"seed":7', b'"seed":8'),
            "other settings than its name",
        ),
        (".json", lambda c: bytes(c).replace(b'"first"', b'"fir"'), "its checksum is wrong"),
        (".json", lambda c: bytes(c).replace(b'"arrays"', b'"arr"'), "its checksum is wrong"),
    ],
)
def test_a_damaged_file_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, change: Any, message: str
) -> None:
    times: list[int] = []
    cache = IndexCache(tmp_path)
    cache.entry("test", SETTINGS, built(times))
    path = Path(cache.path("test", SETTINGS)).with_suffix(suffix)
    whole = contents(tmp_path)
    path.unlink()
    if change:
        path.write_bytes(change(bytearray(whole[path.name])))
    with caplog.at_level(logging.WARNING, "tokpack"):
        check(cache.entry("test", SETTINGS, built(times)).arrays)
    assert len(times) == 2
    assert contents(tmp_path) == whole
    (record,) = caplog.records
    assert str(tmp_path) in record.getMessage()
    assert message in record.getMessage()


def test_checksums_are_checked_once_by_a_process(tmp_path: Path) -> None:
    times: list[int] = []
    cache = IndexCache(tmp_path)
    path = Path(cache.entry("test", SETTINGS, built(times)).path or "").with_suffix(".first.npy")
    written = path.stat().st_mtime_ns
    path.write_bytes(flip(bytearray(path.read_bytes()), 128))
    os.utime(path, ns=(written, written))  # as if it were the file that this process has checked
    assert cache.entry("test", SETTINGS, built(times)).arrays["first"][0] == 1
    assert len(times) == 1
    cache_module._verified.clear()
    check(cache.entry("test", SETTINGS, built(times)).arrays)
    assert len(times) == 2


def test_many_processes_at_once_build_once(tmp_path: Path) -> None:
    builds = [tmp_path / f"builds{key}" for key in range(2)]
    folder = tmp_path / "cache"
    processes = [start(folder, builds[n % 2], n % 2, 0.02, 4) for n in range(4)]
    for process in processes:
        assert process.communicate()[0] == "same\n"
        assert process.returncode == 0
    assert [file.read_bytes() for file in builds] == [b"x", b"x"]
    assert len(os.listdir(folder)) == 4


def test_without_locks_all_build_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems without flock: everybody writes, whoever is last stays."""
    patch = "import tokpack.storage.disk.lock as c; c.fcntl = None\n"
    monkeypatch.setattr(sys.modules[__name__], "PROCESS", patch + PROCESS)
    builds = tmp_path / "builds"
    processes = [start(tmp_path / "cache", builds, 3, 0.02, 3) for _ in range(3)]
    for process in processes:
        assert process.communicate()[0] == "same\n"
    assert len(builds.read_bytes()) > 1
    assert len(os.listdir(tmp_path / "cache")) == 2


def test_other_machines_write_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / f"node{n}" for n in range(2)]
    processes = [start(folder, tmp_path / "builds", 5, 0, 0) for folder in folders]
    for process in processes:
        assert process.communicate()[0] == "same\n"
    assert contents(folders[0]) == contents(folders[1])


def test_a_killed_writer_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    folder, builds = tmp_path / "cache", tmp_path / "builds"
    killed = start(folder, builds, 1, 0.2, 0)
    deadline = time.monotonic() + 60
    while not list(folder.glob(f"*{UNFINISHED}")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not list(folder.glob("*.json"))
    (left,) = folder.glob(f"*{UNFINISHED}")
    (folder / f"another{UNFINISHED}").touch()
    assert start(folder, builds, 1, 0, 0).communicate()[0] == "same\n"
    assert left.exists()  # it could be somebody's who has only begun
    left = left.rename(left.with_name(f"of-another-entry.json.01234567{UNFINISHED}"))
    os.utime(left, (0, 0))
    next(folder.glob("*.json")).unlink()
    assert start(folder, builds, 1, 0, 0).communicate()[0] == "same\n"
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".npy", ".tmp"]
    assert builds.read_bytes() == b"xxx"


def test_without_permission_the_arrays_are_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    times: list[int] = []
    with caplog.at_level(logging.WARNING, "tokpack"):
        for _ in range(2):
            entry = IndexCache(tmp_path / "file").entry("test", SETTINGS, built(times))
            check(entry.arrays)
            assert entry.path is None
    assert len(times) == 2
    (record,) = caplog.records
    assert str(tmp_path / "file") in record.getMessage()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, call: str) -> None:
    code = f"""{PLANT}
import errno, os, resource, signal, sys
sys.argv[1:] = [{str(tmp_path / "cache")!r}, {str(tmp_path / "builds")!r}, "1", "0", "0"]
if {call!r} == "fsync":
    plant(os, "fsync", failure(errno.ENOSPC))
else:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
"""
    run = forked.run(["-c", code + PROCESS], capture_output=True, text=True, check=True)
    assert run.stdout == "same\n"
    assert os.listdir(tmp_path / "cache") == []


def test_what_build_raises_comes_through(tmp_path: Path) -> None:
    def fail() -> list[ChunkedArray]:
        raise KeyError("build")

    with pytest.raises(KeyError, match="build"):
        IndexCache(tmp_path).entry("test", SETTINGS, fail)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("order", ["megatron", "neox", "bigscience"])
def test_a_cached_dataset_has_the_same_samples(tmp_path: Path, order: str) -> None:
    prefix = GOLDEN / "index" / "short"
    options: dict[str, Any] = {"order": order, "num_samples": 3000, "split": "9,1", "seed": 3}
    plain = GPTDataset(prefix, 64, **options)
    assert plain.cached is None
    for built in (True, False):
        cached = GPTDataset(prefix, 64, **options, cache=tmp_path)
        entry = cached.cached
        assert entry is not None
        assert entry.built == built
        assert entry.path is not None
        assert os.path.dirname(entry.path) == str(tmp_path)
        assert cached.fingerprint == plain.fingerprint
        assert len(cached) == len(plain)
        for number in range(0, len(plain), 97):
            np.testing.assert_array_equal(cached[number]["tokens"], plain[number]["tokens"])
    again = pickle.loads(pickle.dumps(cached))
    assert again.cached.path == entry.path
    assert not again.cached.built
    # What does not change the arrays does not change the file either; what does, does.
    for change, same in (
        ({"num_samples": 3001}, True),
        ({"num_samples": 9000}, False),
        ({"seed": 4}, False),
        ({"split_index": 1}, False),
        ({"add_extra_token": False}, False),
    ):
        other = GPTDataset(prefix, 64, **(options | change), cache=tmp_path)
        assert other.cached is not None
        assert (other.cached.path == entry.path) == same, change


def test_other_data_under_the_same_name_is_not_mistaken(tmp_path: Path) -> None:
    def write(seed: int) -> None:
        random = np.random.default_rng(seed)
        with MMapIndexedDatasetBuilder(f"{tmp_path}/d.bin", np.uint16) as builder:
            for _ in range(200):
                builder.add_item(random.integers(0, 9, 25).astype(np.uint16))
            builder.finalize(f"{tmp_path}/d.idx")

    for seed in (1, 2):
        for name in ("d.bin", "d.idx"):
            (tmp_path / name).unlink(missing_ok=True)
        write(seed)
        dataset = GPTDataset(tmp_path / "d", 16, order="megatron", cache=tmp_path / "cache")
        plain = GPTDataset(tmp_path / "d", 16, order="megatron")
        np.testing.assert_array_equal(dataset[3]["tokens"], plain[3]["tokens"])
    assert len(list((tmp_path / "cache").glob("*.json"))) == 2


def test_reading_lengths_leaves_them_whole(tmp_path: Path) -> None:
    values = np.arange(5000, dtype=np.int32)
    (tmp_path / "lengths").write_bytes(values.tobytes())
    mapped = np.memmap(tmp_path / "lengths", np.int32, "r")
    private = np.memmap(tmp_path / "lengths", np.int32, "c")
    private[:] = 7
    for array in (values.copy(), mapped, private):
        kept = array.copy()
        binary_format.release(array[10:])
        np.testing.assert_array_equal(array, kept)
    sums = binary_format.LengthSums.of(mapped)
    for begin, end in ((0, len(values)), (0, 1), (5, 5), (3, len(values) - 1)):
        assert sums.total(begin, end) == int(values[begin:end].sum())
