"""From datasets to training samples: splits, orders, blends, and an iterator that resumes."""

from __future__ import annotations

from tokpack.samples.blended import BlendedDataset
from tokpack.samples.gpt import GPTDataset
from tokpack.samples.iterate import MicroBatches, SampleIterator, collate
from tokpack.samples.split import parse_split, split_tokens

__all__ = [
    "BlendedDataset",
    "GPTDataset",
    "MicroBatches",
    "SampleIterator",
    "collate",
    "parse_split",
    "split_tokens",
]
