"""Samples a second from the page cache: tokpack, Megatron-core and memcpy, in one process.

    python benchmarks/samples.py [--seq-lengths 2048,8192] [--samples 16384] [--runs 5]

A dataset of lognormal documents (605 tokens on average) is made, larger than the caches of the
processor. Every method takes the same samples of it, in turns, in each of ``--runs`` rounds. Before
the clock starts, all arrays of tokpack's order "megatron" are compared with Megatron-core's.

- ``memcpy stored``: memcpy of the pieces of every sample, from where they lie in the .bin into one
  array, in a loop in C; ``memcpy delivered``: of as many bytes as a sample's int64 tokens have.
- ``gather``: the native gather alone, rows to int64 [B, S + 1]; ``locate``: the rows of samples.
- ``batch``: GPTDataset.batch, all arrays; ``getitem``: one sample after the other.
- ``loader``: torch's DataLoader with 0 and 2 workers, which start inside the clock; ``whole
  batches``: the same with WholeBatches.

What is unfair: Megatron-core gives torch tensors and shares its position ids and (cached) masks
between samples, tokpack's ``batch`` makes new numpy arrays of all; Megatron-core is asked for no
attention mask; every page of the mapped files was touched; memcpy and ``gather`` write into one
array that stays in the caches, the others into new ones.

Needs a C compiler (cc). Without megatron-core (``pip install --no-deps megatron-core==0.16.1``
beside torch) or torch their rows are left out.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import common
import numpy as np

from tokpack import GPTDataset
from tokpack.dataset.format import index_chunks
from tokpack.samples import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MEAN, SIGMA, VOCABULARY = 605, 1.1, 50257  # tokens of a document, and of their logarithms
COPY = """
#include <stddef.h>
#include <string.h>
void copy(const char **from, const ptrdiff_t *to, const size_t *bytes, size_t n, char *out) {
  for (size_t i = 0; i < n; ++i) memcpy(out + to[i], from[i], bytes[i]);
}
"""


class Memcpy:
    """memcpy of many pieces, in a loop in C."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "copy.c", folder / "copy.so"
        source.write_text(COPY)
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
        self._copy = ctypes.CDLL(str(library)).copy
        self._copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p]

    def __call__(self, pieces: tuple[np.ndarray, np.ndarray, np.ndarray], out: np.ndarray) -> None:
        """Copy bytes ``pieces[2]`` from addresses ``pieces[0]`` to offsets ``pieces[1]``."""
        addresses = [array.ctypes.data for array in pieces]
        self._copy(*addresses, len(pieces[0]), out.ctypes.data)


