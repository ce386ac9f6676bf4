"""Shards made in any order, twice, or by a run that was killed: the bytes of one machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from shards.conftest import SHARD_BYTES
from support import forked
from support.encoding_tools import dataset
from support.places import ROOT
from support.process_engine import ProcessEngine

import tokpack
from tokpack.cli import main
from tokpack.dataset import Manifest, MMapIndexedDataset, Origins
from tokpack.encoding import EncodeOptions
from tokpack.encoding.status import LOST_SECONDS, Report
from tokpack.errors import BusyError, FormatError, InputError, OutputError, WorkerError
from tokpack.shards import take
from tokpack.shards.committed import commit, data_path, survey
from tokpack.shards.cut import encode_shard, make_shard_plan
from tokpack.shards.drive import ShardRunner
from tokpack.shards.plan import ShardPlan, report_path, save_plan
from tokpack.shards.take import free_shards

if TYPE_CHECKING:
    from shards.conftest import Corpus


def planned(
    corpus: Corpus, prefix: Path, inputs: list[str] | None = None, size: int = 1, **more: Any
) -> ShardPlan:
    """A plan with a shard for each input, or for each range of one of a certain size."""
    given = tuple(inputs or corpus.inputs)
    options = EncodeOptions(given, output=str(prefix), **corpus.options | more)
    plan = make_shard_plan(options, size)
    save_plan(plan, str(prefix))
    return plan


@pytest.fixture(scope="session")
def made(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShardPlan]:
    """All shards, the last one first, and what they have become; nobody changes it."""
    prefix = tmp_path_factory.mktemp("made") / "pile"
    plan = planned(corpus, prefix, size=SHARD_BYTES)
    for number in reversed(range(plan.shards)):
        encode_shard(plan, str(prefix), number, workers=1 + number % 2)
    commit(plan, str(prefix))
    return prefix, plan


def states(plan: ShardPlan, prefix: Path) -> str:
    return " ".join(one.state for one in survey(plan, str(prefix)))


def test_a_process_loads_and_checks_the_tokenizer_once(corpus: Corpus, tmp_path: Path) -> None:
    plan = planned(corpus, tmp_path / "pile", size=SHARD_BYTES)
    encode_shard(plan, str(tmp_path / "pile"), 0, workers=1)
    setup = vars(plan)["setup"]
    assert setup.is_checked
    encode_shard(plan, str(tmp_path / "pile"), 1, workers=1)
    assert vars(plan)["setup"] is setup


def test_small_shards_are_said_to_be_larger(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planned(corpus, tmp_path / "pile", size=1_000_000)
    assert (
        "is below the smallest piece of a file, 4.19 MB: files are cut into pieces" in caplog.text
    )


@pytest.mark.promises
def test_shards_are_what_one_machine_makes(
    made: tuple[Path, ShardPlan], corpus: Corpus, tmp_path: Path
) -> None:
    prefix, plan = made
    assert plan.shards >= 4
    starts = [shard.parts[0].begin for shard in plan.each_shard() if shard.parts[0].kind == "bytes"]
    assert any(starts)  # one at least begins in the middle of a file
    tokpack.merge([prefix], tmp_path / "one")
    assert dataset(tmp_path / "one") == dataset(corpus.whole)
    assert MMapIndexedDataset(prefix).fingerprint == MMapIndexedDataset(corpus.whole).fingerprint
    virtual = tokpack.merge(
        [f"{prefix}-{n:05d}" for n in range(plan.shards)], tmp_path / "virtual", virtual=True
    )
    one, whole = Manifest.load(prefix), Manifest.load(corpus.whole)
    facts = ("prefix",)
    listed = [{k: v for k, v in vars(r).items() if k not in facts} for r in one.pieces or ()]
    again = [{k: v for k, v in vars(r).items() if k not in facts} for r in virtual.pieces or ()]
    assert listed == again
    for count in ("records", "documents", "sequences", "tokens", "empty", "rejected", "text_bytes"):
        assert getattr(one, count) == getattr(whole, count), count
    assert one.inputs[2]["content"] is None  # no shard has read all of a file that was cut
    ignored = {"content"}
    for mine, theirs in zip(one.inputs, whole.inputs, strict=True):
        assert {k: v for k, v in mine.items() if k not in ignored} == {
            k: v for k, v in theirs.items() if k not in ignored
        }
    assert tokpack.verify(prefix).tokens == whole.tokens


def test_a_shard_reads_its_own_frames_alone(corpus: Corpus, tmp_path: Path) -> None:
    content = Path(corpus.inputs[2]).read_bytes()
    frames = [content[at : at + 200_000] for at in range(0, len(content), 200_000)]
    source = tmp_path / "x.jsonl.zst"
    source.write_bytes(b"".join(map(zstandard.ZstdCompressor(level=1).compress, frames)))
    prefix = tmp_path / "pile"
    plan = planned(corpus, prefix, [str(source)], size=SHARD_BYTES)
    assert plan.shards >= 3
    assert {part.kind for shard in plan.each_shard() for part in shard.parts} == {"frames"}
    for number in range(plan.shards):
        before = bytes_read()
        encode_shard(plan, str(prefix), number, workers=1)
        # The others read the lines before them too, to count them.
        assert number or bytes_read() - before < source.stat().st_size
    commit(plan, str(prefix))
    tokpack.merge([prefix], tmp_path / "one")
    tokpack.encode(corpus.inputs[2], tmp_path / "whole", workers=1, **corpus.options)
    assert dataset(tmp_path / "one") == dataset(tmp_path / "whole")


def bytes_read() -> int:
    """What this process has read so far, from files or the cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_lines_count_from_the_beginning_of_a_file(
    made: tuple[Path, ShardPlan], corpus: Corpus
) -> None:
    prefix, plan = made
    mine, whole = Origins(prefix), Origins(corpus.whole)
    assert list(mine) == list(whole)
    large = next(name for name in whole.sources if name.endswith("large.jsonl"))
    for line in (1, 7, 17_999, 18_001, 18_002, 18_003, 18_100):
        assert mine.find(large, line)[0].became == whole.find(large, line)[0].became
        assert mine.find(large, line)[0].document == whole.find(large, line)[0].document
    with pytest.raises(tokpack.UsageError, match=r"other\.jsonl"):
        mine.find("other.jsonl", 1)
    rejects = [
        json.loads(line)
        for path in sorted(prefix.parent.glob("pile-*.rejects.jsonl"))
        for line in path.read_text().splitlines()
    ]
    expected = Path(f"{corpus.whole}.rejects.jsonl").read_text().splitlines()
    assert rejects == [json.loads(line) for line in expected]
    assert len(rejects) == 2
    assert plan.shards > 1


