"""Tiny runs of the trainer's command line, in real processes, for the tests of the loop."""

from __future__ import annotations

import json
import os
import random
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from support.indexed_twin import Plain, write_plainly
from support.ports import own_port
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 128
FLAGS = """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --device cpu
--vocab-size 128 --micro-batch-size 2 --global-batch-size 8 --train-samples 320 --lr 3e-3
--lr-decay-style cosine --lr-decay-samples 320 --lr-warmup-samples 40 --log-interval 1
--eval-iters 0 --split 90,5,5"""


def write_tokens(prefix: Path, documents: int = 200, seed: int = 0, top: int = VOCABULARY) -> str:
    """A dataset whose tokens mostly follow from the token before; no manifest."""
    draw = random.Random(seed)
    sequences = []
    for _ in range(documents):
        token, sequence = draw.randrange(top), []
        for _ in range(draw.randint(20, 120)):
            token = (token * 3 + 1) % 97 % top if draw.random() < 0.8 else draw.randrange(top)
            sequence.append(token)
        sequences.append(sequence)
    write_plainly(prefix, Plain("H", sequences, list(range(documents + 1))))
    return str(prefix)


def settings(prefix: str, **more: Any) -> dict[str, Any]:
    """The same run as FLAGS, for Config."""
    words = FLAGS.split()
    values: dict[str, Any] = {
        name[2:].replace("-", "_"): word for name, word in zip(words[::2], words[1::2], strict=True)
    }
    texts = ("device", "lr_decay_style", "split")
    values = {k: v if k in texts else json.loads(v) for k, v in values.items()}
    return values | {"data_path": (prefix,)} | more


def start(count: int, *flags: str) -> list[subprocess.Popen[str]]:
    """Ranks of one run, started as a launcher would; the caller waits for them."""
    python = str(warm_python() / "python")
    world = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port())}
    return [
        subprocess.Popen(
            [python, "-m", "tokpack.trainer", *FLAGS.split(), *flags],
            env={
                **os.environ,
                **world,
                "RANK": str(r),
                "LOCAL_RANK": str(r),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(count)
    ]


def finish(ranks: list[subprocess.Popen[str]], seconds: float = 300) -> list[tuple[int, str]]:
    """Exit code and stderr of every rank; none outlives this."""
    try:
        said = [rank.communicate(timeout=seconds)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def run(count: int, *flags: str) -> str:
    """A run that must succeed; what rank 0 said."""
    done = finish(start(count, *flags))
    assert [code for code, _ in done] == [0] * count, done
    return done[0][1]


def records(folder: Path, event: str = "step") -> list[dict[str, Any]]:
    """The lines of log.jsonl of one kind, in order; whole lines only."""
    path = folder / "log.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    values = [json.loads(line, parse_constant=pytest.fail) for line in whole]
    return [value for value in values if value["event"] == event]


def losses(folder: Path) -> dict[int, float]:
    """The loss of every step, none made twice."""
    steps = records(folder)
    found = {step["iteration"]: step["loss"] for step in steps}
    assert len(found) == len(steps), "a step was made twice"
    return found
