"""Loading a tokenizer, from its file and from the cache of definitions.

    python benchmarks/load.py tokenizer.json... [--runs 5]

Every row is one process. ``json`` is what Python's parser takes for the file, ``import`` what the
modules take, ``load`` load_tokenizer behind it, ``encoder`` the tables of the native core;
processor seconds of all threads. The processes take turns: the first fills an empty cache, the
others find it full (``kept``) or have it switched off (``file``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import common

STAGES = ("json", "import", "load", "encoder")


def one(path: str) -> None:
    """Load a tokenizer in this process and print a row."""
    times = [time.process_time()]
    json.loads(Path(path).read_bytes())
    times.append(time.process_time())
    from tokpack.tokenizers import load_tokenizer

    times.append(time.process_time())
    tokenizer = load_tokenizer(path)
    times.append(time.process_time())
    tokenizer.encoder(dtype="int32")
    times.append(time.process_time())
    spent = [after - before for before, after in pairwise(times)]
    row = {"ids": tokenizer.vocab_size, "native": tokenizer.native}
    print(json.dumps({**row, **dict(zip(STAGES, spent, strict=True))}))


def measure(path: Path, cache: str, *, kept: bool) -> dict[str, Any]:
    """One process."""
    environment = {**os.environ, "TOKPACK_CACHE": cache}
    environment["TOKPACK_TOKENIZER_CACHE"] = "1" if kept else "0"
    words = [sys.executable, __file__, "--one", str(path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{path} was not loaded:\n{done.stderr[-3000:]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    """Measure, print and append rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-rows", action="store_true")
    arguments = parser.parse_args()
    rows, table = [], []
    for path in arguments.files:
        with tempfile.TemporaryDirectory() as cache:
            measure(path, cache, kept=True)
            for run in range(arguments.runs):
                for method in ("file", "kept"):
                    about = {"benchmark": "load", "tokenizer": path.name, "method": method}
                    about |= {"bytes": path.stat().st_size, "run": run}
                    rows.append({**about, **measure(path, cache, kept=method == "kept")})
        for method in ("file", "kept"):
            own = [r for r in rows if (r["tokenizer"], r["method"]) == (path.name, method)]
            spent = [statistics.median(row[stage] for row in own) for stage in STAGES]
            table.append((path.name, own[0]["ids"], method, *(f"{s:.3f} s" for s in spent)))
    common.print_table(("tokenizer", "ids", "from", *STAGES), table)
    if not arguments.no_rows:
        print(f"\nrows appended to {common.append_rows('load', rows, common.versions())}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        main()
