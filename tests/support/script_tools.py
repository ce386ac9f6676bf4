"""Runs of the example scripts at toy size, for their tests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from support.cli_tools import tokpack
from support.places import EXAMPLES
from support.ports import own_port
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 6  # of growing batches all sizes, and two checkpoints
LIMIT = 300.0  # seconds of a script
GRACE = 20.0  # seconds from the end of a launcher to the end of all
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
        # Training a BPE waits for threads, which a fork does not have.
        done = tokpack(*words.split(), cwd=folder, fresh=words.startswith("vocab"))
        assert done.returncode == 0, done
    model = json.loads((folder / "tokenizer.json").read_text())
    ids = model["model"]["vocab"] | {t["content"]: t["id"] for t in model["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps(ids))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    names = {"VOCAB_FILE": f"{folder}/vocab.json", "MERGE_FILE": f"{folder}/merges.txt"}
    return Place(folder, names | {"DATA_PATH": f"{folder}/wiki"})


def run(script: str, cwd: Path, *words: str, **names: str) -> list[dict[str, Any]]:
    """Run an example to its end; the steps in the log that it leaves under ``cwd``."""
    done = run_limited(["bash", str(EXAMPLES / script), *words], cwd, **names)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (log,) = cwd.rglob("log.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    assert [row["iteration"] for row in steps] == list(range(1, STEPS + 1))
    assert all(row["loss"] > 0 for row in steps)
    return steps


def run_limited(
    command: list[str], cwd: Path, seconds: float = LIMIT, grace: float = GRACE, **names: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with a port of its own; all that it started is ended when time is up.

    Between SIGTERM, on which launchers end their ranks, and SIGKILL are ``grace`` seconds.
    """
    own = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {"PATH": f"{warm_python()}{os.pathsep}{os.environ['PATH']}"}
    own |= {"MASTER_PORT": str(own_port()), **names}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, error = process.communicate(timeout=seconds)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
    return subprocess.CompletedProcess(command, process.returncode, out, error)


def bigscience(folder: Path, place: Place, stage: str, *words: str) -> list[dict[str, Any]]:
    """The steps of batches that grow, with checkpoints."""
    names = {"SEQ_LEN": "32", "GLOBAL_BATCH_SIZE": "8", "TRAIN_SAMPLES": "400"}
    names |= {
        "RAMPUP_SAMPLES": "1_2",
        "SAVE_INTERVAL": str(STEPS // 2),
        "EXIT_INTERVAL": str(STEPS),
    }
    names |= {"EVAL_ITERS": "1", "ZERO_STAGE": stage, "KILL_SWITCH": str(folder / "kill")}
    words = (*words, "--log-interval", "1")
    rows = run("bigscience_gpt2.sh", folder, *words, **place.names, **names)
    assert [row["batch_size"] for row in rows] == [2, 2, 4, 6] + [8] * (STEPS - 4)
    assert list(folder.glob("output_dir/tensorboard/events*"))
    saved = sorted(path.name for path in folder.glob("checkpoints/gpt2/step_*"))
    assert saved == [f"step_{step:08d}" for step in (STEPS // 2, STEPS)]
    return rows


def megatron_1_1_5(folder: Path, place: Place, stage: str, *words: str) -> list[dict[str, Any]]:
    """The steps of two data ranks; flags say ZeRO 0, the JSON ``stage``."""
    names = {"NUM_LAYERS": "2", "HIDDEN_SIZE": "32", "NUM_ATTN_HEADS": "4", "SEQ_LENGTH": "32"}
    names |= {"BATCHSIZE": "2", "TRAIN_ITERS": str(STEPS), "EVAL_ITERS": "1", "STAGE": stage}
    names |= {"VOCAB_PATH": place.names["VOCAB_FILE"], "MERGE_PATH": place.names["MERGE_FILE"]}
    names["DATA_PATH"] = place.names["DATA_PATH"]
    return run("megatron_1.1.5.sh", folder, *words, **names)


def megatron_gpt(folder: Path, place: Place) -> list[dict[str, Any]]:
    """The steps of tensor 2 x pipeline 2."""
    names = {"GPUS_PER_NODE": "4", "NUM_LAYERS": "4", "HIDDEN": "32", "HEADS": "4", "SEQ": "32"}
    names |= {"MICRO_BATCH": "1", "GLOBAL_BATCH": "4", "EVAL_ITERS": "1"}
    names |= {"TRAIN_ITERS": str(STEPS), "LOG_INTERVAL": "1"}
    files = (place.names[name] for name in ("VOCAB_FILE", "MERGE_FILE", "DATA_PATH"))
    rows = run("megatron_gpt.sh", folder, "checkpoints", "tensorboard", *files, **names)
    assert list(folder.glob("tensorboard/events*"))
    return rows


def microsoft_gpt3(folder: Path, place: Place, deepspeed: str) -> list[dict[str, Any]]:
    """The steps of tensor 2 x pipeline 2."""
    names = {"TP": "2", "PP": "2", "NNODES": "1", "GPUS_PER_NODE": "4", "NLAYERS": "4"}
    names |= {"HIDDEN": "32", "HEADS": "4", "SEQ": "32", "GLOBAL_BATCH": "4", "EVAL_ITERS": "1"}
    tokens = STEPS * 4 * 32
    names |= {"TRAIN_TOKENS": str(tokens), "LR_WARMUP_TOKENS": "128"}
    names |= {"LR_DECAY_TOKENS": str(tokens), "LOG_INTERVAL": "1", "USE_DEEPSPEED": deepspeed}
    names |= {"DATASET_1": f"{place.folder}/wiki", "DATASET_2": f"{place.folder}/owt"}
    rows = run("microsoft_gpt3.sh", folder, **place.names | names)
    assert {"tokens_per_second_per_gpu", "tflops_per_gpu", "loss"} <= set(rows[-1])
    return rows


def libai(folder: Path, place: Place, stage: str) -> list[dict[str, Any]]:
    """The steps of unequal stages."""
    words = ("1", "2", "0", "127.0.0.1", "1", "2", "false", "true", "2", "8", "4", str(STEPS), "1")
    names = {"HIDDEN": "32", "HEADS": "4", "SEQ": "32", "STAGES": "3 1", "EVAL_ITERS": "1"}
    rows = run("libai_comparison.sh", folder, *words, **names, **place.names, ZERO_STAGE=stage)
    assert rows[-1]["peak_memory_bytes"] > 0
    return rows


def neox_20b(folder: Path, place: Place, *words: str) -> list[dict[str, Any]]:
    """The steps of tensor 2 x pipeline 2."""
    sizes = "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --gas 2"
    sizes += " --max-position-embeddings 32 --batch-size 1 --pipe-parallel-size 2"
    sizes += f" --model-parallel-size 2 --train-iters {STEPS} --lr-decay-iters {STEPS}"
    sizes += " --eval-iters 1 --log-interval 1"
    files = ("--vocab-file", f"{place.folder}/tokenizer.json", "--data-path", f"{place.folder}/owt")
    command = f'tokpack train {EXAMPLES / "neox_20b.yml"} --nproc 4 "$@"'
    script = folder / "neox.sh"
    script.write_text(command)
    return run(str(script), folder, *sizes.split(), *files, *words)
