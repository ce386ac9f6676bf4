"""Inputs that are edited between two shards: a dataset is of one version of each input."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support import forked
from support.cli_tools import tokpack
from support.encoding_tools import dataset, documents, write_jsonl

from tokpack.shards.plan import ShardPlan

if TYPE_CHECKING:
    from shards.conftest import Corpus

QUIET = ("-q", "--workers", "1")


def edit(path: Path, at: int) -> None:
    """Other letters of the same number, far from where a fingerprint looks."""
    with path.open("r+b") as file:
        file.seek(at)
        text = file.read(1 << 16)
        file.seek(at)
        file.write(text.replace(b"the", b"eht"))


def test_shards_are_of_one_version_of_an_input(corpus: Corpus, tmp_path: Path) -> None:
    large = write_jsonl(tmp_path / "large.jsonl", documents(3000, words=150, seed=2) * 8)
    small = write_jsonl(tmp_path / "small.jsonl", documents(20))
    prefix, size = tmp_path / "pile", large.stat().st_size
    plan = ("plan", large, small, "-o", prefix, "--shard-size", "1MB", "-q")
    plan = (*plan, "--tokenizer", corpus.options["tokenizer"])
    made = tokpack(*plan)
    assert made.returncode == 0, made.stderr
    shards = ShardPlan.load(str(prefix)).shards
    assert shards >= 3

    def encode(number: int) -> tuple[int, str]:
        done = tokpack("encode", "--plan", prefix, "--shard", number, *QUIET)
        return done.returncode, done.stderr

    assert encode(0)[0] == 0
    for at in (size // 8, size * 7 // 8):
        edit(large, at)
    code, said = encode(1)
    assert code == 1
    assert f"{large} has another modification time than when the plan was made" in said
    assert tokpack("commit", prefix).returncode == 1
    # The same plan again would go on with shard 0, which is of the file before.
    again = tokpack(*plan)
    assert again.returncode == 1
    assert f"{large} has changed since" in again.stderr
    assert tokpack(*plan, "--overwrite").returncode == 0
    # The time of a file that one shard reads alone may be another, as that of a copy is.
    os.utime(small)
    assert [encode(number)[0] for number in range(shards)] == [0] * shards
    assert tokpack("commit", prefix, "-q").returncode == 0
    assert tokpack("merge", prefix, "-o", tmp_path / "one", "-q").returncode == 0
    whole = ("encode", large, small, "-o", tmp_path / "whole", "--tokenizer")
    assert tokpack(*whole, corpus.options["tokenizer"], *QUIET).returncode == 0
    assert dataset(tmp_path / "one") == dataset(tmp_path / "whole")


def test_a_shard_of_another_plan_is_not_committed(corpus: Corpus, tmp_path: Path) -> None:
    """Somebody copies a shard into the folder of another plan."""
    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    for name, more in (("other", ()), ("own", ("--bos-token", 0))):
        prefix = tmp_path / name / "pile"
        plan = ("plan", source, "-o", prefix, "-q", "--tokenizer", corpus.options["tokenizer"])
        encode = ("encode", "--plan", prefix, "--shard", 0, *QUIET)
        assert tokpack(*plan, *more).returncode == 0
        if name == "other":
            assert tokpack(*encode).returncode == 0
            assert tokpack("status", prefix).returncode == 0
    for path in (tmp_path / "other").glob("pile-*"):
        shutil.copy(path, tmp_path / "own")
    refused = tokpack("commit", prefix)
    assert refused.returncode == 1
    assert "not the shard that was planned" in refused.stderr
    refused = tokpack(*encode)
    assert refused.returncode == 1
    assert "replace it with --overwrite" in refused.stderr
    assert tokpack(*encode, "--overwrite").returncode == 0
    assert tokpack("status", prefix).returncode == 0
    assert tokpack("commit", prefix, "-q").returncode == 0


def test_a_shard_of_a_plan_that_was_replaced_is_not_written(corpus: Corpus, tmp_path: Path) -> None:
    """Its process stands still while another plan is made."""
    prefix, large = tmp_path / "pile", corpus.inputs[2]
    plan = ("plan", large, "-o", prefix, "-q", "--tokenizer", corpus.options["tokenizer"])
    plan = (*plan, "--on-error", "skip")
    assert tokpack(*plan).returncode == 0
    command = ("encode", "--plan", str(prefix), "--shard", "0", *QUIET)
    old = forked.Process(["-m", "tokpack", *command], stderr=subprocess.PIPE, text=True)
    while not Path(f"{prefix}-00000.unfinished/plan.json").exists() and old.poll() is None:
        time.sleep(0.01)
    old.send_signal(signal.SIGSTOP)
    assert tokpack(*plan, "--bos-token", 0, "--overwrite").returncode == 0
    old.send_signal(signal.SIGCONT)
    said = old.communicate()[1]
    assert old.returncode == 1, said
    assert "was replaced or removed meanwhile" in said
    assert [path.name for path in tmp_path.iterdir()] == ["pile.plan"]
    assert tokpack(*command).returncode == 0
    assert tokpack("commit", prefix, "-q").returncode == 0