@dataclass
class Bench:
    """One sequence length: what is measured, and on what."""

    seq_length: int
    samples: int
    batch: int
    peer: Any

    def methods(self, prefix: Path, memcpy: Memcpy) -> dict[str, Callable[[], Any]]:
        """By name, functions that take all samples once and return a checksum, or None."""
        numbers = np.arange(self.samples)
        groups = [numbers[i : i + self.batch] for i in range(0, self.samples, self.batch)]
        found: dict[str, Callable[[], Any]] = {}
        for order in ("megatron", "stateless"):
            dataset = GPTDataset(prefix, self.seq_length, order=order, samples=self.samples)
            touch(dataset.dataset.tokens)
            if order == "megatron":
                self.compare(dataset)
                found |= self.copies(dataset, groups, memcpy)
            found |= self.own(dataset, groups, order)
        if self.peer is not None:
            found["megatron-core getitem"] = lambda: drain(map(self.peer.__getitem__, numbers))
            found |= self.loaders("megatron-core", self.peer)
        return found

    def own(self, dataset: GPTDataset, groups: list[Any], order: str) -> dict[str, Any]:
        """What tokpack does, in parts and as a whole."""
        located = [dataset._order.locate_many(group) for group in groups]
        places = np.arange(self.batch)
        text = dataset.empty(self.batch).text

        def gather() -> None:
            for rows, counts in located:
                dataset._gatherer.fill(text, rows, counts, places[: len(counts)])

        return {
            f"{order} locate": lambda: drain(map(dataset._order.locate_many, groups)),
            f"{order} gather": gather,
            f"{order} batch": lambda: drain(map(dataset.batch, groups)),
            f"{order} getitem": lambda: drain(dataset[k] for k in range(self.samples)),
            **self.loaders(order, dataset),
        }

    def loaders(self, name: str, dataset: Any) -> dict[str, Callable[[], Any]]:
        """torch's DataLoader; none without torch."""
        if importlib.util.find_spec("torch") is None:
            return {}
        batches = [list(range(i, i + self.batch)) for i in range(0, self.samples, self.batch)]
        found = {}
        for workers in (0, 2):
            samples = {"dataset": dataset, "batch_sampler": batches, "num_workers": workers}
            found[f"{name} loader, {workers} workers"] = partial(drain_loader, **samples)
            if hasattr(dataset, "batch"):
                whole = WholeBatches(dataset)
                options = {"sampler": batches, "batch_size": None, "num_workers": workers}
                found[f"{name} whole batches, {workers} workers"] = partial(
                    drain_loader, dataset=whole, **options
                )
        return found

    def copies(self, dataset: GPTDataset, groups: list[Any], memcpy: Memcpy) -> dict[str, Any]:
        """memcpy of the same bytes at the same places."""
        data = dataset.dataset
        base, item = data.tokens.ctypes.data, data.dtype.itemsize
        stored, delivered = [], []
        wide = 8 * (self.seq_length + 1)
        for group in groups:
            rows, counts = dataset._order.locate_many(group)
            begins = base + data.pointers[rows[:, 0]] + rows[:, 1] * item
            sizes = rows[:, 2] * item
            stored.append((begins, np.cumsum(sizes) - sizes, sizes))
            first = np.minimum(begins[np.cumsum(counts) - counts], base + data.tokens.nbytes - wide)
            offsets = np.arange(len(group)) * wide
            delivered.append((first, offsets, np.full(len(group), wide)))
        out = np.empty(wide * self.batch, np.uint8)
        return {
            "memcpy stored": lambda: drain(memcpy(pieces, out) for pieces in stored),
            "memcpy delivered": lambda: drain(memcpy(pieces, out) for pieces in delivered),
        }

    def compare(self, dataset: GPTDataset) -> None:
        """Stop unless tokpack's samples are Megatron's."""
        if self.peer is None:
            return
        for begin in range(0, self.samples, self.batch):
            numbers = range(begin, min(begin + self.batch, self.samples))
            together = dataset.batch(numbers)
            for place, number in enumerate(numbers):
                expected, single = self.peer[number], dataset[number]
                for name, tensor in expected.items():
                    for values in (single[name], together[name][place]):
                        if not np.array_equal(values, tensor.numpy()):
                            sys.exit(f"sample {number} differs from Megatron-core's in {name}")


def drain(values: Iterable[Any]) -> None:
    """Take everything and keep nothing."""
    for _ in values:
        pass


def drain_loader(**options: Any) -> None:
    """Take everything out of a DataLoader."""
    from torch.utils.data import DataLoader

    drain(DataLoader(**options))


