"""Make the datasets, views, blends, stopped runs and the checkpoint of this folder.

    PYTHONPATH=tests python tests/golden/written/make.py

It ran once, with tokpack 0.1.0, in a folder that is gone: so the absolute paths in manifests name
nothing, as in a folder that users have moved. What was in all of these stands in expected.json.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from support.written import contents, digests, first_samples, losses

import tokpack
from tokpack import cli

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "by", "with", "as")
SPECIAL = ("<|user|>", "<|assistant|>", "<|endoftext|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|endoftext|>' }}"
    "{% endfor %}"
)
ENCODE = "--tokenizer tokenizer --workers 1 -q"
# A plan names its inputs and tokenizer absolutely; so these are found in any folder, on Linux.
HERE_NOW = "/proc/self/cwd"
SHARED = (
    " ".join(f"{HERE_NOW}/{name}.jsonl.bz2" for name in "abc")
    + f" --tokenizer {HERE_NOW}/tokenizer --shard-size 1k --keep n"
)
COMMANDS = f"""
encode texts.jsonl -o plain {ENCODE}
encode texts.jsonl -o kept --keep score lang {ENCODE}
encode more.jsonl -o traced --trace --on-error skip --empty document --dtype int32 {ENCODE}
encode chats.jsonl -o chats --chat --weight-key weight --trace {ENCODE}
encode pairs.jsonl -o pairs --chat --pairs chosen rejected {ENCODE}
encode a.jsonl.bz2 b.jsonl.bz2 c.jsonl.bz2 -o files --files 2 {ENCODE}
shards plan {SHARED} -o sharded
encode --plan sharded --shard 0-2 --workers 1 -q
shards commit sharded
shards plan {SHARED} -o begun
encode --plan begun --shard 1 --workers 1 -q
encode a.jsonl.bz2 b.jsonl.bz2 c.jsonl.bz2 -o whole --keep n {ENCODE}
merge plain kept -o merged -q
merge plain kept -o joined --virtual -q
select kept --where "score > 0.2 and lang = 'de'" --repeat "2 if score > 0.7" -o chosen -q
select kept plain --random 0.5 -o some --rest others -q
dedup plain kept -o unlike -q
blend 0.3 plain 0.5 traced 0.2 chosen --seq-length 8 --samples 40 --split 60,40,0 -o blend.yaml
blend 0.3 plain 0.7 traced --seq-length 16 --samples 40 --order megatron -o megatron.yaml
blend megatron.yaml --cache cache
"""
# The run kills itself at its third part, when the journal has what came before.
STOPPED = """
import os, socket, sys, time
import tokpack.encoding.worker as worker
from tokpack.cli import main
socket.gethostname = lambda: "another-machine"
journal = sys.argv[1] + ".unfinished/journal.jsonl"
def stops(self, task, real=worker.Worker._encode):
    if task.number == 2:
        while open(journal).read().count('"piece"') < 2:
            time.sleep(0.01)
        os.killpg(0, 9)
    return real(self, task)