def test_what_is_chosen_of_a_file_that_is_cut(corpus: Corpus, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    prefix, more = tmp_path / "pile", {"where": "length(text) > 900"}
    plan = planned(corpus, prefix, [corpus.inputs[2]], size=SHARD_BYTES, **more)
    assert plan.shards > 2
    for number in range(plan.shards):
        encode_shard(plan, str(prefix), number, workers=1)
    (one,) = commit(plan, str(prefix))
    whole = tokpack.encode(corpus.inputs[2], tmp_path / "whole", workers=1, **corpus.options | more)
    assert one.left_out == whole.left_out > 0
    ignored = {"content": None}  # no shard has read all of it
    assert one.inputs == [{**entry, **ignored} for entry in whole.inputs]


def test_a_data_path_for_megatron(made: tuple[Path, ShardPlan]) -> None:
    prefix, plan = made
    manifest = Manifest.load(prefix)
    words = data_path(str(prefix), manifest).split()
    assert words[1::2] == [f"{prefix}-{n:05d}" for n in range(plan.shards)]
    assert sum(map(int, words[::2])) == manifest.tokens


def test_the_command_line(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = str(tmp_path / "pile")
    flags = ["--tokenizer", str(corpus.options["tokenizer"]), "--shard-size", "2500kB"]
    assert main(["plan", *corpus.inputs[2:], "-o", prefix, *flags, "--on-error", "skip"]) == 0
    said = capsys.readouterr()
    assert "--shard 0    to --shard" in said.err
    shards = ShardPlan.load(prefix).shards
    assert main(["status", prefix]) == 1
    assert f"tokpack encode --plan {prefix} --shard 0-{shards - 1}" in capsys.readouterr().out
    assert main(["commit", prefix]) == 1
    missing = capsys.readouterr().err
    assert (
        f"{shards} of {shards} shards are missing; make them with `tokpack encode --plan {prefix}"
        in missing
    )
    assert f" --shard 0-{shards - 1}`, and see" in missing
    more = ["--workers", "1", "-q"]
    assert main(["encode", "--plan", prefix, "--shard", f"1-{shards - 1}", *more]) == 0
    assert main(["status", prefix, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["missing"] == [0]
    assert facts["states"] == {"open": 1, "done": shards - 1}
    assert main(["encode", "--plan", prefix + ".plan", "--shard", "0", *more]) == 0
    assert main(["status", prefix]) == 0
    Path(f"{prefix}-00000.bin").unlink()
    capsys.readouterr()
    assert main(["status", prefix]) == 1
    hint = f"tokpack encode --plan {prefix} --shard 0 --overwrite\n"
    assert hint in capsys.readouterr().out
    assert main([*hint.split()[1:], *more]) == 0
    capsys.readouterr()
    assert main(["status", prefix]) == 0
    assert f"all are there: tokpack shards commit {prefix}\n" in capsys.readouterr().out
    script = [str(ROOT / "examples" / "cluster" / "slurm.sh"), prefix]  # finds it done
    found = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    task = {**os.environ, **found, "SLURM_ARRAY_TASK_ID": "1"}
    subprocess.run(["bash", *script], env=task, check=True, stdout=subprocess.DEVNULL)
    assert main(["commit", prefix, "--data-path", str(tmp_path / "paths")]) == 0
    assert (tmp_path / "paths").read_text().count("\n") == shards
    assert main(["commit", prefix]) == 0  # it is the same
    capsys.readouterr()
    assert main(["status", prefix]) == 0
    assert capsys.readouterr().out.endswith("done\ncommitted\n")
    assert main(["encode", "--plan", prefix, "--shard", "0", "--dtype", "int32"]) == 1
    assert "--dtype and --plan are both given" in capsys.readouterr().err
    assert main(["encode", "--plan", prefix, "--shard", "0", "--json-keys=a"]) == 1
    assert "--json-keys and --plan are both given" in capsys.readouterr().err
    assert main(["encode", "--plan", prefix]) == 1
    assert main(["encode", "x", "--shard-size=1GB"]) == 1
    assert "--shard-size is for --engine ray" in capsys.readouterr().err


@pytest.mark.promises
def test_what_is_missing_or_another_is_not_committed(
    made: tuple[Path, ShardPlan], tmp_path: Path
) -> None:
    folder, plan = shutil.copytree(made[0].parent, tmp_path / "copy"), made[1]
    prefix = folder / "pile"
    Path(f"{prefix}.json").unlink()
    names = [Path(f"{prefix}-{n:05d}") for n in range(2)]
    files = [Path(f"{name}{end}") for name in names for end in (".bin", ".idx", ".json")]
    kept = {path: path.read_bytes() for path in files}

    def refused(error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            commit(plan, str(prefix))
        assert not Path(f"{prefix}.json").exists()
        for path, content in kept.items():
            path.write_bytes(content)

    files[2].unlink()
    refused(InputError, rf"\b1 of {plan.shards} shards .* --shard 0`")
    files[2].write_bytes(kept[files[5]])  # of another shard
    refused(FormatError, r"00000\.json: .*\b1 input, .*\b3\)")
    files[3].write_bytes(kept[files[3]][:-2])
    refused(FormatError, rf"00001\.bin .*\b{len(kept[files[3]]) - 2} .*\b{len(kept[files[3]])}:")
    files[1].unlink()
    refused(FormatError, rf"00000\.idx .*\b{len(kept[files[1]])}:")
    files[2].write_bytes(kept[files[2]][:200])
    refused(FormatError, r"00000\.json")
    manifest = json.loads(kept[files[5]])
    for change, told in (
        ({"options": {**manifest["options"], "key": "title"}}, r".*\bplanned\b"),
        ({"records": manifest["records"] + 1}, r".*\bcounts\b"),
        ({"dtype": "int32"}, r".*\bint32, .*\buint16\b"),
    ):
        files[5].write_text(json.dumps({**manifest, **change}))
        refused(FormatError, rf"00001\.json: {told}")
    Path(f"{prefix}.idx").write_bytes(b"x")
    refused(OutputError, r"pile\.idx exists, and would hide the shards")
    Path(f"{prefix}.idx").unlink()
    commit(plan, str(prefix))
    # What a lost machine has left is replaced, another dataset is not.
    files[2].unlink()
    encode_shard(plan, str(prefix), 0, workers=1)
    assert {path: path.read_bytes() for path in files[:2]} == {p: kept[p] for p in files[:2]}
    files[2].write_bytes(kept[files[5]])
    with pytest.raises(OutputError):
        encode_shard(plan, str(prefix), 0, workers=1)


def test_bad_records_of_all_shards_are_counted_together(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pile"
    plan = planned(corpus, prefix, corpus.units[:2], max_rejects=3)
    for number in range(plan.shards):
        encode_shard(plan, str(prefix), number, workers=1)
    with pytest.raises(InputError, match=r"^4 .* 3 .*\bpile-\*\.rejects\.jsonl"):
        commit(plan, str(prefix))
    assert not Path(f"{prefix}.json").exists()


def test_an_input_that_has_changed_since_the_plan(corpus: Corpus, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(Path(corpus.inputs[0]).read_bytes())
    prefix = tmp_path / "pile"
    plan = make_shard_plan(EncodeOptions((str(source),), output=str(prefix), **corpus.options))  # type: ignore[arg-type]
    save_plan(plan, str(prefix))
    time.sleep(0.02)
    source.write_bytes(source.read_bytes())  # another time, the same content
    again = make_shard_plan(EncodeOptions((str(source),), output=str(prefix), **corpus.options))  # type: ignore[arg-type]
    assert again != plan
    assert save_plan(again, str(prefix)) == plan
    encode_shard(plan, str(prefix), 0, workers=1)
    for path in tmp_path.glob("pile-*"):
        path.unlink()
    content = source.read_bytes()
    source.write_bytes(content.replace(b"the", b"eht"))
    with pytest.raises(InputError, match=r"/a\.jsonl .*\bplan\b.*\boverwrite=True"):
        encode_shard(plan, str(prefix), 0, workers=1)
    (one,) = survey(plan, str(prefix))
    assert one.state == "failed"
    assert one.report is not None
    assert "has changed" in one.report.message
    source.unlink()
    with pytest.raises(InputError, match=r"/a\.jsonl: "):
        encode_shard(plan, str(prefix), 0, workers=1)


def test_a_maker_that_falls_silent_is_lost(made: tuple[Path, ShardPlan], tmp_path: Path) -> None:
    _, plan = made
    prefix = tmp_path / "pile"
    save_plan(plan, str(prefix))
    Path(report_path(str(prefix), 5)).write_text("{")
    now, ago = time.time(), time.time() - LOST_SECONDS - 5
    # The clock of a machine may be behind or ahead; that of the disk tells when it has written.
    written = {0: now, 1: ago, 2: now, 3: now, 4: ago}
    told = {0: now, 1: now, 2: now, 3: now - 1000, 4: now + 4000}
    for number, at in told.items():
        report = {
            **dict.fromkeys(("done", "total", "documents", "tokens", "text_bytes"), 5),
            "shard": number,
            "state": "failed" if number == 2 else "running",
            "host": "a",
            "pid": 1,
            "message": "m",
            "began": at - 60,
            "told": at,
        }
        path = Path(report_path(str(prefix), number))
        path.write_text(json.dumps(report))
        os.utime(path, (written[number], written[number]))
    expected = ["running", "lost", "failed", "running", "lost", *["open"] * (plan.shards - 5)]
    assert states(plan, prefix).split() == expected


def test_machines_that_are_lost_are_made_up_for(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pile"
    plan = planned(corpus, prefix, corpus.units)
    engine = ProcessEngine(slots=2, lose=2)
    told: list[str] = []
    seen: list[tuple[int, int]] = []
    drive = ShardRunner(
        *(plan, str(prefix), engine, ["-q", "--workers", "1"]),
        show=lambda progress: seen.append((progress.done, progress.total)),
        say=told.append,
    )
    drive.run()
    assert sum("was lost" in text for text in told) == 2
    assert len(engine.begun) == plan.shards + 2 == 5
    assert seen[-1] == (sum(shard.bytes for shard in plan.each_shard()),) * 2
    commit(plan, str(prefix))
    tokpack.merge([prefix], tmp_path / "one")
    tokpack.encode(corpus.units, tmp_path / "whole", workers=1, **corpus.options)
    assert dataset(tmp_path / "one") == dataset(tmp_path / "whole")
    ShardRunner(plan, str(prefix), engine).run()  # nothing is left to do
    assert len(engine.begun) == plan.shards + 2


def test_what_is_wrong_is_not_tried_again(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pile"
    three = [corpus.units[0], *corpus.inputs[3:5]]
    plan = planned(corpus, prefix, three, on_error="fail", max_rejects=None)
    engine = ProcessEngine()
    with pytest.raises(WorkerError, match=r"unit0\.jsonl:6001"):
        ShardRunner(plan, str(prefix), engine, ["-q", "--workers", "1"]).run()
    assert len(engine.begun) == plan.shards
    assert states(plan, prefix).split().count("done") == plan.shards - 1


def test_each_takes_the_next_free_shard(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pile"
    plan = planned(corpus, prefix, size=SHARD_BYTES)
    command = ["-m", "tokpack", "encode", "--plan", str(prefix), "--shard", "next"]
    others = [
        forked.Process([*command, "-q", "--workers", "1"], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    made = [path for other in others for path in other.communicate()[0].split()]
    assert [other.returncode for other in others] == [0, 0]
    assert sorted(made) == [f"{prefix}-{n:05d}" for n in range(plan.shards)]
    commit(plan, str(prefix))
    tokpack.merge([prefix], tmp_path / "one")
    assert dataset(tmp_path / "one") == dataset(corpus.whole)


def test_what_a_lost_machine_has_is_taken_and_what_failed_is_not(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(take, "LOCAL_BEAT_SECONDS", 0.1)
    prefix = tmp_path / "pile"
    three = [corpus.units[0], *corpus.inputs[3:5]]
    plan = planned(corpus, prefix, three, on_error="fail", max_rejects=None)
    reports = [Path(report_path(str(prefix), number)) for number in range(3)]
    now = time.time()
    lost = Report(2, "running", "other", 1, began=now, told=now + 9999)
    reports[2].write_text(json.dumps(asdict(lost)))
    command = ["encode", "--plan", str(prefix), "--shard", "next", "-q", "--workers", "1"]
    assert main(command) == 2  # at the end: the others are made first
    assert states(plan, prefix) == "failed done done"
    with pytest.raises(WorkerError, match=r"unit0\.jsonl:6001.*--shard 0`"):
        next(free_shards(plan, str(prefix)))
    reports[0].unlink()
    number, lease = next(free_shards(plan, str(prefix)))
    reports[0].write_text(json.dumps(asdict(lost)))
    with pytest.raises(BusyError, match=r"\.plan/00000\.json: .*\bshard 0\b"):
        encode_shard(plan, str(prefix), number, workers=1, lease=lease)


def test_another_that_makes_a_shard_is_waited_for(corpus: Corpus, tmp_path: Path) -> None:
    prefix = tmp_path / "pile"
    plan = planned(corpus, prefix, corpus.units[:2])
    command = ["-m", "tokpack", "encode", "--plan", str(prefix), "--shard", "0-1"]
    # It stands still once it has begun, and goes on a moment later.
    other = forked.Process([*command, "-q", "--workers", "1"], stdout=subprocess.DEVNULL)
    while not Path(f"{prefix}-00000.unfinished/plan.json").exists() and other.poll() is None:
        time.sleep(0.01)
    other.send_signal(signal.SIGSTOP)
    busy = forked.run([*command[:-1], "0", "-q"], capture_output=True, text=True)
    other.send_signal(signal.SIGCONT)
    assert (busy.returncode, "is writing to" in busy.stderr) == (75, True)
    ShardRunner(plan, str(prefix), ProcessEngine(), ["-q", "--workers", "1"]).run()
    assert other.wait() in (0, 75)
    assert set(states(plan, prefix).split()) == {"done"}
