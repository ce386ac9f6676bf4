"""``tokpack samples`` against what real runs of the trainer were given, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from support import recording_trainer
from support.ports import own_port
from support.report_tools import make, run, sample_texts
from support.trainer_tools import finish, records, settings, write_tokens
from support.warm_python import warm_python

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import settings as examples  # noqa: E402
from support.json_edits import EDITS, edited  # noqa: E402

from tokpack.errors import TokpackError  # noqa: E402
from tokpack.look.pages.items import open_items  # noqa: E402
from tokpack.samples.iterate import fingerprint_of  # noqa: E402
from tokpack.trainer import loop  # noqa: E402
from tokpack.trainer.checkpoints.history import open_training, read_history  # noqa: E402
from tokpack.trainer.config.config import Config  # noqa: E402
from tokpack.trainer.config.data import spec_of_config  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = """--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 16 --vocab-size 128
--device cpu --eval-iters 0 --log-interval 3 --lr 1e-3"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two datasets of which a run of some hundred samples sees several epochs."""
    folder = tmp_path_factory.mktemp("data")
    return [
        write_tokens(folder / "a", documents=30),
        write_tokens(folder / "b", documents=11, seed=1),
    ]


def train(count: int, batches: Path, folder: Path, *flags: str) -> None:
    """A real run of ``count`` processes that writes its batches down."""
    batches.mkdir(exist_ok=True)
    python = str(warm_python() / "python")
    script = [python, str(recording_trainer.__file__), str(batches), *FLAGS.split()]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port()), "OMP_NUM_THREADS": "1"}
    world |= {"WORLD_SIZE": str(count), "PYTHONPATH": ""}
    ranks = [
        subprocess.Popen(
            [*script, "--save", str(folder), *flags],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    done = finish(ranks)
    assert [code for code, _ in done] == [0] * count, done


def shown(*words: object) -> list[dict[str, Any]]:
    """What the command prints with --json."""
    return [json.loads(line) for line in run("samples", *words, "--json").stdout.splitlines()]


def arrays(sample: dict[str, Any]) -> dict[str, list[Any]]:
    """A shown sample as a trainer gets it."""
    length = sample["tokens"]
    ids = [token for document in sample["documents"] for token in document["ids"]]
    mask = [1.0] * length
    for begin, end in sample["no_loss"]:
        mask[begin:end] = [0.0] * (end - begin)
    edges = sample["boundaries"] or []
    return {
        "tokens": ids + [0] * (length - len(ids)),
        "loss_mask": mask,
        "cu_seqlens": edges + [length] * (length + 1 - len(edges)),
    }


def check(batches: Path, folder: Path, steps: range, ranks: int) -> list[dict[str, Any]]:
    """Compare every step of the run with what was recorded; all samples that were shown."""
    found = []
    for step in steps:
        samples = shown(folder, "--step", step)
        for rank in range(ranks):
            own = [sample for sample in samples if sample["rank"] == rank]
            assert {sample["step"] for sample in own} == {step}
            recorded = np.load(batches / f"{step}.{rank}.npz")
            count, micro, _ = recorded["tokens"].shape
            assert [s["micro_batch"] for s in own] == np.repeat(range(count), micro).tolist()
            for name in ("tokens", "loss_mask", "cu_seqlens"):
                if name in recorded:
                    expected = recorded[name].reshape(count * micro, -1).tolist()
                    assert [arrays(sample)[name] for sample in own] == expected, (step, name)
            assert ("cu_seqlens" in recorded) == (own[0]["boundaries"] is not None)
        found += samples
    return found


def check_documents(folder: Path, samples: list[dict[str, Any]], prefix: str, document: int) -> int:
    """Ask for a document, and compare with the samples of all steps; in how many it is."""
    expected = [
        (s["step"], s["rank"], s["micro_batch"], s["sample"], [(d["first"], d["at"], d["length"])])
        for s in samples
        for d in s["documents"]
        if (s["dataset"], d["document"]) == (prefix, document)
    ]
    found = [
        (s["step"], s["rank"], s["micro_batch"], s["sample"], [tuple(p.values())])
        for s in shown(folder, "--document", f"{Path(prefix).name}:{document}")
        for p in s["parts"]
    ]
    assert found == expected
    return len(found)


def test_a_run_that_was_stopped_and_went_on(data: list[str], tmp_path: Path) -> None:
    # Of two ranks, then of one with larger batches; ramped up, over epochs, from a blend.
    batches, folder = tmp_path / "batches", tmp_path / "run"
    flags = ["--data-path", "0.3", data[0], "0.7", data[1], "--split", "90,10,0"]
    flags += ["--document-boundaries", "--train-samples", "260", "--load", str(folder)]
    ramp = ["--micro-batch-size", "2", "--rampup-batch-size", "4", "4", "40"]
    train(2, batches, folder, *flags, *ramp, "--global-batch-size", "12", "--exit-interval", "8")
    assert len(check(batches, folder, range(1, 9), 2)) < 8 * 12
    size = ["--micro-batch-size", "4", "--global-batch-size", "20"]
    train(1, batches, folder, *flags, *size)
    begins = records(folder, "begin")
    assert [(b["iteration"], b["data_parallel_size"]) for b in begins] == [(0, 2), (8, 1)]
    last = begins[1]["steps"]
    samples = check(batches, folder, range(1, 9), 2)
    samples += check(batches, folder, range(9, last + 1), 1)
    assert not (batches / f"{last + 1}.0.npz").exists()
    assert [sample["sample"] for sample in samples] == list(range(len(samples)))
    assert max(sample["epoch"] for sample in samples if sample["dataset"] == data[1]) >= 2
    assert sum(check_documents(folder, samples, data[1], number) for number in range(2)) > 4
    assert check_documents(folder, samples, data[0], 29) == 0

    done = run("samples", folder, "--step", 3, "--rank", 1)
    head, *texts = done.stdout.split("\n\n")
    about = f"step 3 of {last}: samples 8 to 11, micro batches of 2 on 2 ranks, loss "
    assert head.startswith(about)
    assert head.endswith(" in steps 1 to 3")
    assert len(texts) == 2
    assert "rank 1, micro batch 0): sample" in texts[0]
    assert f"document 29 of {data[0]}" in run("samples", folder, "--document", "a:29").stdout
    out = run("samples", folder, "--document", f"{data[0]}:29").stdout
    assert "not in any of the" in out
    assert "the split keeps it out of training" in out


@pytest.mark.parametrize("kind", ["megatron", "best_fit", "eod"])
def test_runs_of_other_orders(
    data: list[str], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = {"datasets": {data[0]: 0.6, data[1]: 0.4}, "seq_length": 16, "seed": 7}
    if kind == "best_fit":
        blend["packing"] = kind
    (tmp_path / "blend.yaml").write_text(yaml.safe_dump(blend))
    more: dict[str, Any] = {"order": "megatron"} if kind == "megatron" else {}
    if kind == "eod":
        more = {"eod_id": 1, "eod_mask_loss": True, "reset_attention_mask": True}
    path = str(tmp_path / "blend.yaml") if kind == "best_fit" else data[0]
    values = {"train_samples": 160, "lr_warmup_samples": 0, "seq_length": 16, "num_layers": 1}
    values |= {"data_path": (path,), "split": None, "save": str(tmp_path / "run")}
    monkeypatch.setattr(loop.TrainingRun, "begin", loop.TrainingRun.begin)
    recording_trainer.record(tmp_path)
    loop.train(Config(**settings("", **values, **more)))
    samples = check(tmp_path, tmp_path / "run", range(1, 21), 1)
    assert sum(check_documents(tmp_path / "run", samples, data[0], n) for n in (0, 7)) > 2
    if kind == "megatron":
        done = run("samples", tmp_path / "run", "--sample", 999999, code=1)
        assert "there is no sample 999999 of" in done.stderr


def test_text_with_its_source(finished: Path) -> None:
    out = run("samples", finished, "--sample", 0, 39, 40, "--max-tokens", 0).stdout
    assert "\nsample 0 (step 1, rank 0, micro batch 0): sample 0 of text, epoch 0, " in out
    assert "\nsample 39 (step 5, rank 0, micro batch 3): " in out
    assert "\nsample 40 (in no step): " in out
    (sample,) = shown(finished, "--sample", 0)
    document = sample["documents"][0]
    place = f"{document['source']}:{document['line']}"
    assert place.endswith(f"/text.jsonl:{document['document'] + 1}")
    assert f"document {document['document']} from token {document['first']} on, {place}" in out
    line = Path("text.jsonl").read_text(encoding="utf-8").splitlines()[document["line"] - 1]
    whole = json.loads(line)["text"] + "<|endoftext|>"
    assert document["text"] in whole
    assert document["text"].split()[0] in out


def test_a_document_that_is_to_come(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(lines[:2]))  # of the run when it had made 2 steps
    found = [shown(tmp_path, "--document", n) for n in range(20)]
    seen = {(sample["step"] <= 2, sample["seen"]) for samples in found for sample in samples}
    assert seen == {(True, True), (False, False)}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "--step", "6"], "there is no step 6: there are 1 to 5"),
        (["run", "--step", "1", "--rank", "1"], "--rank 1: step 1 has ranks 0 to 0"),
        (["run", "--step", "1", "--sample", "1"], "given: --step, --sample"),
        (["run", "--document", "text:9999"], "text has documents 0 to"),
        (["run", "--document", "text:x"], "such as text:17"),
        (["run", "--document", "other:1"], "other is not one of the datasets text"),
        ([".", "--step", "1"], ".: no log.jsonl in it: name the folder"),
        (["no.yaml", "--step", "1"], "no.yaml: no log.jsonl in it: name the folder"),
    ],
)
def test_what_cannot_be_shown(finished: Path, words: list[str], reason: str) -> None:
    assert reason in run("samples", *words, code=1).stderr