worker.Worker._encode = stops
main(sys.argv[2:])
"""
TRAIN = """--data-path plain --num-layers 1 --hidden-size 4 --num-attention-heads 2 --seq-length 32
--position-embedding-type rope
--micro-batch-size 2 --global-batch-size 4 --lr 1e-2 --lr-decay-style cosine --lr-decay-iters 6
--make-vocab-size-divisible-by 1 --device cpu --precision fp32 --log-interval 1 --eval-iters 0
--split 1,0,0 --train-iters 6"""


def write_inputs(folder: Path) -> None:
    draw = random.Random(1)

    def text(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    def lines(records: list[dict[str, Any]]) -> str:
        return "".join(json.dumps(record) + "\n" for record in records)

    records: list[dict[str, Any]] = [
        {"text": text(12), "score": round(draw.random(), 3), "lang": draw.choice(("de", "en"))}
        for _ in range(24)
    ]
    records[7]["text"] = records[3]["text"]
    (folder / "texts.jsonl").write_text(lines(records))
    more = [{"text": text(12)} for _ in range(12)] + [{"text": ""}, {"text": "字 é"}]
    (folder / "more.jsonl").write_text(lines(more) + '{"text": 7}\n')
    chats = [{**chat(text, 1 + n % 2), "weight": 0.5 + n % 3} for n in range(12)]
    (folder / "chats.jsonl").write_text(lines(chats))
    pairs = [{"prompt": text(6), "chosen": text(6), "rejected": text(6)} for _ in range(8)]
    (folder / "pairs.jsonl").write_text(lines(pairs))
    # Files that are each a part, as they take long to read for their size.
    for name in "abc":
        records = [{"text": text(8), "n": n, "noise": noise(draw)} for n in range(12)]
        (folder / f"{name}.jsonl.bz2").write_bytes(bz2.compress(lines(records).encode()))
        records = [{**chat(text), "noise": noise(draw)} for _ in range(12)]
        (folder / f"{name}-chats.jsonl.bz2").write_bytes(bz2.compress(lines(records).encode()))


def chat(text: Callable[[int], str], turns: int = 1) -> dict[str, Any]:
    roles = ("user", "assistant") * turns
    return {"messages": [{"role": role, "content": text(6)} for role in roles]}


def noise(draw: random.Random) -> str:
    """What stays as large when it is compressed, and is not encoded."""
    return draw.randbytes(270).hex()


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE without merges, with a template of conversations."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters = sorted({*printable, *range(256, 256 + 256 - len(printable))})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": 256 + n, "content": word, "special": True, **dict.fromkeys(flags, False)}
            for n, word in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {**byte_level, "trim_offsets": True},
        "decoder": {**byte_level, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": {chr(c): n for n, c in enumerate(letters)}, "merges": []},
    }
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    settings = {"eos_token": SPECIAL[-1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_tracks(prefix: str) -> None:
    """A dataset from Python, with all tracks there are."""
    tracks = ("mask", "weights", "labels", "roles")
    draw = random.Random(2)
    with tokpack.MMapIndexedDatasetBuilder(f"{prefix}.bin", np.int32, tracks=tracks) as builder:
        for length in (3, 1, 6, 0, 5):
            ids = draw.choices(range(70_000), k=length)
            builder.add_item(
                ids,
                mask=[n % 2 for n in ids],
                weights=[n % 7 / 4 for n in ids],
                labels=[-100 if n % 3 == 0 else n for n in ids],
                roles=[n % 7 for n in ids],
            )
            if length != 1:
                builder.end_document()
        builder.finalize(f"{prefix}.idx")


def stop(prefix: str, words: list[str]) -> None:
    """Let a run stop when two of its three parts are done."""
    command = [sys.executable, "-P", "-c", STOPPED, prefix, *words]
    done = subprocess.run(command, check=False, start_new_session=True)
    assert done.returncode == -9, done


def command(line: str) -> None:
    code = cli.main(shlex.split(line))
    assert code in (0, None), (line, code)


def inspected(prefix: str) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        command(f"inspect {prefix} --json")
    values: dict[str, Any] = json.loads(said.getvalue())
    return values


def main() -> None:
    os.environ |= {"TOKPACK_TOKENIZER_CACHE": "0", "OMP_NUM_THREADS": "1"}
    socket.gethostname = lambda: "another-machine"
    with tempfile.TemporaryDirectory(prefix="written-") as name:
        folder = Path(name)
        os.chdir(folder)
        write_tokenizer(folder / "tokenizer")
        write_inputs(folder)
        for line in COMMANDS.strip().splitlines():
            command(line)
        write_tracks("tracks")
        chats = "a-chats.jsonl.bz2 b-chats.jsonl.bz2 c-chats.jsonl.bz2 --chat"
        expected: dict[str, Any] = {"version": tokpack.__version__, "runs": {}}
        runs = {"stopped": "a.jsonl.bz2 b.jsonl.bz2 c.jsonl.bz2 --keep n", "stopped-chats": chats}
        for prefix, options in runs.items():
            words = f"encode {options} {ENCODE}"
            command(f"{words} -o once-{prefix}")
            expected["runs"][prefix] = {
                "words": words,
                "digests": digests(f"once-{prefix}"),
            }
            for path in folder.glob(f"once-{prefix}*"):
                path.unlink()
            stop(prefix, [*words.split(), "-o", prefix])
        made = sorted(p.stem for p in folder.glob("*.json") if "-0" not in p.name)  # no shards
        expected["datasets"] = {prefix: contents(prefix) for prefix in made}
        (folder / "tokenizer").rename("away")  # as where all of it is moved
        expected["inspect"] = {prefix: inspected(prefix) for prefix in made}
        (folder / "away").rename("tokenizer")
        expected["whole"] = digests("whole")
        expected["samples"] = {
            blend: first_samples(blend) for blend in ("blend.yaml", "megatron.yaml")
        }
        for more in ("--save once", "--save run --exit-interval 3"):
            words = [*TRAIN.split(), *more.split()]
            subprocess.run([sys.executable, "-P", "-m", "tokpack", "train", *words], check=True)
        expected["train"] = {"words": TRAIN.split(), "losses": losses("once"), "before": 3}
        shutil.rmtree("once")
        (folder / "run" / "loss.html").unlink()
        for path in HERE.iterdir():
            if path.name != "make.py":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(folder, HERE, dirs_exist_ok=True)
    (HERE / "expected.json").write_text(
        json.dumps(expected, sort_keys=True, separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    main()
