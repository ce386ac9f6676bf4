"""Training samples from a store: how many a second, and how long a training loop waits for them.

    python benchmarks/store_samples.py [--latency 20] [--step 200] [--steps 100] [--save]

A dataset of lognormal documents (605 tokens on average, 400 MB) lies behind a server that only
sends files, each answer ``--latency`` ms later, and on the disk. Micro batches of ``--batch``
samples of ``--seq-length`` tokens are taken in the stateless order and in that of blocks, each time
by a reader with an empty cache:

- ``loop``: by a loop whose steps last ``--step`` ms, from a SampleIterator with a thread. Waited is
  the share of the time that the loop waits for its batches, without the first. In the order of
  blocks the next window begins halfway.
- ``ahead``: by the same iterator, as fast as they come; in the order of blocks a whole window.
- ``one by one``: each batch is asked for when it is wanted.
- ``ranks``: the same by ``--ranks`` processes, with one cache and with a cache for each.

With ``--megatron PYTHON``, an interpreter that has megatron-core, torch and boto3, its reader of S3
takes the first samples of its own order one after the other, and tokpack the same samples; their
tokens are compared.

Server and readers share the cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
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
from tokpack.samples.orders.blocks import BlockOrder
from tokpack.stores import access

MEAN, SIGMA = 605, 1.1  # tokens of a document, and of their logarithms
TOKENS = 200_000_000
MEGATRON_BATCHES = 4
HOWS = ("loop", "ahead", "one by one")


def make(prefix: Path) -> None:
    """A dataset of random ids."""
    random = np.random.default_rng(1)
    drawn = random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, TOKENS // MEAN)
    lengths = np.maximum(drawn.astype(np.int32), 1)
    ids = random.integers(0, 50_000, int(lengths.sum()), np.uint16)
    ids.tofile(f"{prefix}.bin")
    documents = np.arange(len(lengths) + 1)
    Path(f"{prefix}.idx").write_bytes(b"".join(index_chunks(np.uint16, lengths, documents)))


def loop(batches: SampleIterator, steps: int, pause: float) -> tuple[float, float]:
    """Steps a second, and the share of the time that was waited, from the second batch on."""
    next(batches)
    waited, began = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(pause)
    took = time.perf_counter() - began
    return steps / took, waited / took


def one_by_one(samples: GPTDataset, size: int, steps: int) -> tuple[float, float]:
    """The same without asking ahead."""
    began = time.perf_counter()
    for _, numbers in zip(range(steps), MicroBatches(len(samples), size), strict=False):
        samples.batch(numbers)
    return steps / (time.perf_counter() - began), 1.0


def window_of(samples: GPTDataset) -> int:
    """Samples of the first window of an order of blocks; 0 in another order."""
    order = samples._order
    return int(order._epochs[0].samples[1]) if isinstance(order, BlockOrder) else 0


def measure(prefix: str, order: str, how: str, given: argparse.Namespace) -> dict[str, Any]:
    """One row, of the rank ``given.rank`` of ``given.world``."""
    samples = GPTDataset(prefix, given.seq_length, order=order)
    window, steps, size = window_of(samples), given.steps // given.world, given.batch
    before = access.amounts()
    if how == "one by one":
        rate, waited = one_by_one(samples, size, steps)
    else:
        if how == "ahead" and window:
            steps = window // size // given.world - 40  # the next window is asked for later
        middle = max(window // size - steps // 2, 0) * size if how == "loop" and window else 0
        batches = SampleIterator(
            samples,
            size,
            prefetch=2,
            consumed_samples=middle,
            rank=given.rank,
            world_size=given.world,
        )
        rate, waited = loop(batches, steps, given.step / 1000 if how == "loop" else 0.0)
    requests, amount = (b - a for a, b in zip(before, access.amounts(), strict=True))
    access.shut_down()
    return {
        "order": order,
        "how": how,
        "samples": steps * size,
        "samples_s": rate * size,
        "waited": waited,
        "requests": requests,
        "mb": amount / 1e6,
    }


def together(
    prefix: str, order: str, how: str, given: argparse.Namespace, caches: list[str]
) -> dict[str, Any]:
    """One row for a process with each of ``caches``."""
    processes = []
    for rank, cache in enumerate(caches):
        options = {**vars(given), "rank": rank, "world": len(caches)}
        command = [sys.executable, __file__, "--one", json.dumps([prefix, order, how, options])]
        environment = os.environ | {"TOKPACK_CACHE": cache}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment))
    rows = [json.loads(process.communicate()[0]) for process in processes]
    if len(rows) == 1:
        return rows[0]
    shared = "one cache" if len(set(caches)) == 1 else "own caches"
    summed = ("samples", "samples_s", "requests", "mb")
    total = {key: sum(row[key] for row in rows) for key in summed}
    return {**rows[0], **total, "how": f"{len(caches)} ranks, {shared}"}


def beside_megatron(url: str, given: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """Rows of Megatron-core's reader and of ours, for the same samples; all of them are equal."""
    total, taken = TOKENS // given.seq_length // 2, MEGATRON_BATCHES * given.batch
    script = str(Path(__file__).parent / "peers" / "megatron_s3.py")
    words = [url, str(total), str(taken), str(given.seq_length), f"{folder}/megatron"]
    done = subprocess.run([given.megatron, script, *words], stdout=subprocess.PIPE, check=True)
    theirs = json.loads(done.stdout)
    os.environ["TOKPACK_CACHE"] = f"{folder}/cache/megatron"
    samples = GPTDataset(url, given.seq_length, order="megatron", samples=total)
    digest, before, began = hashlib.sha256(), access.amounts(), time.perf_counter()
    for _, batch in zip(
        range(MEGATRON_BATCHES), SampleIterator(samples, given.batch, prefetch=2), strict=False
    ):
        digest.update(batch["tokens"].tobytes())
    seconds = time.perf_counter() - began
    requests, amount = (b - a for a, b in zip(before, access.amounts(), strict=True))
    access.shut_down()
    if digest.hexdigest() != theirs["sha256"]:
        raise SystemExit("the samples of Megatron-core are others")
    row = {"place": "store", "order": "megatron", "samples": taken, "waited": 1.0}
    ours = {"samples_s": taken / seconds, "requests": requests, "mb": amount / 1e6}
    counts = {key: theirs[key] for key in ("requests", "mb")}
    return [
        {**row, **counts, "how": "megatron-core", "samples_s": taken / theirs["seconds"]},
        {**row, **ours, "how": "ahead"},
    ]