@pytest.mark.parametrize("words", [["text"], ["1.0", "text"], ["blend.yaml"]])
def test_a_run_is_shown_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    for name in ("project", "else"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "project")
    make(tmp_path / "project", "text", sample_texts())
    (tmp_path / "project" / "blend.yaml").write_text("datasets: [text]\n")
    more = {"train_samples": 16, "lr_warmup_samples": 0, "save": "run", "vocab_size": None}
    loop.train(Config(**settings("text", **more, data_path=tuple(words))))

    def ids(folder: Path) -> list[Any]:
        return [[d["ids"] for d in one["documents"]] for one in shown(folder, "--step", 2)]

    expected = ids(Path("run"))
    assert "of text," in run("samples", "run", "--step", 2).stdout
    monkeypatch.chdir(tmp_path / "else")
    assert ids(tmp_path / "project" / "run") == expected
    run("samples", "../project/run", "--document", "text:0")
    items = [(one.kind, Path(one.name).name) for one in open_items(["../project/run"], {})]
    assert items == [("run", "run"), ("dataset", "text")]
    (tmp_path / "project").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert ids(Path("run")) == expected
    monkeypatch.chdir(tmp_path / "else")
    said = run("samples", "../moved/run", "--step", 2, code=1).stderr
    assert f"in which the run was started: {tmp_path / 'project'}" in said


