"""Plans: what is cut where, and what a plan refuses."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpack.encoding import EncodeOptions
from tokpack.errors import FormatError, InputError, OutputError, ResumeError, UsageError
from tokpack.shards.committed import ranges
from tokpack.shards.cut import _shards, check_fits, make_shard_plan
from tokpack.shards.drive import numbers_of
from tokpack.shards.plan import ShardPlan, plan_path, prefix_of, save_plan
from tokpack.sources import Part, Source

if TYPE_CHECKING:
    from shards.conftest import Corpus

MB = 10**6
# Of an input: its format, compression and size.
INPUTS = st.tuples(
    st.sampled_from(["jsonl", "text", "archive"]),
    st.sampled_from(["", "gz"]),
    st.integers(0, 60 * MB) | st.integers(0, MB),
)


def covered(part: Part) -> list[tuple[int, int, int]]:
    """What a part reads: (source, begin, end), whole ones as (source, 0, -1)."""
    if part.kind == "files":
        return [(source, 0, -1) for source in range(part.begin, part.end)]
    if part.kind == "bytes":
        return [(part.source, part.begin, part.end)]
    return [(part.source, 0, -1)]


@pytest.mark.promises
@given(inputs=st.lists(INPUTS, min_size=1, max_size=40), size=st.integers(1, 50 * MB))
def test_every_byte_is_in_one_shard(inputs: list[tuple[str, str, int]], size: int) -> None:
    sources = [
        Source(f"{n}", f"s3://x/{n}", format_, packed, bytes_, 0, "e")
        for n, (format_, packed, bytes_) in enumerate(inputs)
    ]
    shards = list(_shards(sources, size))
    reads = [one for shard in shards for part in shard for one in covered(part)]
    at = 0
    for number, source in enumerate(sources):
        own = [one for one in reads if one[0] == number]
        assert own == reads[at : at + len(own)]
        at += len(own)
        if own[0][2] == -1:
            assert len(own) == 1
        else:  # ranges that follow each other
            assert [begin for _, begin, _ in own] == [0, *(end for *_, end in own[:-1])]
            assert own[-1][2] == source.size
    assert at == len(reads)
    for shard in shards[:-1]:  # as large as was asked for, or one thing that cannot be cut
        weights = [part.weight for part in shard]
        assert sum(weights) <= 2 * size or len({part.source for part in shard}) == 1
    for shard, following in pairwise(shards):
        # No two neighbours would have been one shard.
        both = sum(part.weight for part in shard + following)
        assert both > size / 2 or len(shards) == 1


def options(corpus: Corpus, output: Path, **more: Any) -> EncodeOptions:
    inputs = more.pop("inputs", tuple(corpus.inputs))
    return EncodeOptions(inputs, output=str(output), **{**corpus.options, **more})


def test_a_plan_depends_on_no_machine(corpus: Corpus, tmp_path: Path) -> None:
    first = make_shard_plan(options(corpus, tmp_path / "x", workers=1), 3 * MB)
    assert first == make_shard_plan(options(corpus, tmp_path / "x", workers=64), 3 * MB)
    assert first.shards > 3
    save_plan(first, str(tmp_path / "x"))
    save_plan(first, str(tmp_path / "x"))  # the same again is no other
    assert ShardPlan.load(str(tmp_path / "x")) == first


def test_relative_inputs_are_found_from_anywhere(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(corpus.inputs[0]).parent)
    names = tuple(os.path.basename(path) for path in corpus.inputs)
    tokenizer = os.path.basename(str(corpus.options["tokenizer"]))
    plan = make_shard_plan(
        replace(options(corpus, tmp_path / "x"), inputs=names, tokenizer=tokenizer)
    )
    assert [source.path for source in plan.shard(0).sources] == corpus.inputs
    assert [source.name for source in plan.shard(0).sources] == list(names)
    assert plan.options["tokenizer"] == corpus.options["tokenizer"]


@pytest.mark.parametrize("damage", ["body", "head", "cut", "empty", "other"])
def test_a_damaged_plan_is_refused(damage: str, corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "x")
    save_plan(make_shard_plan(options(corpus, tmp_path / "x"), 3 * MB), prefix)
    path = Path(plan_path(prefix))
    content = path.read_bytes()
    path.write_bytes(
        {
            "body": content[:-9] + b"8" + content[-8:],
            "head": content.replace(b'"shards": ', b'"shards": 1', 1),
            "cut": content[: len(content) // 2],
            "empty": b"",
            "other": b'{"format": 1}\n',
        }[damage]
    )
    with pytest.raises(FormatError, match=r"plan\.jsonl"):
        ShardPlan.load(prefix)


def test_another_plan_takes_overwrite_and_its_shards_go(corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "x")
    first = make_shard_plan(options(corpus, tmp_path / "x"), 3 * MB)
    save_plan(first, prefix)
    for end in ("-00000.bin", "-00001.json", ".json", "-notes.txt"):
        Path(prefix + end).write_text('{"tokpack": "old"}')
    other = make_shard_plan(options(corpus, tmp_path / "x", append_eod=False), 3 * MB)
    with pytest.raises(OutputError, match="append_eod"):
        save_plan(other, prefix)
    assert Path(prefix + "-00000.bin").exists()
    save_plan(other, prefix, overwrite=True)
    assert ShardPlan.load(prefix) == other
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-notes.txt", "x.plan"]


def test_a_plan_of_another_version_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    prefix = str(tmp_path / "x")
    plan = make_shard_plan(options(corpus, tmp_path / "x"))
    save_plan(replace(plan, version="0.0.9").identified(), prefix)
    with pytest.raises(ResumeError, match=r"plan\.jsonl .*\btokpack 0\.0\.9, "):
        ShardPlan.load(prefix)
    save_plan(plan, prefix, overwrite=True)
    assert ShardPlan.load(prefix) == plan


def test_what_cannot_be_cut_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^limit "):
        make_shard_plan(options(corpus, tmp_path / "x", limit=3))
    with pytest.raises(UsageError, match=r"^<stdin> "):
        make_shard_plan(EncodeOptions("-", output=str(tmp_path / "x"), input_format="text"))
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    with pytest.raises(UsageError, match="/pipe "):
        make_shard_plan(EncodeOptions(str(tmp_path / "pipe"), output=str(tmp_path / "x")))
    with pytest.raises(InputError):
        ShardPlan.load(str(tmp_path / "nothing"))


def test_a_file_that_is_much_larger_than_a_shard_is_named(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = (json.dumps({"text": "a b c"}) + "\n") * 2000
    for name, packed in (("one.jsonl.gz", gzip.compress(text.encode())), ("two.jsonl", b"")):
        (tmp_path / name).write_bytes(packed or text.encode())
        source = options(corpus, tmp_path / "x", inputs=(str(tmp_path / name),))
        make_shard_plan(source, 100)
    (said,) = (text for text in caplog.messages if "smallest piece" not in text)
    assert "one.jsonl.gz becomes one shard of about" in said
    assert "zst with several frames" in said


def test_another_tokenizer_on_a_machine_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    from tokpack.encoding.setup import load_setup

    plan = make_shard_plan(options(corpus, tmp_path / "x"))
    own = plan.encode_options(str(tmp_path / "x"), 0)
    plan.check_setup(own, load_setup(own))
    definition = json.loads(Path(str(corpus.options["tokenizer"])).read_text())
    definition["model"]["merges"].pop()
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(definition))
    with pytest.raises(ResumeError, match=r"tokenizer .*\.json"):
        plan.check_setup(own, load_setup(replace(own, tokenizer=str(other))))
    without = replace(own, append_eod=False)
    with pytest.raises(ResumeError, match="append_eod"):
        plan.check_setup(without, load_setup(without))


def test_names_of_a_plan() -> None:
    for text in ("a/x", "a/x.plan", "a/x.plan/", "a/x.plan/plan.jsonl"):
        assert prefix_of(text) == "a/x"
    assert prefix_of("s3://b/x.plan/") == "s3://b/x"


@given(st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted))
def test_ranges_are_read_back(numbers: list[int]) -> None:
    assert numbers_of(ranges(numbers), 61) == numbers


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_ARRAY_TASK_ID": "0"}, [0]),
        ({"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "6"}, [6]),
        # An array of three for seven shards takes turns; one that makes up for a few does not.
        (dict(zip(("ID", "MIN", "MAX", "COUNT"), "1023", strict=True)), [1, 4]),
        (dict(zip(("ID", "MIN", "MAX", "COUNT"), "1132", strict=True)), [1]),
        ({"JOB_COMPLETION_INDEX": "3"}, [3]),
        ({"PBS_ARRAY_INDEX": "6"}, [6]),
        ({"LSB_JOBINDEX": "1"}, [0]),
        ({"SGE_TASK_ID": "7"}, [6]),
        ({"SGE_TASK_ID": "undefined", "PBS_ARRAYID": "2"}, [2]),
        ({"LSB_JOBINDEX": "0"}, r"^shard='auto': .*\bLSB_JOBINDEX\b"),
        ({"SGE_TASK_ID": "\u00b2"}, r"^shard='auto': .*\bSGE_TASK_ID\b"),
        ({"JOB_COMPLETION_INDEX": "7"}, r"^JOB_COMPLETION_INDEX .*\b7: .*\b7 shards\b"),
        ({}, r"^shard='auto': .*\bSLURM_ARRAY_TASK_ID\b"),
    ],
)
def test_the_task_of_an_array(
    environment: dict[str, str], expected: list[int] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "JOB_COMPLETION", "PBS_", "LSB_", "SGE_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        full = f"SLURM_ARRAY_TASK_{name}" if len(name) < 6 else name
        monkeypatch.setenv(full, value)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            numbers_of("auto", 7)
    else:
        assert numbers_of("auto", 7) == expected


@pytest.mark.parametrize("text", ["7", "5-9", "3-2", "x", "", "1,,2", "-1"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="shard="):
        numbers_of(text, 7)


def test_what_does_not_fit_a_cluster_is_said(corpus: Corpus, tmp_path: Path) -> None:
    options = EncodeOptions(tuple(corpus.units), output=str(tmp_path / "pile"), **corpus.options)  # type: ignore[arg-type]
    plan = make_shard_plan(options, 1)
    assert check_fits(plan, options.output, machines=plan.shards, disk=1) == []
    (said,) = check_fits(plan, options.output, machines=plan.shards + 2, disk=1)
    assert f"of {plan.shards + 2} machines 2 would have nothing to do" in said
    with pytest.raises(UsageError, match=r" [\d.]+ MB .*\b1 kB: .*\bshard_size\b.*\bscratch\b"):
        check_fits(plan, "s3://tokens/pile", machines=1, disk=1000)
    (said,) = check_fits(plan, "memory://tokens/pile", machines=1, disk=0)
    assert "this store does not compare before it writes" in said
