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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.encoding_tools import byte_tokenizer, documents
from support.small_parts import sizes

import tokpack
from torture.cases import CASES, HEAVY_CASES, TRAINED, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent
KINDS = {"EIO": 1, "ENOSPC": 2, "short": 3, "kill": 4}
# What a run may pass over when it fails: the removal of what nobody reads, and what is only hasty.
CLEANING = ("unlink", "rmdir", "unlinkat", "ftruncate", "ftruncate64", "link", "linkat")
CLEANING += ("sync_file_range",)
# Nor need a run be able to tell how far it is; of its log it says so, and writes it later.
REPORT = re.compile(r"\w+ (report\.json|log\.jsonl|loss\.png|\d{5}\.json)|fsync x\.plan$")
TORCH = ("torch", "safetensors.torch", "tokpack.trainer.checkpoints.export", "tokpack.trainer.loop")
EVERY = 50  # rounds, from which on there is one for every call
DATED = (rb'"created": "[^"]*"', rb"Made by tokpack [^<]*<")

SYNCS = "tokpack.encoding.run.SYNC_SECONDS"

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
            passed_over = passed_over or "no loss.html: cannot write" in done["errors"]
            assert kind == "short" or passed_over or not done["met"], where
            self._same(read(self.out, self._case.only), where)
        else:
            assert kind != "short", where
            assert done["code"] in (1, 2), where  # the request, as far as it knows, or the machine
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
