"""A real Slurm of one node: a command that is left and taken up, and tasks that are lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import dataset
from support.optional import needs_root, program
from support.slurm import PROGRAMS, one_node

import tokpack
from tokpack.encoding import EncodeOptions
from tokpack.errors import UsageError, WorkerError
from tokpack.shards import slurm_engine
from tokpack.shards.committed import commit, survey
from tokpack.shards.cut import make_shard_plan
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import save_plan
from tokpack.shards.slurm_engine import SlurmEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shards.conftest import Corpus

_ABSENT = [name for name in PROGRAMS if program(name) is None]
pytestmark = [
    needs_root,
    pytest.mark.skipif(bool(_ABSENT), reason=f"no {', '.join(_ABSENT)} here: see support/slurm.py"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder,
        one_node(Path(folder)) as environment,
    ):
        yield environment


@pytest.fixture
def slurm(served: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", served["SLURM_CONF"])
    monkeypatch.setattr(slurm_engine, "_LOOK_SECONDS", 0.5)


@pytest.fixture(scope="module")
def whole(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one machine makes of the units."""
    prefix = tmp_path_factory.mktemp("whole") / "whole"
    tokpack.encode(corpus.units, prefix, workers=1, **corpus.options)
    return prefix


@pytest.mark.usefixtures("slurm")
def test_a_command_is_left_and_taken_up(corpus: Corpus, whole: Path, tmp_path: Path) -> None:
    prefix, header = tmp_path / "pile", tmp_path / "header"
    header.write_text("#!/bin/bash -e\n#SBATCH --comment=kept\nexport KEPT=1\n")
    words = [sys.executable, "-m", "tokpack", "encode", *corpus.units, "-o", str(prefix)]
    words += ["--engine", "slurm", "--workers", "1", "--machines", "1", "--shard-size", "1"]
    words += ["--engine-option", "time=5", "--engine-option", f"header={header}"]
    words += ["--tokenizer", str(corpus.options["tokenizer"]), "--on-error", "skip:6"]
    words += ["--trace", "--empty", "document"]
    left = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("pile.plan/0*.json")) and left.poll() is None:
        time.sleep(0.05)
    left.send_signal(signal.SIGINT)
    said = left.communicate()[1]
    assert "1 task with 1 CPU" in said
    assert "the tasks go on" in said
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(prefix)]), done.stderr
    assert "submitted" not in done.stderr
    tokpack.merge([prefix], tmp_path / "one")
    assert dataset(tmp_path / "one") == dataset(whole)


@pytest.mark.usefixtures("slurm")
def test_tasks_that_are_lost_or_cancelled(corpus: Corpus, whole: Path, tmp_path: Path) -> None:
    prefix = str(tmp_path / "pile")
    options = EncodeOptions(tuple(corpus.units), output=prefix, **corpus.options)  # type: ignore[arg-type]
    plan = make_shard_plan(options, 1)
    save_plan(plan, prefix)
    told: list[str] = []

    def run() -> None:
        engine = SlurmEngine("tokpack-test", 1, ["partition=small"], str(tmp_path), told.append)
        try:
            ShardRunner(plan, prefix, engine, ["-q"], takers=1, say=told.append).run()
        finally:
            engine.close()

    def strike() -> None:
        """End the task that takes the first shard; then cancel what comes in its place."""
        while not (working := [one.report for one in survey(plan, prefix) if one.report]):
            time.sleep(0.02)
        os.kill(working[0].pid, signal.SIGTERM)
        while not any("was lost" in text for text in told):
            time.sleep(0.02)
        waiting = ["squeue", "-h", "-t", "PD,R"]
        while not subprocess.run(waiting, capture_output=True, check=True).stdout:
            time.sleep(0.02)
        subprocess.run(["scancel", "-n", "tokpack-test"], check=True)

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(WorkerError, match="task 0: CANCELLED"):
        run()
    striker.join()
    run()
    commit(plan, prefix)
    tokpack.merge([prefix], tmp_path / "one")
    assert dataset(tmp_path / "one") == dataset(whole)


@pytest.mark.usefixtures("slurm")
def test_what_is_asked_of_a_cluster_that_it_has_not(tmp_path: Path) -> None:
    for cpus, given, match in (
        (9999, [], "^workers=9999: "),
        (1, ["partition=other"], "'partition=other': .* main, small$"),
        (1, ["main"], "'main': .*KEY=VALUE"),
        (1, [f"header={tmp_path}/none"], f"'header={tmp_path}/none': "),
    ):
        with pytest.raises(UsageError, match=match):
            SlurmEngine("tokpack-test", cpus, given, str(tmp_path), print)
    engine = SlurmEngine("tokpack-test", 1, ["no-such-option=1"], str(tmp_path), print)
    engine.start(["--version"])
    with pytest.raises(UsageError, match=r"sbatch: .*no-such-option"):
        engine.ended([], 0)
    # More tasks than an array may have: several arrays.
    engine = SlurmEngine("tokpack-test", 1, [], str(tmp_path), print)
    tasks = [engine.start(["--version"]) for _ in range(5)]
    assert engine.ended(tasks, 0) == []
    assert [task.id.partition("_")[2] for task in tasks] == ["0", "1", "2", "0", "1"]
    for task in tasks:
        engine.cancel(task)
    engine.close()


@pytest.mark.usefixtures("slurm")
def test_other_commands_read_shards_on_it(whole: Path, tmp_path: Path) -> None:
    """Each makes what it makes on this machine, and leaves only keys and logs behind."""
    several = [tmp_path / "one", tmp_path / "two"]
    for prefix in several:
        tokpack.merge([whole], prefix)
    tokpack.merge(several, tmp_path / "pile", virtual=True)
    expected = tokpack.dedup(tmp_path / "pile", tmp_path / "whole", near=0.8)
    assert expected.datasets[0].exact.documents
    flags = ["--engine", "slurm", "--machines", "2", "--engine-option", "time=5"]
    words = ["dedup", str(tmp_path / "pile"), "-o", str(tmp_path / "clean"), "--near", "0.8"]
    for command in ([*words, "--threads", "1"], ["verify", str(tmp_path / "pile")]):
        done = subprocess.run(
            [sys.executable, "-m", "tokpack", *command, *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "submitted job" in done.stderr
    for suffix in (".selection", ".clusters.parquet"):
        made = (tmp_path / f"clean{suffix}").read_bytes()
        assert made == (tmp_path / f"whole{suffix}").read_bytes()
    assert not list(tmp_path.glob("*.plan"))
    assert len(list(tmp_path.glob("*.keys-*"))) == 2
