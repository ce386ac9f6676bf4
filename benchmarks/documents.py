"""Signatures and searched tokens a second of one core, on the documents of datasets.

    python benchmarks/documents.py PREFIX... [--runs 7]

Of each dataset, in memory, as uint16 and as int32: signatures of ``dedup --near`` with its
defaults, then a search for 13-grams as of ``decontaminate``, for about ten thousand and for a
million of them. These are runs of 100 tokens of the dataset itself, reversed, so that they have its
frequencies and hardly a match. Processor time, the best of ``--runs``.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

import measure
import numpy as np

from tokpack import _core
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.lengths import document_ends

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = 100  # tokens of an evaluation text


def main() -> None:
    """Print a line for each dataset, dtype and operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prefixes", nargs="+")
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    for prefix in arguments.prefixes:
        dataset = MMapIndexedDataset(prefix)
        ends = document_ends(dataset.sizes, dataset.doc_idx)
        spans = np.stack([ends[:-1], ends[1:]], axis=1)
        ids = dataset.tokens.astype(np.uint32)
        print(f"{prefix}: {len(spans):,} documents of {len(ids) // len(spans):,} tokens")
        searched = {}
        for count in (10_000, 1_000_000):
            texts = ids[: min(count, len(ids)) // TEXT * TEXT][::-1].copy()
            text_ends = np.arange(TEXT, len(texts) + 1, TEXT)
            searched[count] = _core.Phrases(texts, text_ends, 13, 8)
        for tokens in (ids.astype(np.uint16), ids):
            work: dict[str, Callable[[], object]] = {
                "signatures": partial(_core.band_hashes, tokens, spans, 5, 14, 8)
            }
            for phrases in searched.values():
                name = f"search for {len(phrases.phrases):,}"
                work[name] = partial(phrases.find, tokens, spans)
            for name, one in work.items():
                seconds, _ = measure.best(one, arguments.runs)
                rate = f"{len(ids) / seconds / 1e6:,.0f} Mtok/s"
                print(f"  {tokens.dtype} {name}: {rate}, {tokens.nbytes / seconds / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
