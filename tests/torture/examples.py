"""The tests that draw examples, with many times as many of them: tables, views, CSV, merges, words.

    python -m torture.examples --seed 2 --times 20 [PLACE...]

A test draws a few dozen examples each time it runs. Here PLACE, a folder or file of tests (by
default all rooms but the trainer), draws many more, from another seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
_WITHOUT = {"trainer", "torture", "support", "house"}


def main() -> None:
    """Run them; exit as pytest does."""
    parser = argparse.ArgumentParser(description="tests with many more examples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("places", nargs="*", metavar="PLACE")
    args = parser.parse_args()
    rooms = {path.parent.name for path in TESTS.glob("*/test_*.py")} - _WITHOUT
    places = args.places or [str(TESTS / room) for room in sorted(rooms)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--hypothesis-seed={args.seed}"]
    command += ["-n", str(os.cpu_count() or 2), "--dist", "worksteal", *places]
    again = {"TOKPACK_TESTS_TIMES": str(args.times)}
    sys.exit(subprocess.run(command, env={**os.environ, **again}, check=False).returncode)


if __name__ == "__main__":
    main()
