"""The commands that faults.py disturbs, and what belongs together of what they write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A command, and what belongs together of what it writes into ``{out}``.

    Of each of ``groups`` all files are read together, and so are of one run; any other file is one
    by itself. ``again`` are commands (between them ";") that make an old output first, which
    ``argv`` replaces or adds to. Where ``only`` is given, the files whose names it matches are
    compared, and belong together.
    """

    name: str
    argv: str
    groups: tuple[tuple[str, ...], ...] = ()
    again: str = ""
    kinds: tuple[str, ...] = ("EIO", "ENOSPC", "short")
    only: str = ""

    def words(self, template: str, inputs: Path, out: Path) -> list[str]:
        return [word.format(inputs=inputs, out=out) for word in template.split()]


def dataset(name: str) -> tuple[str, ...]:
    return (f"{name}.bin", f"{name}.idx")


KILLED = ("EIO", "ENOSPC", "short", "kill")
VIEW = ("x.selection", "x.json")
SHARDS = tuple(dataset(f"x_{number:05d}") for number in range(3))
ENCODE = "encode {inputs}/text.jsonl -o {out}/x --tokenizer {inputs}/tokenizer.json --workers 1 -q"
PLAN = "plan {inputs}/text.jsonl -o {out}/x --tokenizer {inputs}/tokenizer.json -q"
SHARD = "encode --plan {out}/x --shard 0 --workers 1 -q"
CASES = (
    Case("encode", ENCODE, only=r"^x\.(bin|idx|json)$", kinds=KILLED),
    Case(
        "encode over another",
        f"{ENCODE} --overwrite",
        again=f"{ENCODE} --limit 7",
        only=r"^x\.(bin|idx|json)$",
        kinds=KILLED,
    ),
    Case(
        "encode keys, tables and rejects",
        "encode {inputs}/bad.jsonl -o {out}/x --tokenizer {inputs}/tokenizer.json --workers 1 -q "
        "--json-keys text title --trace --on-error skip",
        tuple(
            (f"x_{key}.bin", f"x_{key}.idx", f"x_{key}.docs.parquet") for key in ("text", "title")
        ),
        only=r"^x[^/]*\.(bin|idx|json|parquet|jsonl)$",
        kinds=KILLED,
    ),
    Case("plan", PLAN, only=r"^x\.plan/plan", kinds=KILLED),
    Case("encode a shard", SHARD, again=PLAN, only=r"^x-\d+\.(bin|idx|json)$", kinds=KILLED),
    Case("commit", "commit {out}/x -q", again=f"{PLAN};{SHARD}", only=r"^x\.json", kinds=KILLED),
    Case("merge", "merge {inputs}/a {inputs}/b -o {out}/x -q", (dataset("x"),), kinds=KILLED),
    Case(
        "merge over another",
        "merge {inputs}/a {inputs}/b -o {out}/x --overwrite -q",
        (dataset("x"),),
        "merge {inputs}/b -o {out}/x -q",
        KILLED,
    ),
    Case("merge virtual", "merge {inputs}/a {inputs}/b -o {out}/x --virtual -q", kinds=KILLED),
    Case(
        "merge virtual over another",
        "merge {inputs}/a {inputs}/b -o {out}/x --virtual --overwrite -q",
        (dataset("x"),),
        "merge {inputs}/b -o {out}/x -q",
        KILLED,
    ),
    Case(
        "dedup",
        "dedup {inputs}/a {inputs}/b -o {out}/x --near 0.8 --threads 1 -q",
        (VIEW,),
        kinds=KILLED,
    ),
    Case(
        "dedup over another",
        "dedup {inputs}/a {inputs}/b -o {out}/x --near 0.8 --threads 1 --overwrite -q",
        (VIEW,),
        "dedup {inputs}/b -o {out}/x --threads 1 -q",
        KILLED,
    ),
    Case(
        "select into two views",
        "select {inputs}/a {inputs}/b --random 0.5 -o {out}/x --rest {out}/y -q",
        (VIEW, ("y.selection", "y.json")),
        kinds=KILLED,
    ),
    Case("split", "split {inputs}/a -o {out}/x --parts 3 -q", SHARDS, kinds=KILLED),
    Case(
        "split over another",
        "split {inputs}/a -o {out}/x --parts 3 --overwrite -q",
        SHARDS,
        "split {inputs}/b -o {out}/x --parts 3 -q",
        KILLED,
    ),
    Case(
        "convert dtype",
        "convert {inputs}/a {out}/x --dtype int32 -q",
        (dataset("x"),),
        kinds=KILLED,
    ),
    Case(
        "convert datatrove",
        "convert {inputs}/a {out}/x.ds --to datatrove --overwrite -q",
        (("x.ds", "x.ds.index"),),
        "convert {inputs}/b {out}/x.ds --to datatrove -q",
        KILLED,
    ),
    Case(
        "convert olmo",
        "convert {inputs}/a {out}/x.npy --to olmo --overwrite -q",
        (("x.npy", "x.csv.gz"),),
        "convert {inputs}/b {out}/x.npy --to olmo -q",
        KILLED,
    ),
    Case("convert npy", "convert {inputs}/a {out}/x.npy --to npy -q", kinds=KILLED),
    Case("convert raw", "convert {inputs}/a {out}/x.raw --to raw -q", kinds=KILLED),
    Case("convert parquet", "convert {inputs}/a {out}/x.parquet -q", kinds=KILLED),
    Case("convert from npy", "convert {inputs}/ids.npy {out}/x --eod 0 -q", (dataset("x"),)),
    Case("vocab", "vocab {inputs}/text.jsonl -o {out}/vocab.json -q"),
    Case(
        "vocab over another",
        "vocab {inputs}/text.jsonl -o {out}/vocab.json --overwrite -q",
        again="vocab {inputs}/text.jsonl -o {out}/vocab.json --limit 3 -q",
    ),
    Case("stats", "stats {inputs}/a --html {out}/x.html -q"),
    Case(
        "stats over another",
        "stats {inputs}/a --html {out}/x.html -q",
        again="stats {inputs}/b --html {out}/x.html -q",
    ),
    Case("blend", "blend 0.3 {inputs}/a 0.7 {inputs}/b --seq-length 16 -o {out}/x.yaml -q"),
    Case(
        "blend over another",
        "blend 0.3 {inputs}/a 0.7 {inputs}/b --seq-length 16 -o {out}/x.yaml -q",
        again="blend {inputs}/a --seq-length 16 -o {out}/x.yaml -q",
    ),
    Case(
        "index",
        "blend {inputs}/a {inputs}/b --order megatron --samples 40 --seq-length 16 --split 9,1,0 "
        "--cache {out} -q",
    ),
    Case(
        "index for Megatron",
        "blend {inputs}/a --order megatron-0.4 --samples 40 --seq-length 16 --split 9,1,0 "
        "--valid-samples 4 --megatron-cache {out} -q",
    ),
)


TRAINED = (
    "train --data-path {inputs}/ids --num-layers 1 --hidden-size 16 --num-attention-heads 2 "
    "--seq-length 16 --device cpu --vocab-size 1024 --micro-batch-size 2 --global-batch-size 4 "
    "--train-samples 8 "
    "--lr 1e-3 --lr-decay-style constant --log-interval 1 --eval-iters 0 --split 1,0,0 "
    "--save {out} --load {out}"
)


# With torch, which takes a while to load.
HEAVY_CASES = (
    Case("train", TRAINED, only=r"step_\d{8}/.*\.safetensors$"),
    Case("export", "export {inputs}/run -o {out}/m -q", only="^m/", kinds=KILLED),
    Case("import", "import {inputs}/model -o {out}/m -q", only="^m/(?!lock)", kinds=KILLED),
    Case(
        "export over another",
        "export {inputs}/run -o {out}/m --overwrite --dtype bf16 -q",
        again="export {inputs}/run -o {out}/m -q",
        only="^m/",
        kinds=KILLED,
    ),
)