def touch(array: np.ndarray) -> None:
    """Map every page."""
    int(array[:: 1024 // array.itemsize].sum(dtype=np.int64))


def write_dataset(prefix: Path, tokens: int) -> int:
    """A dataset of random documents; returns their number."""
    random = np.random.default_rng(1)
    count = max(tokens // MEAN, 1)
    lengths = random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, count).astype(np.int32) + 1
    with open(f"{prefix}.bin", "wb") as file:
        for left in range(int(lengths.sum(dtype=np.int64)), 0, -(1 << 24)):
            ids = random.integers(0, VOCABULARY, min(left, 1 << 24), dtype=np.uint16)
            file.write(ids.tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.writelines(index_chunks(np.uint16, lengths, np.arange(count + 1)))
    return count


def open_megatron(prefix: Path, documents: int, seq_length: int, samples: int, cache: Path) -> Any:
    """Megatron-core's GPTDataset of the same samples; None where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core.datasets.gpt_dataset import GPTDataset as Theirs
            from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
            from megatron.core.datasets.indexed_dataset import IndexedDataset
            from megatron.core.datasets.utils import Split
    except ImportError as error:
        print(f"megatron-core: not measured ({error})", file=sys.stderr)
        return None
    logging.disable(logging.WARNING)

    class Tokenizer:
        """What GPTDataset asks of a tokenizer; its pad is no token of the dataset."""

        vocab_size, eod, pad = VOCABULARY + 2, VOCABULARY, VOCABULARY + 1
        unique_identifiers = {"class": "none"}  # noqa: RUF012

    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=seq_length,
        split="1",
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    data = IndexedDataset(str(prefix))
    indices = np.arange(documents, dtype=np.int32)
    theirs = Theirs(data, str(prefix), indices, samples, Split.train, config)
    touch(np.frombuffer(data.bin_reader._bin_buffer, np.uint16))
    return theirs


def measured(bench: Bench, prefix: Path, memcpy: Memcpy, runs: int) -> list[common.Row]:
    """Every method in every round."""
    methods = bench.methods(prefix, memcpy)
    sizes = {name: getattr(bench, name) for name in ("seq_length", "batch", "samples")}
    rows = []
    for run in range(-1, runs):  # the first one warms up
        for name, method in methods.items():
            began = time.perf_counter()
            method()
            row = {"seconds": round(time.perf_counter() - began, 6), **sizes, "run": run}
            rows.append({"benchmark": "samples", "method": name, **row})
    equal = bench.peer is not None
    return [{**row, "equal": equal} for row in rows if row["run"] >= 0]


def show(rows: list[common.Row]) -> None:
    """Microseconds a sample, and speeds relative to memcpy and Megatron-core."""
    others = ("memcpy stored", "memcpy delivered", "megatron-core getitem")
    for (length, batch), same in common.grouped(rows, "seq_length", "batch").items():
        seconds = {
            name: common.median(runs, "seconds")
            for (name,), runs in common.grouped(same, "method").items()
        }
        print(f"\n{length} tokens, batches of {batch}")
        columns = ["method", "us a sample", "x memcpy stored", "x delivered", "x megatron-core"]
        lines = [
            [
                name,
                round(took / same[0]["samples"] * 1e6, 2),
                *(common.ratio(seconds.get(other, "-"), took, 2) for other in others),
            ]
            for name, took in seconds.items()
        ]
        common.print_table(columns, lines)


def main() -> None:
    """Measure, print tables, append rows."""
    parser = common.parser(__doc__, data=False)
    parser.add_argument("--seq-lengths", default="2048,8192", metavar="S,...")
    parser.add_argument("--samples", type=int, default=16384, help="at 2048 tokens; less at more")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=float, default=6e8, help="of the dataset, 2 bytes each")
    args = parser.parse_args()
    rows = []
    with common.work_folder(args.work) as folder:
        documents = write_dataset(folder / "data", int(args.tokens))
        memcpy = Memcpy(folder)
        for length in map(int, args.seq_lengths.split(",")):
            samples = max(args.samples * 2048 // length, args.batch)
            samples -= samples % args.batch
            peer = open_megatron(folder / "data", documents, length, samples, folder / "cache")
            bench = Bench(length, samples, args.batch, peer)
            rows += measured(bench, folder / "data", memcpy, args.runs)
    show(rows)
    if not args.no_save:
        common.append_rows("samples", rows, common.versions("torch", "megatron-core"))


if __name__ == "__main__":
    main()
