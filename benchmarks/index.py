"""Building the index of a dataset and of a blend: tokpack beside Megatron-core.

    python benchmarks/index.py [--documents 10000000,100000000] [--epochs 1,3] [--runs 3]

A dataset of lognormal documents (605 tokens on average) is made in a temporary folder: a real .idx,
and a .bin without contents, which no index needs. Every row is one process of its own, that opens
the dataset and has its index ready; the methods take turns. Seconds are those between the imports
and the index, ``memory`` is the most resident memory of the process until then (VmHWM), ``base``
what it had after the imports. The checksums of all three arrays are compared.

- ``megatron-core``: GPTDataset of the installed program, with a cache folder, as in training
- ``cache``: tokpack's GPTDataset(order="megatron", cache=...)
- ``memory``: the same without a cache
- ``files``: tokpack writes Megatron's own files
- ``megatron-core hit``, ``cache hit``: the same again, with the index there already
- ``stateless``: tokpack's own order, and the time to locate a sample at random

and for blends of 2, 7, 100 and 1,000 datasets (``blend``) the nanoseconds for a sample.

What is unfair: Megatron-core is single-threaded here as it is in training, tokpack too; tokpack
syncs its files to the disk, Megatron-core does not; tokpack reads all lengths once more for a
fingerprint of the data, and on a hit compares checksums; Megatron-core needs torch, which is in its
``base``. Without megatron-core (``pip install --no-deps megatron-core==0.16.1`` beside torch) its
rows are left out, and that is said.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).parent))
import common

if TYPE_CHECKING:
    from collections.abc import Callable

MEAN, SIGMA = 605, 1.1  # tokens of a document, and of their logarithms
SEQ_LENGTH = 4096
SEED = 1234
ARRAYS = ("document_index", "sample_index", "shuffle_index")
METHODS = (
    "megatron-core",
    "megatron-core hit",
    "cache",
    "cache hit",
    "memory",
    "files",
    "stateless",
)
BLENDS = (2, 7, 100, 1000)
LOCATED = 200_000
_CHUNK = 1 << 22


def make_dataset(prefix: Path, documents: int) -> int:
    """Write .idx and an empty .bin of the right size; returns the tokens."""
    random = np.random.default_rng(7)
    scale = np.log(MEAN) - SIGMA**2 / 2
    lengths = np.concatenate(
        [
            np.maximum(random.lognormal(scale, SIGMA, min(_CHUNK, documents - start)), 1)
            for start in range(0, documents, _CHUNK)
        ]
    ).astype(np.int32)
    begins = np.cumsum(lengths, dtype=np.int64)
    tokens = int(begins[-1])
    begins -= lengths
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + b"\x08")
        file.write(np.array([documents, documents + 1], "<u8").tobytes())
        lengths.tofile(file)
        begins *= 2
        begins.tofile(file)
        np.arange(documents + 1, dtype=np.int64).tofile(file)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * tokens)
    return tokens


def megatron(prefix: str, folder: str, samples: int | None) -> Callable[[], Any]:
    """A function that gives Megatron-core's dataset."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        unique_identifiers = {"class": "Benchmark"}  # noqa: RUF012
        vocab_size, eod, pad = 50257, 0, -1

    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQ_LENGTH,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=folder,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )

    def build() -> Any:
        source = IndexedDataset(prefix, multimodal=False, mmap=True)
        indices = np.arange(len(source), dtype=np.int32)
        return GPTDataset(source, prefix, indices, samples, Split.train, config)

    return build


def own(method: str, prefix: str, folder: str, samples: int | None) -> Callable[[], Any]:
    """A function that gives tokpack's order, or the files that it wrote."""
    from tokpack import GPTDataset, MMapIndexedDataset
    from tokpack.samples.megatron.cache_files import Request, write_index_files

    if method == "files":
        request = Request(
            paths=(prefix,),
            weights=None,
            samples=(samples, None, None),
            seq_length=SEQ_LENGTH,
            seed=SEED,
            split="1,0,0",
            tokenizer={"class": "Benchmark"},
        )
        return lambda: list(write_index_files(folder, request, [MMapIndexedDataset(prefix)]))
    if method == "stateless":
        return lambda: located(GPTDataset(prefix, SEQ_LENGTH, seed=SEED)._order)
    cache = None if method == "memory" else folder
    return lambda: (
        GPTDataset(
            prefix, SEQ_LENGTH, order="megatron", seed=SEED, samples=samples, cache=cache
        )._order
    )


def located(order: Any) -> Any:
    """The order, ready: its first sample is asked for."""
    order.locate(0)
    return order


def child(method: str, prefix: str, folder: str, samples: int | None) -> None:
    """Measure one method in this process and print what was found."""
    program = method.removesuffix(" hit")
    make = megatron(prefix, folder, samples) if program == "megatron-core" else None
    build = make or own(program, prefix, folder, samples)
    gc.collect()
    row: dict[str, Any] = {"base": memory("VmRSS:")}
    cpu, wall = time.process_time(), time.perf_counter()
    result = build()
    row |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    row["memory"] = memory("VmHWM:")
    if method == "stateless":
        numbers = np.random.default_rng(1).integers(0, result.samples, LOCATED)
        cpu = time.process_time()
        for start in range(0, LOCATED, 4096):
            result.locate_many(numbers[start : start + 4096])
        row["locate_us"] = (time.process_time() - cpu) / LOCATED * 1e6
        row["locate_one_us"] = one_by_one(result, numbers[:20000].tolist())
    elif method == "files":
        row["checksums"] = [checksum(np.load(path, mmap_mode="r")) for path in result[0].paths[:3]]
    else:
        row["checksums"] = [checksum(getattr(result, name)) for name in ARRAYS]
    print("row", json.dumps(row))


