"""From datasets to training samples: splits, orders, blends, and an iterator that resumes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokpack.samples.batch import attention_mask as attention_mask
    from tokpack.samples.batch import flat_cu_seqlens as flat_cu_seqlens
    from tokpack.samples.blend.blended import BlendedDataset as BlendedDataset
    from tokpack.samples.blend.file import load_blend as load_blend
    from tokpack.samples.blend.file import save_blend as save_blend
    from tokpack.samples.blend.open import Blends as Blends
    from tokpack.samples.blend.open import open_blend as open_blend
    from tokpack.samples.blend.plan import plan_blend as plan_blend
    from tokpack.samples.fim import FIM as FIM
    from tokpack.samples.gather import asked_ahead as asked_ahead
    from tokpack.samples.gpt import GPTDataset as GPTDataset
    from tokpack.samples.iterate import MicroBatches as MicroBatches
    from tokpack.samples.iterate import SampleIterator as SampleIterator
    from tokpack.samples.iterate import WholeBatches as WholeBatches
    from tokpack.samples.iterate import collate as collate
    from tokpack.samples.iterate import fingerprint_of as fingerprint_of
    from tokpack.samples.settings import parse_split as parse_split
    from tokpack.samples.settings import split_tokens as split_tokens

# The command line needs only the settings, which load fast: the rest is loaded when it is used.
_MODULES = {
    "FIM": "fim",
    "BlendedDataset": "blend.blended",
    "Blends": "blend.open",
    "GPTDataset": "gpt",
    "MicroBatches": "iterate",
    "SampleIterator": "iterate",
    "WholeBatches": "iterate",
    "asked_ahead": "gather",
    "attention_mask": "batch",
    "collate": "iterate",
    "fingerprint_of": "iterate",
    "flat_cu_seqlens": "batch",
    "load_blend": "blend.file",
    "open_blend": "blend.open",
    "parse_split": "settings",
    "plan_blend": "blend.plan",
    "save_blend": "blend.file",
    "split_tokens": "settings",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
