"""Power loss, simulated: what was not synced is cut off, zeroed or kept, at every stage of a run.

    python -m torture.power --seed 1

A run copies its output folder at every sync, rename and removal that it does, and notes how much of
each file was durable then. Each copy is damaged as a file system may do it, and resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from support.encoding_tools import drive
from support.small_parts import in_small_parts, small_parts

import tokpack
from torture.tools import SUFFIXES, Setting, Whole

# What the observed run does beside its work. Its threads come one after the other here, so that a
# copy is of one moment; workers may write meanwhile, which a power loss may see as well.
OBSERVER = """
import json, os, shutil, stat, sys, threading
home, snapshots = sys.argv[2], sys.argv[3]
lock, me, durable, count = threading.RLock(), os.getpid(), {}, [0]
real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "replace", "unlink")}

def snapshot(what):
    folder = os.path.join(snapshots, f"{count[0]:04d}")
    count[0] += 1
    sizes = {}
    for at, _, names in os.walk(home):
        to = os.path.join(folder, "home", os.path.relpath(at, home))
        os.makedirs(to, exist_ok=True)
        for name in names:
            path = os.path.join(at, name)
            try:
                number = os.stat(path).st_ino
                shutil.copyfile(path, os.path.join(to, name))
            except FileNotFoundError:
                continue
            sizes[os.path.relpath(path, home)] = durable.get(number, 0)
    with open(os.path.join(folder, "durable.json"), "w") as file:
        json.dump({"what": what, "sizes": sizes}, file)

def forget(path):
    try:
        durable.pop(os.stat(path).st_ino, None)
    except FileNotFoundError:
        pass

def observed(name):
    def call(*args, **more):
        if os.getpid() != me or (name in ("replace", "unlink") and more):
            return real[name](*args, **more)
        with lock:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if name[0] == "f" else args[0]
            what = f"{name} {path}"
            if name in ("fsync", "fdatasync"):
                status = os.fstat(args[0])
                if stat.S_ISREG(status.st_mode):
                    real[name](*args)
                    durable[status.st_ino] = status.st_size
            else:
                snapshot("before " + what)
                forget(args[-1])
                real[name](*args)
            snapshot("after " + what)
    return call

for name in real:
    setattr(os, name, observed(name))
"""
DAMAGES = ("kept", "lost", "zeroed", "mixed")


def observe(setting: Setting, folder: Path, part_bytes: int, workers: int) -> list[Path]:
    """Run once, and return the copies of its output folder."""
    home, snapshots = folder / "home", folder / "snapshots"
    home.mkdir()
    snapshots.mkdir()
    request = setting.request(home / "out", workers=workers)
    done = drive(request, small_parts(part_bytes) + OBSERVER, home, snapshots)
    assert done.returncode == 0, done.stderr
    assert Whole.read(home / "out") == setting.expected
    return sorted(snapshots.iterdir())


def damage(case: Path, sizes: dict[str, int], how: str, rng: random.Random) -> None:
    """Do to everything beyond its durable size what a power loss may do."""
    for name, size in sizes.items():
        path = case / name
        if name.endswith("lock") or not path.exists():
            continue
        tail = path.stat().st_size - size
        if tail <= 0:
            continue
        chosen = rng.choice(("kept", "lost", "zeroed", "cut", "gone")) if how == "mixed" else how
        if chosen == "gone" and not size:  # nor was its name durable
            path.unlink()
        elif chosen in ("lost", "gone"):
            os.truncate(path, size)
        elif chosen == "cut":
            os.truncate(path, size + rng.randrange(tail))
        elif chosen == "zeroed":
            os.truncate(path, size)
            os.truncate(path, size + tail)


def check_nothing_false(prefix: Path, setting: Setting) -> None:
    """Both files with their names are the whole dataset, with or without the manifest."""
    if Path(f"{prefix}.json").exists():
        assert Whole.read(prefix) == setting.expected
    elif Path(f"{prefix}.bin").exists() and Path(f"{prefix}.idx").exists():
        dataset = tokpack.MMapIndexedDataset(str(prefix))
        assert len(dataset) == setting.expected.counts["sequences"]


def resume(setting: Setting, prefix: Path, workers: int) -> str:
    """Go on after the power loss; what came of it. The result is right, or refused."""
    check_nothing_false(prefix, setting)
    try:
        tokpack.encode(**setting.request(prefix, workers=workers))
    except tokpack.TokpackError as error:
        check_nothing_false(prefix, setting)
        return f"refused: {error}"
    assert Whole.read(prefix) == setting.expected
    left = {path.name for path in prefix.parent.iterdir()} - {f"{prefix.name}.unfinished"}
    wanted = {f"{prefix.name}.{end}" for end in ("json", *SUFFIXES)}
    assert left == wanted, left
    return "right"


def rounds(
    setting: Setting, folder: Path, seed: int, *, part_bytes: int, workers: int, every: int = 1
) -> Counter[str]:
    """Observe a run, and resume every ``every``-th copy after each kind of damage."""
    snapshots = observe(setting, folder, part_bytes, workers)
    rng = random.Random(seed)
    results: Counter[str] = Counter(moments=len(snapshots))
    for snapshot in snapshots[rng.randrange(every) :: every]:
        known = json.loads((snapshot / "durable.json").read_text())
        for how in DAMAGES:
            case = folder / "case"
            shutil.copytree(snapshot / "home", case)
            damage(case, known["sizes"], how, rng)
            try:
                with in_small_parts(part_bytes):
                    result = resume(setting, case / "out", rng.choice((1, 1, 2, 4)))
            except BaseException:
                print(f"power: {snapshot}, {known['what']}, {how}: see {case}", file=sys.stderr)
                raise
            if result != "right":
                print(f"power: {known['what']}, {how}: {result}")
            results[result.partition(":")[0]] += 1
            shutil.rmtree(case)
    return results


def main() -> None:
    """Run a long round; the work folder stays when it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    total: Counter[str] = Counter()
    for number in range(args.rounds):
        folder = Path(tempfile.mkdtemp(prefix="tokpack-power-"))
        setting = Setting.make(folder, 600 << 10, files=5, seed=args.seed + number)
        seed = args.seed + number
        total += rounds(setting, folder, seed, part_bytes=64 << 10, workers=1 + number % 3)
        shutil.rmtree(folder)
        print(f"power: after {number + 1} runs: {dict(total)}", flush=True)


if __name__ == "__main__":
    main()