def one_by_one(order: Any, numbers: list[int]) -> float:
    """Microseconds for a sample where each is asked for by itself."""
    cpu = time.process_time()
    for number in numbers:
        order.locate(number)
    return (time.process_time() - cpu) / len(numbers) * 1e6


def checksum(array: Any) -> str:
    """Of dtype, shape and contents."""
    state = xxhash.xxh3_64(f"{array.dtype} {array.shape}".encode())
    for start in range(0, len(array), _CHUNK):
        state.update(np.ascontiguousarray(array[start : start + _CHUNK]).view(np.uint8).data)
    return state.hexdigest()


def memory(field: str) -> int:
    """Resident bytes of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status")


def measure(method: str, prefix: Path, folder: Path, samples: int | None) -> dict[str, Any]:
    """Run one method in a process of its own."""
    words = [sys.executable, __file__, "--child", method, str(prefix), str(folder)]
    words += [] if samples is None else [str(samples)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{method} failed:\n{done.stderr[-3000:]}")
    row: dict[str, Any] = json.loads(done.stdout.rpartition("row ")[2])
    return row


def indices(folder: Path, documents: int, epochs: list[int], runs: int) -> list[dict[str, Any]]:
    """All methods on a dataset of so many documents."""
    prefix = folder / f"d{documents}"
    tokens = make_dataset(prefix, documents)
    rows: list[dict[str, Any]] = []
    for count in epochs:
        samples = None if count == 1 else (count * tokens - 1) // SEQ_LENGTH
        for run in range(runs):
            caches = {name: folder / f"{name}-{run}" for name in ("theirs", "own", "files")}
            found: list[dict[str, Any]] = []
            for method in present(METHODS):
                place = "theirs" if method.startswith("megatron") else "own"
                place = "files" if method == "files" else place
                if method == "stateless" and count > 1:
                    continue
                row = measure(method, prefix, caches[place], samples)
                row |= {"method": method, "documents": documents, "epochs": count, "run": run}
                found.append({"benchmark": "index", "tokens": tokens, **row})
                show_row(found[-1])
            sums = {tuple(row.pop("checksums")) for row in found if "checksums" in row}
            if len(sums) != 1:
                sys.exit(f"the arrays differ: {sums}")
            for row in found:
                row["equal"] = len(found) > 1
            rows += found
            for cache in caches.values():
                shutil.rmtree(cache, ignore_errors=True)
    return rows


def blends(runs: int) -> list[dict[str, Any]]:
    """Nanoseconds for a sample of a blend, by both, taking turns in this process."""
    from tokpack.samples.megatron.orders import megatron_blend, normalise

    theirs = None
    if importlib.util.find_spec("megatron"):
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        from megatron.core.datasets import helpers_cpp as theirs
    rows = []
    for count in BLENDS:
        weights = normalise(np.random.default_rng(count).random(count) + 0.01)
        size = 20_000_000 // max(count // 4, 1)
        for run in range(runs):
            cpu = time.process_time()
            own_arrays = megatron_blend(weights, size)
            row = {"benchmark": "blend", "datasets": count, "samples": size, "run": run}
            row["ns_per_sample"] = (time.process_time() - cpu) / size * 1e9
            if theirs is not None:
                arrays = np.zeros(size, np.int16), np.zeros(size, np.int64)
                cpu = time.process_time()
                theirs.build_blending_indices(*arrays, weights, count, size, False)
                row["megatron_ns_per_sample"] = (time.process_time() - cpu) / size * 1e9
                if not all(map(np.array_equal, arrays, own_arrays)):
                    sys.exit(f"the blends of {count} datasets differ")
            rows.append(row)
    return rows


def present(methods: tuple[str, ...]) -> list[str]:
    """Without those of a program that is not here."""
    here = importlib.util.find_spec("megatron") is not None
    return [method for method in methods if here or not method.startswith("megatron")]


def show_row(row: dict[str, Any]) -> None:
    """Print a row while others run."""
    located_us = f"  locate {row['locate_us']:.2f} us" if "locate_us" in row else ""
    print(
        f"{row['documents']:>12,} x{row['epochs']}  {row['method']:<18} "
        f"cpu {row['cpu']:7.2f} s  wall {row['wall']:7.2f} s  "
        f"memory {row['memory'] / 1e9:6.3f} GB (base {row['base'] / 1e9:.3f}){located_us}",
        flush=True,
    )


def main() -> None:
    """Measure, print and append rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", default="10000000,100000000")
    parser.add_argument("--epochs", default="1")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the datasets are made")
    parser.add_argument("--blends", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--no-rows", action="store_true")
    arguments = parser.parse_args()
    if not importlib.util.find_spec("megatron"):
        print("megatron-core is not installed: it is not measured")
    rows = []
    for documents in map(int, filter(None, arguments.documents.split(","))):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            epochs = [int(count) for count in arguments.epochs.split(",")]
            rows += indices(Path(folder), documents, epochs, arguments.runs)
    found = blends(arguments.runs) if arguments.blends else []
    print()
    names = ("datasets", "samples", "ns_per_sample", "megatron_ns_per_sample")
    common.print_table(
        names,
        [
            (r["datasets"], r["samples"], r["ns_per_sample"], r.get("megatron_ns_per_sample", "-"))
            for r in found
        ],
    )
    if not arguments.no_rows:
        packages = common.versions("torch", "megatron-core")
        print(f"\nrows appended to {common.append_rows('index', [*rows, *found], packages)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        method, prefix, folder, *samples = sys.argv[2:]
        child(method, prefix, folder, int(samples[0]) if samples else None)
    else:
        main()
