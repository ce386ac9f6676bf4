"""Runs of the example scripts at toy size, for their tests."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from support.cli_tools import tokpack
from support.places import EXAMPLES
from support.ports import own_port
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pathlib import Path

WORDS = "the of and to in is was that for it with as his on be at by had not are".split(" ")  # noqa: SIM905


class Place(NamedTuple):
    """Two datasets of a small vocabulary, as GPT-2's files and as one tokenizer.json."""

    folder: Path
    names: dict[str, str]


def make_place(folder: Path) -> Place:
    """Write the datasets under ``folder``."""
    for number, name in enumerate(("wiki", "owt")):
        draw = random.Random(number)
        texts = (" ".join(draw.choices(WORDS, k=draw.randint(20, 80))) for _ in range(400))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines)
    for words in (
        "vocab wiki.jsonl -o tokenizer.json --size 300",
        "encode wiki.jsonl --tokenizer tokenizer.json -q",
        "encode owt.jsonl --tokenizer tokenizer.json -q",
    ):
        # A fork of the tests may have torch and DeepSpeed loaded, whose threads it lacks.
        done = tokpack(*words.split(), cwd=folder, fresh=True)
        assert done.returncode == 0, done
    model = json.loads((folder / "tokenizer.json").read_text())
    ids = model["model"]["vocab"] | {t["content"]: t["id"] for t in model["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(ids))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    names = {"VOCAB_FILE": f"{folder}/vocab.json", "MERGE_FILE": f"{folder}/merges.txt"}
    return Place(folder, names | {"DATA_PATH": f"{folder}/wiki"})


def run(script: str, cwd: Path, *words: str, **names: str) -> list[dict[str, Any]]:
    """Run an example to its end; the lines of the log that it leaves under ``cwd``."""
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{warm_python()}{os.pathsep}{os.environ['PATH']}"
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [bash, str(EXAMPLES / script), *words],
        cwd=cwd,
        env={**os.environ, **quiet, "PATH": path, "MASTER_PORT": str(own_port()), **names},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (log,) = cwd.rglob("log.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["event"] == "step"]


def bigscience(folder: Path, place: Place, stage: str, *words: str) -> list[dict[str, Any]]:
    """The steps of six batches that grow, with two checkpoints."""
    names = {"SEQ_LEN": "32", "GLOBAL_BATCH_SIZE": "8", "TRAIN_SAMPLES": "40"}
    names |= {"RAMPUP_SAMPLES": "1_2", "SAVE_INTERVAL": "3", "EXIT_INTERVAL": "6"}
    names |= {"EVAL_ITERS": "1", "ZERO_STAGE": stage, "KILL_SWITCH": str(folder / "kill")}
    words = (*words, "--log-interval", "1")
    rows = steps(run("bigscience_gpt2.sh", folder, *words, **place.names, **names))
    assert [row["batch_size"] for row in rows] == [2, 2, 4, 6, 8, 8]  # 40 samples hold 7 steps
    assert list(folder.glob("output_dir/tensorboard/events*"))
    saved = sorted(path.name for path in folder.glob("checkpoints/gpt2/step_*"))
    assert saved == ["step_00000003", "step_00000006"]
    return rows


def megatron_1_1_5(folder: Path, place: Place, stage: str, *words: str) -> list[dict[str, Any]]:
    """The steps, six."""
    names = {"NUM_LAYERS": "2", "HIDDEN_SIZE": "32", "NUM_ATTN_HEADS": "4", "SEQ_LENGTH": "32"}
    names |= {"BATCHSIZE": "2", "TRAIN_ITERS": "6", "EVAL_ITERS": "1", "STAGE": stage}
    names |= {"VOCAB_PATH": place.names["VOCAB_FILE"], "MERGE_PATH": place.names["MERGE_FILE"]}
    names["DATA_PATH"] = place.names["DATA_PATH"]
    rows = steps(run("megatron_1.1.5.sh", folder, *words, **names))
    assert len(rows) == 6
    return rows


def microsoft_gpt3(folder: Path, place: Place, deepspeed: str) -> list[dict[str, Any]]:
    """The steps, six, of tensor 2 x pipeline 2."""
    names = {"TP": "2", "PP": "2", "NNODES": "1", "GPUS_PER_NODE": "4", "NLAYERS": "4"}
    names |= {"HIDDEN": "32", "HEADS": "4", "SEQ": "32", "GLOBAL_BATCH": "4", "EVAL_ITERS": "1"}
    names |= {"TRAIN_TOKENS": "768", "LR_WARMUP_TOKENS": "128", "LR_DECAY_TOKENS": "768"}
    names |= {"DATASET_1": f"{place.folder}/wiki", "DATASET_2": f"{place.folder}/owt"}
    names |= {"LOG_INTERVAL": "1", "USE_DEEPSPEED": deepspeed}
    rows = steps(run("microsoft_gpt3.sh", folder, **place.names | names))
    assert len(rows) == 6
    assert {"tokens_per_second_per_gpu", "tflops_per_gpu", "loss"} <= set(rows[-1])
    return rows


def libai(folder: Path, place: Place, stage: str) -> list[dict[str, Any]]:
    """The steps, five, of unequal stages."""
    words = ("1", "2", "0", "127.0.0.1", "1", "2", "false", "true", "2", "8", "4", "5", "1")
    names = {"HIDDEN": "32", "HEADS": "4", "SEQ": "32", "STAGES": "3 1", "EVAL_ITERS": "1"}
    names |= {**place.names, "ZERO_STAGE": stage}
    rows = steps(run("libai_comparison.sh", folder, *words, **names))
    assert len(rows) == 5
    assert rows[-1]["peak_memory_bytes"] > 0
    return rows


def neox_20b(folder: Path, place: Place, *words: str) -> list[dict[str, Any]]:
    """The steps, four, of tensor 2 x pipeline 2."""
    shutil.copy(EXAMPLES / "neox_20b.yml", folder)
    sizes = "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --gas 2"
    sizes += " --max-position-embeddings 32 --batch-size 1 --train-iters 4 --lr-decay-iters 4"
    sizes += " --pipe-parallel-size 2 --model-parallel-size 2 --eval-iters 1 --log-interval 1"
    files = ("--vocab-file", f"{place.folder}/tokenizer.json", "--data-path", f"{place.folder}/owt")
    command = [str(warm_python() / "tokpack"), "train", "neox_20b.yml", "--nproc", "4"]
    done = subprocess.run(
        [*command, *sizes.split(), *files, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    log = (folder / "logs" / "log.jsonl").read_text()
    rows = steps([json.loads(line) for line in log.splitlines()])
    assert len(rows) == 4
    return rows
