"""How fast documents are packed, how full the samples are, and what is stored.

Lengths are generated: lognormal, 605 tokens in the mean, as those of web pages are. A row is one
packing of all documents in one thread, whose samples are then all located: their pieces must have
as many tokens as were counted, and no token of a document may be missing but those left out.

    python benchmarks/packing.py --documents 10000000
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import common
import numpy as np
import numpy.typing as npt

from tokpack.samples.orders.epochs import EpochData
from tokpack.samples.orders.packing import PackedOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

MEAN, SIGMA, LONGEST = 605, 1.1, 2_000_000
_AT_ONCE = 4096  # samples located in one call, as a large batch is


def make_lengths(documents: int) -> npt.NDArray[np.int32]:
    """Tokens of each document."""
    draw = np.random.default_rng(1)
    values = draw.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, documents)
    return np.clip(values, 1, LONGEST).astype(np.int32)


def located(order: PackedOrder) -> tuple[int, int, float]:
    """Pieces and tokens of all samples of an epoch, and the seconds to find them."""
    pieces = tokens = 0
    began = time.process_time()
    for start in range(0, order.samples, _AT_ONCE):
        rows, _ = order.locate_many(np.arange(start, min(start + _AT_ONCE, order.samples)))
        pieces += len(rows)
        tokens += int(rows[:, 2].sum())
    return pieces, tokens, time.process_time() - began


def measure(documents: int, seq_lengths: list[int], runs: int) -> Iterator[dict[str, Any]]:
    """Rows, the runs of all sequence lengths in turn."""
    lengths = make_lengths(documents)
    for run in range(runs):
        for seq_length in seq_lengths:
            began = time.process_time()
            order = PackedOrder(EpochData(lengths, 0, documents, seq_length, 1, run, 1))
            seconds = time.process_time() - began
            stats = order.stats
            pieces, tokens, locating = located(order)
            if (pieces, tokens) != (stats.pieces, stats.placed):
                sys.exit(f"{pieces} pieces and {tokens} tokens were found, expected {stats}")
            yield {
                "benchmark": "packing",
                "documents": documents,
                "tokens": stats.tokens,
                "seq_length": seq_length,
                "run": run,
                "cpu": seconds,
                "ns_per_document": seconds / documents * 1e9,
                "fill": stats.fill,
                "samples": stats.samples,
                "pieces": stats.pieces,
                "left_out": stats.left_out,
                "bytes_per_document": order.stored_bytes / documents,
                "locate_us": locating / stats.samples * 1e6,
            }


def main() -> None:
    """Measure, print a table, append rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000, metavar="N")
    parser.add_argument(
        "--seq-length", type=int, nargs="+", default=[2048, 8192, 32768], metavar="S"
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--no-rows", action="store_true", help="append nothing to results")
    given = parser.parse_args()
    rows = list(measure(given.documents, given.seq_length, given.runs))
    columns = ("seq_length", "ns_per_document", "fill", "bytes_per_document", "locate_us")
    by_length = {s: [row for row in rows if row["seq_length"] == s] for s in given.seq_length}
    common.print_table(
        ("S", "ns a document", "fill", "bytes a document", "us to locate a sample"),
        (
            (s, *(f"{np.median([row[c] for row in found]):.5g}" for c in columns[1:]))
            for s, found in by_length.items()
        ),
    )
    if not given.no_rows:
        print(f"\nrows appended to {common.append_rows('packing', rows, common.versions())}")


if __name__ == "__main__":
    main()
