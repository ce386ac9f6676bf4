"""Faults at every write, sync, rename and removal of every command that writes.

    python -m torture.faults --seed 1

Each command is run again and again: its first such call fails, then its second, and so on to the
end. After each, what is there is old, new or nothing, and the same command then succeeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.encoding_tools import byte_tokenizer, documents

import tokpack
from torture.tools import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent
KINDS = {"EIO": 1, "ENOSPC": 2, "short": 3, "kill": 4}
# What a run may pass over when it fails: the removal of what nobody reads, and what is only hasty.
CLEANING = ("unlink", "rmdir", "unlinkat", "ftruncate", "ftruncate64", "link", "linkat")
CLEANING += ("sync_file_range",)
# Nor need a run be able to tell how far it is; of its log it says so, and writes it later.
REPORT = re.compile(r"\w+ (report\.json|log\.jsonl|loss\.png|\d{5}\.json)|fsync x\.plan$")
TORCH = ("torch", "safetensors.torch", "tokpack.checkpoints.export", "tokpack.trainer.loop")
EVERY = 50  # rounds, from which on there is one for every call
DATED = (rb'"created": "[^"]*"', rb"Made by tokpack [^<]*<")

SYNCS = "tokpack.encoding.work.SYNC_SECONDS"

State = dict[str, bytes]  # files of a folder


def compiler() -> str | None:
    """A C compiler, where there is one and a library can be loaded before all others."""
    if not sys.platform.startswith("linux"):
        return None
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def memory() -> str | None:
    """A folder in memory, where there is one: thousands of syncs take no time there."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Server:
    """Runs commands with faults, in forks of one process that has everything loaded."""

    def __init__(self, folder: Path, *modules: str) -> None:
        library = folder / "faults.so"
        if not library.exists():
            build = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-D_LARGEFILE64_SOURCE"]
            build += ["-o", str(library), str(HERE / "faults.c"), "-ldl"]
            subprocess.run(build, check=True)
        before = os.environ.get("LD_PRELOAD", "")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "fault_server.py"), json.dumps(modules)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "LD_PRELOAD": f"{library}:{before}" if before else str(library),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def run(self, argv: list[str], folder: Path, at: int = 0, kind: int = 0) -> dict[str, Any]:
        """Run ``tokpack ARGV``; call ``at`` under ``folder`` meets the fault, with 0 none does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        small = sizes(1 << 10) if argv[0] == "encode" else {}
        small.pop(SYNCS, None)  # a thread that makes calls at any time
        request = {"argv": argv, "folder": str(folder), "at": at, "kind": kind, "sizes": small}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


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


def train_once(server: Server, inputs: Path) -> None:
    """The checkpoint that ``export`` writes as a model, and the model that ``import`` reads."""
    for command in (TRAINED, "export {inputs}/run -o {inputs}/model -q"):
        words = [word.format(inputs=inputs, out=inputs / "run") for word in command.split()]
        done = server.run(words, inputs / "run")
        assert done["code"] == 0, done


def make_inputs(folder: Path) -> None:
    """Two datasets, text, records of which some are bad, an array: kilobytes each."""
    folder.mkdir()
    tokenizer = str(byte_tokenizer(folder / "tokenizer.json"))
    for seed, name in enumerate("ab"):
        lines = [json.dumps({"text": text}) for text in documents(40, words=30, seed=seed)]
        (folder / "text.jsonl").write_text("\n".join(lines) + "\n")
        tokpack.encode([folder / "text.jsonl"], folder / name, tokenizer=tokenizer, workers=1)
    for suffix in ("bin", "idx"):  # without a manifest
        shutil.copy(folder / f"a.{suffix}", folder / f"ids.{suffix}")
    tokpack.convert(folder / "a", folder / "ids.npy", to="npy")
    records = [json.dumps({"text": text, "title": text[:9]}) for text in documents(20, words=30)]
    (folder / "bad.jsonl").write_text("\n".join([*records, '{"text": 1}', ""]))


def read(folder: Path, only: str = "") -> State:
    """The files of a folder by name, without what differs between two runs of a command."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        temporary = name.endswith((".tmp", ".lock", ".tokpack.names")) or ".tokpack.tmp/" in name
        if path.is_file() and not temporary and ".tokpack.old/" not in name:
            found[name] = _undated(path.read_bytes())
    return {name: content for name, content in found.items() if re.search(only, name)}


def _undated(content: bytes) -> bytes:
    for dated in DATED:
        content = re.sub(dated, b"", content)
    return content


