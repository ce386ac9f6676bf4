"""Run every fuzz target in turn, each for some seconds: ``make fuzz``.

What is found new stays in build/fuzz-corpus; what breaks a target is written there too, and belongs
into tests/fuzz/corpus once it is mended.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from fuzz import targets  # noqa: E402

CORPUS = TESTS / "fuzz" / "corpus"
NATIVE_BYTES = 700  # of an input: long enough for all that looks at 64 bytes and their neighbours


def fuzz(name: str, command: list[str], folder: Path, seconds: int) -> int:
    """Run one target; how many inputs it tried. CalledProcessError where it broke."""
    found = folder / name
    found.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=30"]
    options += ["-rss_limit_mb=6000", f"-artifact_prefix={folder / name}-"]
    committed = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=targets.MEMORY) as work:
        done = subprocess.run(
            [*command, str(found), *committed, *options],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "FUZZ_FOLDER": work},
        )
    tried = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode:
        print(done.stderr[-6000:], file=sys.stderr)
        raise SystemExit(f"{name} broke; the input is {folder / name}-*")
    return int(tried[1]) if tried else 0


def main() -> None:
    """Run the targets asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--binaries", type=Path, default=TESTS.parent / "build" / "fuzz")
    parser.add_argument("--folder", type=Path, default=TESTS.parent / "build" / "fuzz-corpus")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    commands: dict[str, list[str]] = {}
    for source in sorted((TESTS / "core" / "fuzz").glob("fuzz_*.cpp")):
        words = TESTS / "fuzz" / f"{source.stem}.dict"
        commands[source.stem] = [str(args.binaries / source.stem), f"-max_len={NATIVE_BYTES}"]
        commands[source.stem] += [f"-dict={words}"] if words.exists() else []
    targets.seeds(args.folder)
    for name in targets.TARGETS:
        commands[name] = [sys.executable, str(TESTS / "fuzz" / "harness.py"), name]
    for name in args.targets or commands:
        tried = fuzz(name, commands[name], args.folder, args.seconds)
        print(f"{name}: {tried} inputs tried in {args.seconds} s", flush=True)


if __name__ == "__main__":
    main()
