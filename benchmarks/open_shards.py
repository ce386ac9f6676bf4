"""Opening a dataset of many shards on a store: seconds, and requests.

    python benchmarks/open_shards.py [--shards 300] [--latency 20] [--save]

A virtual dataset of small shards lies behind a server that only sends files, each answer
``--latency`` ms later. GPTDataset opens it, which needs every index: with an empty cache, and once
more in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import append_rows, print_table, versions
from stores import BUCKET, server, settings

import tokpack
from tokpack.indexed.format import index_chunks

OPEN = """
import json, sys, time
from tokpack import GPTDataset
from tokpack.stores import access
access.stat(sys.argv[1] + ".none")  # the process that asks stores has begun
before, began = access.amounts(), time.perf_counter()
samples = GPTDataset(sys.argv[1], 512)
seconds = time.perf_counter() - began
requests = access.amounts()[0] - before[0]
access.shut_down()
print(json.dumps({"seconds": seconds, "requests": requests, "samples": len(samples)}))
"""


def make(folder: Path, shards: int) -> None:
    """Shards of 1,000 documents, and the manifest of all."""
    random = np.random.default_rng(1)
    for number in range(shards):
        lengths = random.integers(1, 50, 1000).astype(np.int32)
        ids = random.integers(0, 50_000, int(lengths.sum()), np.uint16)
        ids.tofile(folder / f"set-{number:05}.bin")
        chunks = index_chunks(np.uint16, lengths, np.arange(len(lengths) + 1))
        (folder / f"set-{number:05}.idx").write_bytes(b"".join(chunks))
    names = [folder / f"set-{number:05}" for number in range(shards)]
    tokpack.merge(names, folder / "set", virtual=True)


def main() -> None:
    """Measure, print a table, and save rows where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shards", type=int, default=300)
    parser.add_argument("--latency", type=int, default=20)
    parser.add_argument("--save", action="store_true", help="append rows to benchmarks/results")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.shards)
        script, delay = str(Path(__file__).with_name("stores.py")), str(given.latency / 1000)
        with server(script, "--serve", folder, delay) as (address, _):
            environment = os.environ | settings(address) | {"TOKPACK_CACHE": f"{folder}/cache"}
            for cache in ("empty", "full"):
                done = subprocess.run(
                    [sys.executable, "-c", OPEN, f"s3://{BUCKET}/set"],
                    env=environment,
                    stdout=subprocess.PIPE,
                    check=True,
                )
                rows.append({**vars(given), "cache": cache, **json.loads(done.stdout)})
    columns = ("shards", "cache", "seconds", "requests")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    if given.save:
        print(append_rows("open_shards", rows, versions("obstore")))


if __name__ == "__main__":
    main()
