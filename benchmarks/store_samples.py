"""Training samples from a store: how many a second, and how long a training loop waits for them.

    python benchmarks/store_samples.py [--latency 20] [--step 200] [--steps 100] [--save]

A dataset of lognormal documents (605 tokens on average) lies behind a server that only sends files,
each answer ``--latency`` ms later, and on the disk. Micro batches of ``--batch`` samples of
``--seq-length`` tokens are taken in the stateless order:

- ``loop``: by a loop whose steps last ``--step`` ms, from a SampleIterator with a thread. Waited is
  the share of the time that the loop waits for its batches, without the first.
- ``ahead``: by the same iterator, as fast as they come.
- ``one by one``: each batch is asked for when it is wanted.

Server and reader share the cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import append_rows, print_table, versions
from stores import BUCKET, server, settings

from tokpack import GPTDataset
from tokpack.indexed.format import index_chunks
from tokpack.samples import MicroBatches, SampleIterator
from tokpack.stores import access

MEAN, SIGMA = 605, 1.1  # tokens of a document, and of their logarithms
TOKENS = 50_000_000


def make(prefix: Path) -> None:
    """A dataset of random ids."""
    random = np.random.default_rng(1)
    drawn = random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, TOKENS // MEAN)
    lengths = np.maximum(drawn.astype(np.int32), 1)
    ids = random.integers(0, 50_000, int(lengths.sum()), np.uint16)
    ids.tofile(f"{prefix}.bin")
    documents = np.arange(len(lengths) + 1)
    Path(f"{prefix}.idx").write_bytes(b"".join(index_chunks(np.uint16, lengths, documents)))


def loop(samples: GPTDataset, size: int, steps: int, pause: float) -> tuple[float, float]:
    """Samples a second, and the share of the time that was waited, from the second batch on."""
    batches = SampleIterator(samples, size, prefetch=2)
    next(batches)
    waited, began = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(pause)
    took = time.perf_counter() - began
    return steps * size / took, waited / took


def one_by_one(samples: GPTDataset, size: int, steps: int) -> tuple[float, float]:
    """The same without asking ahead."""
    began = time.perf_counter()
    for _, numbers in zip(range(steps), MicroBatches(len(samples), size), strict=False):
        samples.batch(numbers)
    return steps * size / (time.perf_counter() - began), 1.0


def main() -> None:
    """Measure, print a table, and save rows where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, value in (("latency", 20), ("step", 200), ("steps", 100), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--save", action="store_true", help="append rows to benchmarks/results")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "set")
        delay = str(given.latency / 1000)
        script = str(Path(__file__).with_name("stores.py"))
        with server(script, "--serve", folder, delay) as (address, _):
            os.environ |= settings(address) | {"TOKPACK_CACHE": f"{folder}/cache"}
            for place, prefix in (("disk", f"{folder}/set"), ("store", f"s3://{BUCKET}/set")):
                samples = GPTDataset(prefix, given.seq_length)
                before = access.amounts()
                measured = {
                    "loop": loop(samples, given.batch, given.steps, given.step / 1000),
                    "ahead": loop(samples, given.batch, given.steps, 0.0),
                    "one by one": one_by_one(samples, given.batch, given.steps),
                }
                requests, size = (b - a for a, b in zip(before, access.amounts(), strict=True))
                taken = 3 * given.steps * given.batch
                for how, (rate, waited) in measured.items():
                    row = {"place": place, "how": how, "samples_s": rate, "waited": waited}
                    row |= {
                        "requests_a_sample": requests / taken,
                        "kb_a_sample": size / taken / 1e3,
                    }
                    rows.append({**vars(given), **row})
            access.shut_down()
    columns = ("place", "how", "samples_s", "waited", "requests_a_sample", "kb_a_sample")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    if given.save:
        print(append_rows("store_samples", rows, versions("obstore")))


if __name__ == "__main__":
    sys.exit(main())
