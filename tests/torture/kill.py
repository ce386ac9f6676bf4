"""kill -9 of the parent, of a worker, of everything, again and again, on one run.

    python -m torture.kill --rounds 50 --seed 1 --megabytes 300

Each round resumes the run that the round before has left, at once: workers of a killed parent may
still be dying. At the end the bytes are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from support import forked
from support.encoding_tools import DRIVER, children, pieces
from support.small_parts import in_small_parts, small_parts

import tokpack
from torture.tools import Setting, Whole, check_same, names_of

TARGETS = ("parent", "worker", "everything", "SIGTERM", "SIGINT")


class Kills:
    """One run that is killed again and again."""

    def __init__(
        self, setting: Setting, output: Path, seed: int, part_bytes: int, files: int | None = None
    ) -> None:
        self.setting = setting
        self.output = output
        self.files = files
        self.part_bytes = part_bytes
        self.rng = random.Random(seed)
        self.script = small_parts(part_bytes) + DRIVER
        self.done: Counter[str] = Counter()
        self.finished = 0
        self._step = 0.0

    def undisturbed_seconds(self, workers: int) -> float:
        """How long a run takes from its first progress on."""
        process = self._start(workers)
        began = self._first_line(process)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        seconds = time.monotonic() - began
        self.check_and_remove()
        return seconds

    def run(self, rounds: int, workers: tuple[int, ...]) -> None:
        """Kill ``rounds`` times, then finish."""
        self._step = self.undisturbed_seconds(max(workers)) / rounds
        stuck, before = 0, -1
        for number in range(rounds):
            stretch = 2 ** (stuck // 3)
            target = self.rng.choice(TARGETS)
            text = self.round(target, self.rng.choice(workers), stretch)
            now = self._progress()
            stuck = stuck + 1 if now <= before else 0
            before = now
            print(f"{number + 1:4d} {text}; {now} pieces are done", flush=True)
        process = self._start(max(workers))
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        self.check_and_remove()

    def round(self, target: str, workers: int, stretch: float) -> str:
        """Start, kill after a random time, and say what happened."""
        process = self._start(workers)
        early = self.rng.random() < 0.1
        if early:  # before there is anything
            time.sleep(self.rng.uniform(0.0, 0.05))
        else:
            self._first_line(process)
            time.sleep(self.rng.uniform(0.0, self._step * stretch))
        self._no_false_dataset()
        victims = children(process.pid)
        if target == "worker" and not victims:
            target = "parent"
        began = time.monotonic()
        ended = process.poll() is not None
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            if target == "worker":
                os.kill(self.rng.choice(victims), signal.SIGKILL)
            elif target == "everything":
                os.killpg(process.pid, signal.SIGKILL)
            elif target == "SIGINT":
                os.killpg(process.pid, signal.SIGINT)
            else:
                os.kill(process.pid, signal.SIGTERM if target == "SIGTERM" else signal.SIGKILL)
        _, err = process.communicate(timeout=100)
        seconds = time.monotonic() - began
        code = process.returncode
        if code == 0:
            self.finished += 1
            self.check_and_remove()
            return f"{target}: too late, the run was finished; it begins anew"
        assert not ended, err
        # An interpreter that is still loading knows no better than to show where it was.
        expected = {"SIGTERM": {-15}, "SIGINT": {-2, 1, 130}, "worker": {2}}.get(target, {-9})
        assert code in expected, f"{target}: exit code {code}: {err}"
        if target == "worker":
            assert "was killed by SIGKILL" in err, err
        self.done[target] += 1
        self._no_false_dataset()
        return f"{target}{' early' if early else ''}, {workers} workers, ended in {seconds:.2f} s"

    def check_and_remove(self) -> None:
        """What is there is the undisturbed result, and nothing else is."""
        self._check_whole()
        names = {path.name for path in self.output.parent.iterdir()}
        assert len(tokpack.Manifest.load(self.output).pieces or "1") == (self.files or 1)
        assert names == names_of(self.output), names
        for name in names:
            (self.output.parent / name).unlink()

    def _check_whole(self) -> None:
        with in_small_parts(self.part_bytes):
            check_same(Whole.read(self.output), self.setting.expected)

    def _no_false_dataset(self) -> None:
        # The manifest is the last of the renames: with it, everything is there.
        if Path(f"{self.output}.json").exists():
            self._check_whole()

    def _progress(self) -> int:
        return len({(piece["number"], piece["segment"]) for piece in pieces(self.output)})

    def _start(self, workers: int) -> subprocess.Popen[str]:
        text = json.dumps(self.setting.request(self.output, workers=workers, files=self.files))
        return forked.Process(
            ["-c", self.script, text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _first_line(self, process: subprocess.Popen[str]) -> float:
        if process.stdout:
            process.stdout.readline()
        return time.monotonic()


def main() -> None:
    """Run a long round; the work folder stays when it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--files", type=int, help="so many .bin files")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokpack-kill-"))
    print(f"kill: {args.rounds} rounds, seed {args.seed}, {args.megabytes} MB, in {folder}")
    setting = Setting.make(folder, args.megabytes << 20, files=25, seed=args.seed)
    (folder / "out").mkdir()
    kills = Kills(setting, folder / "out" / "out", args.seed, 128 << 10, args.files)
    kills.run(args.rounds, workers=(2, 3, 8, 16))
    counts = ", ".join(f"{count} {target}" for target, count in sorted(kills.done.items()))
    print(
        f"kill: the bytes are those of an undisturbed run after {counts}; "
        f"{kills.finished} times the kill came too late"
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