def test_a_log_of_something_else(finished: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = (finished / "log.jsonl").read_text().splitlines()
    begin, step = json.loads(lines[0]), json.loads(lines[1])

    def refused(*records: dict[str, Any]) -> str:
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
        return run("samples", tmp_path, "--step", 2, code=1).stderr

    old = {name: begin[name] for name in ("event", "iteration", "steps")}
    assert "an older tokpack wrote it" in refused(old, step)
    assert "the data has changed since" in refused({**begin, "fingerprint": "0" * 32}, step)
    moved = {**begin, "config": {**begin["config"], "data_path": ["gone/text"]}}
    assert "relative to the folder in which the run was started" in refused(moved, step)
    strange = {**begin, "config": {**begin["config"], "colour": 1}}
    assert "a setting 'colour', which this tokpack does not know" in refused(strange, step)
    assert "ends at sample 16 by the configuration, at 17 by the log" in refused(
        begin, {**step, "consumed_samples": 17}
    )
    assert "has data_parallel_size 0" in refused({**begin, "data_parallel_size": 0}, step)
    assert "consumed_samples is 'x', expected a count" in refused(
        {**begin, "consumed_samples": "x"}, step
    )
    saved = {"event": "save", "iteration": 1, "consumed_samples": 8}
    assert "the data has changed since" in refused(begin, {**saved, "fingerprint": "1" * 32}, step)
    old = {**begin, "config": {**begin["config"], "checkpoint_in_cpu": False}}
    log.write_text("".join(json.dumps(record) + "\n" for record in (old, saved)))
    assert shown(tmp_path, "--step", 2) == shown(finished, "--step", 2)
    log.write_text(json.dumps(begin) + '\n{"event": "st')  # it was killed
    assert shown(tmp_path, "--step", 2) == shown(finished, "--step", 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run on text with a trace, in the folder that its paths are relative to."""
    folder = tmp_path_factory.mktemp("finished")
    make(folder, "text", sample_texts(), trace=True)
    values = {"train_samples": 40, "lr_warmup_samples": 0, "num_layers": 1, "save": "run"}
    values |= {"vocab_size": None, "log_interval": 2}
    before = Path.cwd()
    os.chdir(folder)
    try:
        loop.train(Config(**settings("text", **values)))
        yield Path("run")
    finally:
        os.chdir(before)


@examples(max_examples=150, deadline=None)
@given(EDITS)
def test_whatever_a_log_says_is_read_or_refused(
    data: list[str], tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    config = Config(data_path=(data[0],), seq_length=16, train_iters=4, split=None, eval_iters=0)
    train = open_training(spec_of_config(config))[1]
    begin = {
        "event": "begin",
        "iteration": 0,
        "consumed_samples": 0,
        "data_parallel_size": 1,
        "fingerprint": fingerprint_of(train, 0),
    }
    step = {"event": "step", "iteration": 2, "consumed_samples": 8, "loss": 3.5}
    config_edits = {k: v for k, v in config.to_dict().items() if v is not None}
    lines = edited([{**begin, "config": config_edits}, step], edits)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text)
    with contextlib.suppress(TokpackError):
        history = read_history(folder)
        assert 0 <= history.steps_made <= 2**62
        assert history.describe(history.step(1))
        history.step(2)
