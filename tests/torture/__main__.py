"""All long rounds, one after the other: ``python -m torture --rounds 50 --seed 1``."""

from __future__ import annotations

import argparse
import subprocess
import sys


def main() -> None:
    """Run every kind of torture; end at the first that fails."""
    parser = argparse.ArgumentParser(description="kill, cut the power of, fill the disk of runs")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    few = max(1, args.rounds // 10)
    for kind, rounds in (
        ("kill", args.rounds),
        ("power", few),
        ("disk", few),
        ("faults", args.rounds),
    ):
        numbers = ["--rounds", str(rounds), "--seed", str(args.seed)]
        done = subprocess.run([sys.executable, "-m", f"torture.{kind}", *numbers], check=False)
        if done.returncode:
            raise SystemExit(f"torture: {kind} failed with --seed {args.seed}; its folder is kept")


if __name__ == "__main__":
    main()
