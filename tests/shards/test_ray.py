"""A real Ray cluster of two nodes on this machine; one is removed while it works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import dataset

import tokpack
from tokpack.cli.main import main
from tokpack.encoding import EncodeOptions
from tokpack.errors import UsageError
from tokpack.shards.committed import commit, survey
from tokpack.shards.cut import make_shard_plan
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import save_plan

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shards.conftest import Corpus


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from ray.cluster_utils import Cluster

    for left in (2, 1, 0):  # Ray waits 30 s for its own processes, which a busy machine may exceed
        try:
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
            break
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_node_is_removed_while_it_works(cluster: Any, corpus: Corpus, tmp_path: Path) -> None:
    from tokpack.shards.ray_engine import RayEngine

    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    prefix = tmp_path / "pile"
    options = EncodeOptions(tuple(corpus.units), output=str(prefix), **corpus.options)  # type: ignore[arg-type]
    plan = make_shard_plan(options, 1)
    save_plan(plan, str(prefix))
    engine = RayEngine(cluster.address, None)
    assert engine.cpus == 1
    told: list[str] = []

    def remove() -> None:
        while sum(one.state == "running" for one in survey(plan, str(prefix))) < 2:
            time.sleep(0.02)
            if all(one.state == "done" for one in survey(plan, str(prefix))):
                return
        cluster.remove_node(other, allow_graceful=False)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        ShardRunner(plan, str(prefix), engine, ["-q", "--workers", "1"], say=told.append).run()
    finally:
        remover.join()
        engine.close()
    commit(plan, str(prefix))
    tokpack.merge([prefix], tmp_path / "one")
    tokpack.encode(corpus.units, tmp_path / "whole", workers=1, **corpus.options)
    assert dataset(tmp_path / "one") == dataset(tmp_path / "whole")


def test_the_command_and_a_driver_that_dies(cluster: Any, corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "pile")
    words = [sys.executable, "-m", "tokpack", "encode", *corpus.units, "-o", prefix, "-q"]
    words += ["--engine", "ray", "--ray-address", cluster.address, "--workers", "1"]
    words += ["--shard-size", "1", "--tokenizer", str(corpus.options["tokenizer"])]
    words += ["--on-error", "skip"]
    killed = subprocess.Popen(words)
    while not (tmp_path / "pile.plan" / "00000.json").exists() and killed.poll() is None:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [prefix]
    tokpack.merge([prefix], tmp_path / "one")
    options = {"tokenizer": str(corpus.options["tokenizer"]), "on_error": "skip", "workers": 1}
    tokpack.encode(corpus.units, tmp_path / "whole", **options)
    assert dataset(tmp_path / "one") == dataset(tmp_path / "whole")


def test_what_is_asked_of_a_cluster_that_it_has_not(cluster: Any) -> None:
    from tokpack.shards.ray_engine import RayEngine

    with pytest.raises(tokpack.WorkerError, match="ray_address"):
        RayEngine("127.0.0.1:1", 1)
    with pytest.raises(UsageError, match=r"^workers=64: .*\bCPUs\b"):
        RayEngine(cluster.address, 64)


def test_a_node_that_is_slow_to_start_is_no_fault_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray raises an Exception of no class of its own, after half a minute."""
    from tokpack.shards.ray_engine import RayEngine

    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(tokpack.WorkerError, match=r"ray_address.*timed out"):
        RayEngine(None, 1)


def test_copies_are_found_by_its_tasks(cluster: Any, corpus: Corpus, tmp_path: Path) -> None:
    """By the keys of two shards, and then by pairs of documents of both."""
    for name in ("one", "two"):
        tokpack.merge([corpus.whole], tmp_path / name)
    tokpack.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "pile", virtual=True)
    tokpack.dedup(tmp_path / "pile", tmp_path / "whole", near=0.8)
    words = ["dedup", str(tmp_path / "pile"), "-o", str(tmp_path / "clean"), "--near", "0.8"]
    words += ["--engine", "ray", "--ray-address", cluster.address, "--threads", "1", "-q"]
    assert main(words) == 0
    for suffix in (".selection", ".clusters.parquet"):
        made = (tmp_path / f"clean{suffix}").read_bytes()
        assert made == (tmp_path / f"whole{suffix}").read_bytes()
    assert len(list(tmp_path.glob("*.keys-*"))) == 2
    assert not list(tmp_path.glob("*.plan"))
