"""From datasets to training samples: splits, orders, blends, and an iterator that resumes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokpack.samples.batch import attention_mask
    from tokpack.samples.blend.blended import BlendedDataset
    from tokpack.samples.blend.file import load_blend, save_blend
    from tokpack.samples.blend.open import Blends, open_blend
    from tokpack.samples.blend.plan import plan_blend
    from tokpack.samples.fim import FIM
    from tokpack.samples.gpt import GPTDataset
    from tokpack.samples.iterate import MicroBatches, SampleIterator, WholeBatches, collate
    from tokpack.samples.split_string import parse_split, split_tokens

# The settings alone are light, and the command line needs them: the rest is loaded when it is used.
_MODULES = {
    "FIM": "fim",
    "BlendedDataset": "blend.blended",
    "Blends": "blend.open",
    "GPTDataset": "gpt",
    "MicroBatches": "iterate",
    "SampleIterator": "iterate",
    "WholeBatches": "iterate",
    "attention_mask": "batch",
    "collate": "iterate",
    "load_blend": "blend.file",
    "open_blend": "blend.open",
    "parse_split": "split_string",
    "plan_blend": "blend.plan",
    "save_blend": "blend.file",
    "split_tokens": "split_string",
}
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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