class Trial:
    """One case with its inputs, and the outputs of runs that nothing disturbed."""

    def __init__(self, server: Server, case: Case, folder: Path, inputs: Path) -> None:
        self._server, self._case = server, case
        self._inputs, self._before = inputs, read(inputs)
        self.out, self._backup = folder / "out", folder / "backup"
        self._argv = case.words(case.argv, inputs, self.out)
        self._backup.mkdir()
        self.out.mkdir()
        for command in filter(None, case.again.split(";")):
            done = server.run(case.words(command, inputs, self.out), self.out)
            assert done["code"] == 0, done
        self.old = read(self.out, self._case.only)
        shutil.copytree(self.out, self._backup, dirs_exist_ok=True, copy_function=shutil.copy2)
        done = server.run(self._argv, self.out)
        assert done["code"] == 0, done
        self.calls: int = done["calls"]
        self.new = read(self.out, self._case.only)
        assert self.new != self.old

    def run(self, at: int, kind: str) -> str:
        """Run with the fault ``kind`` at call ``at``; the name of the call."""
        shutil.rmtree(self.out)
        shutil.copytree(self._backup, self.out)
        done = self._server.run(self._argv, self.out, at, KINDS[kind])
        where = f"{self._case.name}, {kind} at call {at} {done['met']}: {done}"
        if kind == "kill":
            assert done["code"] == -9, where
        elif done["code"] == 0:
            passed_over = done["met"].startswith(CLEANING) or REPORT.match(done["met"])
            passed_over = passed_over or "no loss.png: cannot write" in done["errors"]
            assert kind == "short" or passed_over or not done["met"], where
            self._same(read(self.out, self._case.only), where)
        else:
            assert kind != "short", where
            assert done["code"] == 1, where
            lines = done["errors"].splitlines()
            errors = [line for line in lines if line.startswith("tokpack: error: ")]
            assert len(errors) == 1, where
            assert str(self.out) in errors[0], where
            assert lines == errors or self._argv[0] == "train", where
        self._check(read(self.out, self._case.only), where)
        assert read(self._inputs) == self._before, where
        if (
            done["code"] != 0 and read(self.out, self._case.only) != self.new
        ):  # killed behind its last rename
            again = self._server.run(self._argv, self.out)
            assert again["code"] == 0, f"{where}; then {again}"
            self._same(read(self.out, self._case.only), where)
            assert read(self._inputs) == self._before, where
        return str(done["met"].partition(" ")[0] or kind)

    def _same(self, found: State, where: str) -> None:
        left = [name for name in found if name not in self.new]
        assert not left, f"{where}: left {left}"
        assert found == self.new, where

    def _check(self, found: State, where: str) -> None:
        """What is there is old or new, and of one run what belongs together."""
        for name, content in found.items():
            assert content in (self.old.get(name), self.new.get(name)), f"{where}: {name} is mixed"
        groups = [tuple(self.new)] if self._case.only else self._case.groups
        for group in groups:
            there = {name: found[name] for name in group if name in found}
            if len(there) < len(group):  # none
                continue
            manifest = f"{group[0].removesuffix('.bin')}.json"
            if group[0].endswith(".bin") and manifest in found:
                there[manifest] = found[manifest]
            generations = [
                {name: state.get(name) for name in there} for state in (self.old, self.new)
            ]
            assert there in generations, f"{where}: {sorted(there)} are of two runs"


def rounds(
    server: Server, case: Case, folder: Path, inputs: Path, some: Callable[[int], Iterable[int]]
) -> Counter[str]:
    """Run a case with each of its faults at those of its calls that ``some`` picks."""
    folder.mkdir()
    trial = Trial(server, case, folder, inputs)
    met: Counter[str] = Counter()
    for kind in case.kinds:
        for at in some(trial.calls):
            met[f"{kind} {trial.run(at, kind)}"] += 1
    shutil.rmtree(folder)
    return met


def sample(count: int, rng: random.Random) -> Callable[[int], list[int]]:
    """A choice of ``count`` calls, the last one among them."""

    def some(calls: int) -> list[int]:
        return sorted({calls, *rng.sample(range(1, calls + 1), min(count - 1, calls))})

    return some


def every(calls: int) -> range:
    return range(1, calls + 1)


def main() -> None:
    """Run all cases; the work folder stays when one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="the cases whose name begins so")
    parser.add_argument("--rounds", type=int, help="calls of each case (from 50 on all)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if compiler() is None:
        print("faults: no C compiler, or not Linux: nothing is done", flush=True)
        return
    folder = Path(tempfile.mkdtemp(prefix="tokpack-faults-", dir=memory()))
    make_inputs(folder / "inputs")
    few = args.rounds is not None and args.rounds < EVERY
    some = sample(args.rounds, random.Random(args.seed)) if few else every
    total: Counter[str] = Counter()
    with Server(folder, "pyarrow.parquet", "pandas", *TORCH) as server:
        train_once(server, folder / "inputs")
        for number, case in enumerate((*CASES, *HEAVY_CASES)):
            if case.name.startswith(args.only or ""):
                met = rounds(server, case, folder / str(number), folder / "inputs", some)
                total += met
                print(f"faults: {case.name}: {met.total()} faults", flush=True)
    shutil.rmtree(folder)
    print(f"faults: {total.total()} in all: {dict(total.most_common())}", flush=True)


if __name__ == "__main__":
    main()
