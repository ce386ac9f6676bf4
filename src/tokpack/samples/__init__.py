"""From datasets to training samples: splits, orders, blends, and an iterator that resumes."""

from __future__ import annotations

from tokpack.samples.batch import attention_mask
from tokpack.samples.blend.blended import BlendedDataset
from tokpack.samples.blend.file import load_blend, save_blend
from tokpack.samples.blend.open import Blends, open_blend
from tokpack.samples.blend.plan import plan_blend
from tokpack.samples.fim import FIM
from tokpack.samples.gpt import GPTDataset
from tokpack.samples.iterate import MicroBatches, SampleIterator, WholeBatches, collate
from tokpack.samples.split_string import parse_split, split_tokens

__all__ = [
    "FIM",
    "BlendedDataset",
    "Blends",
    "GPTDataset",
    "MicroBatches",
    "SampleIterator",
    "WholeBatches",
    "attention_mask",
    "collate",
    "load_blend",
    "open_blend",
    "parse_split",
    "plan_blend",
    "save_blend",
    "split_tokens",
]
