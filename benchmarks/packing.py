"""Packing of conversations of mixed length: seconds, fill, what is stored.

Beside it first-fit decreasing as training frameworks have it in Python: for each document, longest
first, the bins are scanned from the first one, and the lengths in a bin are added up again. That is
written here from its description, packs fewer documents, and takes four times as long for twice as
many.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt

from tokpack.samples.orders.packing import PackedOrder
from tokpack.samples.orders.rows import OrderInput


def mixed_lengths(count: int) -> npt.NDArray[np.int32]:
    """Tokens of conversations: four in five are short, some are longer than 32k; mean 2,200."""
    random = np.random.default_rng(0)
    short, long = random.lognormal(6.2, 0.9, count), random.lognormal(8.6, 0.9, count)
    lengths = np.where(random.random(count) < 0.8, short, long)
    return np.minimum(lengths, 60_000).astype(np.int32) + 2


def first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """Bins, each a list of lengths."""
    bins: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        for one in bins:
            if sum(one) + length <= capacity:
                one.append(length)
                break
        else:
            bins.append([length])
    return bins


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=float, default=4e6)
    parser.add_argument("--seq-length", type=int, default=32768)
    parser.add_argument("--in-python", default="4000,8000,16000", metavar="N,...")
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
    for count in map(int, arguments.in_python.split(",")):
        some = np.minimum(lengths[:count], length).tolist()
        begin = time.process_time()
        bins = first_fit_decreasing(some, length)
        seconds = time.process_time() - begin
        fill = sum(map(sum, bins)) / (len(bins) * length)
        print(f"first-fit in Python, {count:,} documents: {seconds:.2f} s, {fill:.3%} filled")


if __name__ == "__main__":
    main()
