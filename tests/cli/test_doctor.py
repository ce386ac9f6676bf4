"""``tokpack doctor``, and the cores that it and every command counts."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from support.report_tools import run, run_json

from tokpack.encoding.options import EncodeOptions, worker_count
from tokpack.machine import affine_cores, cpu_limit, free_memory, usable_cores


def groups(folder: Path, process: str, files: dict[str, str]) -> tuple[str, str]:
    """A system's list of a process's groups, and the folders of groups."""
    for name, text in files.items():
        (folder / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / name).write_text(text)
    (folder / "self").write_text(process)
    return str(folder / "self"), str(folder / "cgroup")


V1 = "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"
V1_FILES = {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("process", "files", "limit"),
    [
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "cpu.max": "300000 100000\n"}, 0.5),
        ("0::/not/seen/here\n", {"cpu.max": "200000 100000\n"}, 2.0),
        (V1, V1_FILES, 4.0),
        (V1, dict.fromkeys(V1_FILES, "-1\n"), None),
        ("1:cpu:/x\n0::/\n", {"cpu/x/cpu.cfs_quota_us": "1", "cpu/x/cpu.cfs_period_us": "2"}, 0.5),
        ("what is this\n::\n", {"cpu.max": "many 100000"}, None),
    ],
)
def test_limits_of_control_groups(
    process: str, files: dict[str, str], limit: float | None, tmp_path: Path
) -> None:
    assert cpu_limit(*groups(tmp_path, process, files)) == limit
    assert cpu_limit(str(tmp_path / "none"), str(tmp_path)) is None


@pytest.mark.parametrize(
    ("process", "files", "free"),
    [
        ("0::/\n", {}, 2048),
        ("0::/\n", {"memory.max": "max\n"}, 2048),
        ("0::/a/b\n", {"a/b/memory.max": "4096\n", "a/memory.max": "1000\n"}, 1000),
        ("3:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 2048),
        ("3:memory:/x\n", {"memory/x/memory.limit_in_bytes": "512\n"}, 512),
    ],
)
def test_memory_that_control_groups_leave(
    process: str, files: dict[str, str], free: int, tmp_path: Path
) -> None:
    system = tmp_path / "meminfo"
    system.write_text("MemTotal:  4 kB\nMemFree:  1 kB\nMemAvailable:  2 kB\nActive:  0 kB\n")
    assert free_memory(*groups(tmp_path, process, files), str(system)) == free
    none = str(tmp_path / "none")
    assert free_memory(none, none, none) is None


def test_a_container_gets_the_cores_that_it_pays_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    process, folders = groups(tmp_path, "0::/\n", {"cpu.max": "350000 100000\n"})
    monkeypatch.setattr("tokpack.machine.cpu_limit", lambda: cpu_limit(process, folders))
    assert (affine_cores(), usable_cores()) == (64, 4)
    assert worker_count(EncodeOptions(inputs=("a",))) == 4
    assert worker_count(EncodeOptions(inputs=("a",), workers=9)) == 9


def test_the_doctor_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "tokenizers"
    cache.mkdir(parents=True)
    (cache / "file").write_bytes(bytes(12_345))
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    found = run_json("doctor", tmp_path)
    assert found["machine"]["cores"]["usable"] == usable_cores()
    assert found["folder"]["path"] == os.path.realpath(tmp_path)
    assert found["folder"]["can"]["folder_sync"] is True
    assert [one["bytes"] for one in found["caches"]] == [12_345, None]
    assert found["tokenizers"]["gpt2"]["path"] is None
    assert "vocab.json and merges.txt" in found["tokenizers"]["gpt2"]["needs"]
    assert found["packages"]["numpy"]
    assert found["extras"]["parquet"] == {"missing": []}
    assert not list(tmp_path.glob(".tokpack*"))
    text = run("doctor", tmp_path, COLUMNS="80").stdout
    assert "12.3 kB" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "without a network put vocab.json" in " ".join(text.split())
    folder = cache / "gpt2"
    folder.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (folder / name).touch()
    assert run_json("doctor", tmp_path)["tokenizers"]["gpt2"] == {
        "path": str(folder),
        "needs": None,
    }
    assert "no such folder" in run("doctor", tmp_path / "none", code=1).stderr


def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokpack.cli import installed

    before = installed.version
    monkeypatch.setattr(installed, "version", lambda name: None if name == "ftfy" else before(name))
    assert run_json("doctor")["extras"]["ftfy"] == {"missing": ["ftfy"]}
    text = " ".join(run("doctor").stdout.split())
    assert 'repaired Unicode: encode --ftfy; no ftfy: pip install "tokpack[ftfy]"' in text


def test_the_doctor_lists_the_extras_of_users() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = {*tomllib.loads(text)["project"]["optional-dependencies"]}
    assert {*run_json("doctor")["extras"]} == extras - {"dev", "all", "test", "docs"}
