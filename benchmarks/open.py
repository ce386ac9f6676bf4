"""Opening a blend of very many documents, as every rank of a training job does.

    python benchmarks/open.py [--documents 100000000] [--datasets 2] [--ranks 8] [--runs 3]

Datasets of short documents (uniform, 1 to 8 tokens) are made in a temporary folder: a real .idx and
a .bin without contents, which no opening needs but for three places. Every row is one rank, a
process of its own that opens training, validation and test of the blend; the ranks take turns, so
that processor seconds are not those of two ranks that wait for each other's memory. Seconds are
those between the imports and the three datasets (``open``), and to the first batch of training
besides (``batch``). ``fingerprint`` is that of the training samples: rows of other code that have
another one read other samples, and are no comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import common

SPLIT = "969,30,1"
SEQ_LENGTH = 2048
LONGEST = 8  # tokens of a document
_CHUNK = 1 << 22


def make_dataset(prefix: Path, documents: int, seed: int) -> None:
    """Write an .idx of ``documents`` documents of one sequence, and a .bin of zeros."""
    random = np.random.default_rng(seed)
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\x08")
        file.write(np.array([documents, documents + 1], "<u8").tobytes())
        lengths = random.integers(1, LONGEST + 1, documents, dtype=np.int32)
        lengths.tofile(file)
        ends = np.cumsum(lengths, dtype=np.int64)
        (2 * (ends - lengths)).tofile(file)
        np.arange(documents + 1, dtype=np.int64).tofile(file)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * int(ends[-1]))


def rank(prefixes: list[str]) -> None:
    """Open the blend in this process and print a row."""
    from tokpack.samples import open_blend

    datasets = [{"prefix": prefix, "weight": 1 + number} for number, prefix in enumerate(prefixes)]
    request = {"datasets": datasets, "split": SPLIT, "seq_length": SEQ_LENGTH}
    cpu, wall = time.process_time(), time.perf_counter()
    blends = open_blend(request)
    row: dict[str, Any] = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
    }
    blends.train.batch(list(range(8)))
    row["batch_cpu"] = time.process_time() - cpu
    row["memory"] = memory()
    row["fingerprint"] = blends.train.fingerprint
    print("row", json.dumps(row))


def memory() -> int:
    """The most resident bytes of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no VmHWM in /proc/self/status")


def measure(prefixes: list[str]) -> dict[str, Any]:
    """One rank, in a process of its own."""
    words = [sys.executable, __file__, "--rank", *prefixes]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"a rank failed:\n{done.stderr[-3000:]}")
    row: dict[str, Any] = json.loads(done.stdout.rpartition("row ")[2])
    return row


def main() -> None:
    """Measure, print and append rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=100_000_000, help="of all datasets")
    parser.add_argument("--datasets", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the datasets are made")
    parser.add_argument("--no-rows", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        prefixes = [f"{folder}/d{number}" for number in range(arguments.datasets)]
        for number, prefix in enumerate(prefixes):
            make_dataset(Path(prefix), arguments.documents // arguments.datasets, number)
        measure(prefixes)  # the files are in the page cache from here on
        for run in range(arguments.runs):
            for number in range(arguments.ranks):
                row = {
                    "benchmark": "open",
                    "documents": arguments.documents,
                    "datasets": arguments.datasets,
                    "ranks": arguments.ranks,
                    "rank": number,
                    "run": run,
                    **measure(prefixes),
                }
                rows.append(row)
    names = ("run", "ranks", "cpu of a rank", "of all ranks", "with a batch", "memory")
    table = []
    for run in range(arguments.runs):
        own = [row for row in rows if row["run"] == run]
        cpu, batch = ([row[name] for row in own] for name in ("cpu", "batch_cpu"))
        table.append(
            (
                run,
                len(own),
                f"{statistics.median(cpu):.2f} s",
                f"{sum(cpu):.2f} s",
                f"{statistics.median(batch):.2f} s",
                f"{max(row['memory'] for row in own) / 1e6:.0f} MB",
            )
        )
    common.print_table(names, table)
    if not arguments.no_rows:
        print(f"\nrows appended to {common.append_rows('open', rows, common.versions())}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2:])
    else:
        main()
