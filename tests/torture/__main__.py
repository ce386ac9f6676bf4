"""All long rounds, one after the other: ``python -m torture --rounds 50 --seed 1``."""

from __future__ import annotations

import argparse
import subprocess
import sys


def main() -> None:
    """Run every kind of torture; end at the first that fails."""
    parser = argparse.ArgumentParser(
        description="kill, cut the power of, fill the disk of runs; compare ids and masks"
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=float, default=200, help="of text for each tokenizer")
    parser.add_argument("--minutes", type=float, default=90, help="the most for all tokenizers")
    args = parser.parse_args()
    few = max(1, args.rounds // 10)
    rounds = {"kill": args.rounds, "power": few, "disk": few, "faults": args.rounds}
    flags = {kind: ["--rounds", str(number)] for kind, number in rounds.items()}
    flags["simulate"] = ["--seeds", str(400 * args.rounds)]
    flags["ids"] = ["--megabytes", str(args.megabytes), "--minutes", str(args.minutes)]
    chats = ("conversations", "chat_datasets", "chat_forms")
    for kind in ("patterns", "definitions", "pieces", "ranks", *chats):
        flags[kind] = ["--minutes", str(args.minutes / 18)]
    flags["examples"] = ["--times", str(few)]
    for kind, more in flags.items():
        command = [sys.executable, "-m", f"torture.{kind}", *more, "--seed", str(args.seed)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            kept = "; its folder is kept" if kind in rounds else ""
            raise SystemExit(f"torture: {kind} failed with --seed {args.seed}{kept}")


if __name__ == "__main__":
    main()
