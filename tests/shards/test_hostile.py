"""Odd inputs and names, and files of a plan that somebody else wrote."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pytest
from support.encoding_tools import dataset

import tokpack
from tokpack import machine
from tokpack.cli import main
from tokpack.dataset import Manifest, Origins
from tokpack.encoding import EncodeOptions
from tokpack.errors import FormatError, InputError, UsageError
from tokpack.shards import drive
from tokpack.shards.committed import commit, data_path, survey
from tokpack.shards.cut import encode_shard, make_shard_plan
from tokpack.shards.drive import BUSY, CommandResult
from tokpack.shards.plan import ShardPlan, plan_path, report_path, save_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shards.conftest import Corpus


def heavy(path: Path, texts: Sequence[str]) -> str:
    """A file of JSON lines that is large for what becomes of it: it shares its part with none."""
    lines = [json.dumps({"a": text, "b": text[::-1], "pad": "x" * 10**6}) for text in texts]
    path.write_text("\n".join([*lines, "no JSON"]) + "\n")
    return str(path)


def plan_of(corpus: Corpus, inputs: Sequence[str], prefix: str, **more: Any) -> ShardPlan:
    options = {"tokenizer": str(corpus.options["tokenizer"]), "on_error": "skip", **more}
    plan = make_shard_plan(EncodeOptions(tuple(inputs), output=prefix, **options), 1)
    save_plan(plan, prefix)
    return plan


def test_an_input_given_twice_and_shards_without_a_token(corpus: Corpus, tmp_path: Path) -> None:
    twice = heavy(tmp_path / "twice.jsonl", [f"text {n}" for n in range(9)])
    blank = heavy(tmp_path / "blank.jsonl", [""] * 5)
    inputs = [blank, twice, twice, blank]
    prefix, keys = str(tmp_path / "pile"), ("a", "b")
    plan = plan_of(corpus, inputs, prefix, trace=True, keys=keys)
    assert any(shard.begins_inside_source for shard in plan.each_shard())
    for number in range(plan.shards):
        encode_shard(plan, prefix, number, workers=1)
    made = commit(plan, prefix)[0]
    assert "0 " not in [line[:2] for line in data_path(prefix, made).splitlines()]
    options = {"tokenizer": corpus.options["tokenizer"], "on_error": "skip", "keys": keys}
    tokpack.encode(inputs, tmp_path / "whole", workers=1, trace=True, **options)
    for key in keys:
        one, whole = f"{prefix}_{key}", f"{tmp_path / 'whole'}_{key}"
        tokpack.verify(one)
        tokpack.merge([one], tmp_path / f"one_{key}")
        assert dataset(tmp_path / f"one_{key}") == dataset(Path(whole))
        entries = [
            [
                (entry["name"], entry["records"], entry["tokens"])
                for entry in Manifest.load(p).inputs
            ]
            for p in (one, whole)
        ]
        assert entries[0] == entries[1]
        mine, theirs = Origins(one), Origins(whole)
        assert list(mine) == list(theirs)
        for name, lines in ((twice, 10), (blank, 6)):
            for line in range(1, lines + 1):
                assert mine.find(name, line) == theirs.find(name, line)


def test_nothing_but_empty_documents(corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "pile")
    plan = plan_of(corpus, [heavy(tmp_path / "blank.jsonl", [""])], prefix, keys=("a",))
    encode_shard(plan, prefix, 0, workers=1)
    with pytest.raises(InputError, match=r"/pile: .*'a'"):
        commit(plan, prefix)


@pytest.mark.parametrize("name", ["a//pile", "b [1]*//.p*le", "c\\n ü/'pile"])
def test_names_of_outputs(name: str, corpus: Corpus, tmp_path: Path) -> None:
    prefix = f"{tmp_path}/{name}"
    plan = plan_of(corpus, [heavy(tmp_path / "x.jsonl", ["a text"])], prefix, keys=("a",))
    encode_shard(plan, prefix, 0, workers=1)
    assert [one.state for one in survey(plan, prefix)] == ["done"]
    commit(plan, prefix)


def test_names_that_are_no_outputs(corpus: Corpus, tmp_path: Path) -> None:
    for name, match in (
        (f"{tmp_path}/pile.plan", r"/pile\.plan: "),
        (f"{tmp_path}/plan.jsonl", r"/plan\.jsonl: "),
        ("s3://key:word@bucket/pile", "^s3://bucket/pile: .*secret"),
    ):
        with pytest.raises(UsageError, match=match):
            make_shard_plan(EncodeOptions(tuple(corpus.inputs), output=name, **corpus.options))  # type: ignore[arg-type]


def test_a_plan_that_somebody_else_wrote(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = str(tmp_path / "pile")
    plan = plan_of(corpus, [heavy(tmp_path / "x.jsonl", ["a text"])], prefix, keys=("a",))
    wrong: list[dict[str, Any]] = [
        {"names": {"a": "../../elsewhere"}},
        {"names": {"a": 7}},
        {"names": {}},
        {"options": []},
        {"tokenizer": {}},
        {"shards": 10**18},
        {"shards": True},
        {"inputs": "many"},
        {"body": b""},
    ]
    for change in wrong:
        content = replace(plan, **change).identified().content()
        Path(plan_path(prefix)).write_bytes(content)
        with pytest.raises(FormatError, match=r"plan\.jsonl"):
            ShardPlan.load(prefix)
    for line in (b"{", b"[]", b'{"inputs": 3}', b"[" * 9**5, b'{"inputs": [], "parts": [[1]]}'):
        with pytest.raises(FormatError, match=r"\bshard 0\b"):
            replace(plan, body=line + b"\n").shard(0)
    line = json.loads(plan.body.splitlines()[0])
    hostile: dict[str, list[Any]] = {
        "parts": [
            [],
            *([part] for part in ([7, "whole", 0, 0, 1], ["0", "whole", 0, 0, 1])),
            *([part] for part in ([-1, "whole", 0, 0, 1], [0, "files", 0, 7, 1])),
            *([part] for part in ([0, "files", 2, 1, 1], [0, "none", 0, 0, 1])),
        ],
        "inputs": [
            [],
            *([{**line["inputs"][0], name: 7.5}] for name in ("name", "path", "size", "mtime_ns")),
            *([{**line["inputs"][0], name: "none"}] for name in ("format", "compression")),
        ],
    }
    for name, values in hostile.items():
        for value in values:
            body = json.dumps({**line, name: value}).encode() + b"\n"
            Path(plan_path(prefix)).write_bytes(replace(plan, body=body).identified().content())
            for arguments in (["encode", "--plan", prefix, "--shard", "0"], ["status", prefix]):
                assert main([*arguments, "-q"]) == 1, (name, value)
            assert main(["commit", prefix]) == 1
            assert "a fault in tokpack" not in capsys.readouterr().err, (name, value)
    for options in ({}, {**plan.options, "no_such": 1}):
        with pytest.raises(FormatError, match=r"plan\.jsonl: its options\b"):
            replace(plan, options=options).encode_options(prefix, 0)
    Path(plan_path(prefix)).unlink()
    os.mkfifo(plan_path(prefix))
    with pytest.raises(InputError, match=r"plan\.jsonl"):
        ShardPlan.load(prefix)


def test_reports_that_somebody_else_wrote(corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "pile")
    plan = plan_of(corpus, [heavy(tmp_path / "x.jsonl", ["a text"])], prefix, keys=("a",))
    good = {
        **dict.fromkeys(("shard", "done", "total", "documents", "tokens", "text_bytes"), 5),
        "state": "failed",
        "host": "a",
        "pid": 1,
        "message": "m",
        **dict.fromkeys(("began", "told"), time.time()),
    }
    path = Path(report_path(prefix, 0))
    path.write_text(json.dumps(good))
    assert survey(plan, prefix)[0].state == "failed"
    for name, values in {
        "state": ["sleeping", [], None],
        "host": [7, None],
        "pid": ["1", 1.5],
        "began": [float("nan"), float("inf"), "0", 1e300, -5],
        "tokens": [10**50, "5", 1.5, -1],
        "message": [{}, 3],
    }.items():
        for value in values:
            path.write_text(json.dumps({**good, name: value}))
            assert survey(plan, prefix)[0].report is None, (name, value)
    for pid in (0, -1, 1 << 40):
        path.write_text(json.dumps({**good, "state": "running", "host": gethostname(), "pid": pid}))
        assert survey(plan, prefix)[0].state != "running"
    for text in ("[" * 9**5, "[]", "7", '{"shard": 0}'):
        path.write_text(text)
        assert survey(plan, prefix)[0].state == "open"


class Busy:
    """An engine on which another is always at it."""

    def __init__(self) -> None:
        self.begun = 0

    def start(self, arguments: Sequence[str]) -> int:
        self.begun += 1
        return self.begun

    def ended(self, handles: Sequence[int], seconds: float) -> list[tuple[int, CommandResult]]:
        return [(handle, CommandResult(BUSY, "")) for handle in handles[:1]]

    def cancel(self, handle: int) -> None: ...

    def close(self) -> None: ...


def test_a_shard_that_another_makes_is_not_begun_all_the_time(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = str(tmp_path / "pile")
    plan = plan_of(corpus, [heavy(tmp_path / "x.jsonl", ["a text"])], prefix, keys=("a",))
    engine, waits = Busy(), 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            encode_shard(plan, prefix, 0, workers=1)

    monkeypatch.setattr(machine.clock, "sleep", wait)
    drive.ShardRunner(plan, prefix, engine).run()
    assert engine.begun == 1
