"""A disk that is full at every stage of a run: a file system that grows a little at a time.

    python -m torture.disk --rounds 3 --seed 1

Needs the right to mount a tmpfs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

from support.faults import remount, small_disk
from support.small_parts import in_small_parts

import tokpack
from torture.tools import Setting, Whole


def grow(
    setting: Setting, folder: Path, seed: int, *, step: int, part_bytes: int, workers: int
) -> int:
    """Resume on a disk that grows by about ``step`` bytes until it suffices; the failures."""
    rng = random.Random(seed)
    size = 4096
    failures = 0
    with small_disk(folder, size) as disk, in_small_parts(part_bytes):
        prefix = disk / "out"
        while True:
            try:
                tokpack.encode(**setting.request(prefix, workers=workers))
                break
            except tokpack.OutputError as error:
                message = str(error)
            assert "No space left on device" in message, message
            failures += 1
            names = {path.name for path in disk.iterdir()}
            assert names <= {"out.unfinished"}, names
            size += rng.randrange(4096, step)
            remount(disk, f"size={size}")
        assert Whole.read(prefix) == setting.expected
    folder.rmdir()
    return failures


def main() -> None:
    """Run a long round; the work folder stays when it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokpack-disk-"))
    setting = Setting.make(folder, 3 << 20, files=5, seed=args.seed)
    for number in range(args.rounds):
        workers = (1, 2, 4, 16)[number % 4]
        seed = args.seed + number
        failures = grow(
            setting, folder / "disk", seed, step=96 << 10, part_bytes=64 << 10, workers=workers
        )
        print(f"disk: full {failures} times with {workers} workers, then right", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
