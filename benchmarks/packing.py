"""Packing of conversations of mixed length: seconds, fill, what is stored.

With ``--bridge src/megatron/bridge/data/packing/algorithms.py`` of a clone of Megatron-Bridge, its
first-fit decreasing beside it, which finds the first bin by a tree of what is free, in Python.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from tokpack.samples.orders.packing import PackedOrder
from tokpack.samples.orders.rows import OrderInput

if TYPE_CHECKING:
    from collections.abc import Callable


def mixed_lengths(count: int) -> npt.NDArray[np.int32]:
    """Tokens of conversations: four in five are short, some are longer than 32k; mean 2,200."""
    random = np.random.default_rng(0)
    short, long = random.lognormal(6.2, 0.9, count), random.lognormal(8.6, 0.9, count)
    lengths = np.where(random.random(count) < 0.8, short, long)
    return np.minimum(lengths, 60_000).astype(np.int32) + 2


def bridge_of(path: Path) -> Callable[[list[int], int], list[list[int]]]:
    """The function of Megatron-Bridge that packs, of its file alone."""
    reader = "megatron.bridge.utils.safe_pickle"
    with patch.dict(sys.modules, {reader: types.SimpleNamespace(safe_load_npy=None)}):
        space = runpy.run_path(str(path))
    found: Callable[[list[int], int], list[list[int]]] = space["first_fit_decreasing"]
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=float, default=4e6)
    parser.add_argument("--seq-length", type=int, default=32768)
    parser.add_argument("--bridge", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    length, lengths = arguments.seq_length, mixed_lengths(int(arguments.documents))
    print(f"{len(lengths):,} documents, {np.sum(lengths, dtype=np.int64):,} tokens")
    for multiple in (1, 16):
        data = OrderInput(lengths, 0, len(lengths), length, 1, 7, 1, multiple=multiple)
        begin = time.process_time()
        order = PackedOrder(data, "best_fit")
        seconds = time.process_time() - begin
        print(
            f"best_fit, documents at multiples of {multiple}: {seconds:.2f} s, "
            f"{seconds / len(lengths) * 1e9:.0f} ns a document, {order.stats.fill:.3%} filled, "
            f"{order.stored_bytes / 1e6:.1f} MB stored"
        )
    if arguments.bridge:
        pack, asked = bridge_of(arguments.bridge), np.minimum(lengths, length).tolist()
        begin = time.process_time()
        bins = pack(asked, length)
        seconds = time.process_time() - begin
        fill = sum(asked) / (len(bins) * length)
        each = seconds / len(lengths) * 1e9
        print(f"Megatron-Bridge: {seconds:.2f} s, {each:.0f} ns a document, {fill:.3%} filled")


if __name__ == "__main__":
    main()