def main() -> None:
    """Measure, print a table, and save rows where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, value in (("latency", 20), ("step", 200), ("steps", 100), ("batch", 8), ("ranks", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--megatron", metavar="PYTHON", help="an interpreter with megatron-core")
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--save", action="store_true", help="append rows to benchmarks/results")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "set")
        delay = str(given.latency / 1000)
        script = str(Path(__file__).with_name("stores.py"))
        with server(script, "--serve", folder, delay) as (address, _):
            os.environ |= settings(address)
            for place, prefix in (("disk", f"{folder}/set"), ("store", f"s3://{BUCKET}/set")):
                for order in ("stateless", "stateless-blocks"):
                    ranks = [f"{folder}/cache/{order}-{rank}" for rank in range(given.ranks)]
                    asked = [(how, [f"{folder}/cache/{order}-{how}"]) for how in HOWS]
                    if place == "store":
                        asked += [("ahead", ranks[:1] * len(ranks)), ("ahead", ranks)]
                    for how, caches in asked:
                        shutil.rmtree(f"{folder}/cache", ignore_errors=True)
                        row = together(prefix, order, how, given, caches)
                        rows.append({"place": place, **row})
            if given.megatron:
                rows += beside_megatron(f"s3://{BUCKET}/set", given, folder)
    for row in rows:
        row["requests_a_sample"] = row["requests"] / row["samples"]
        row["kb_a_sample"] = 1e3 * row["mb"] / row["samples"]
    rows = [{**vars(given), **row} for row in rows]
    columns = ("place", "order", "how", "samples", "samples_s", "waited")
    columns += ("requests_a_sample", "kb_a_sample")
    print_table(columns, [[row[column] for column in columns] for row in rows])
    if given.save:
        print(append_rows("store_samples", rows, versions("obstore")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        prefix, order, how, options = json.loads(sys.argv[2])
        print(json.dumps(measure(prefix, order, how, argparse.Namespace(**options))))
    else:
        main()
