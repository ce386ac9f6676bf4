"""From datasets to training samples: splits, orders, blends, and an iterator that resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.samples.batch import attention_mask as attention_mask
    from tokpack.samples.batch import flat_cu_seqlens as flat_cu_seqlens
    from tokpack.samples.blend import BlendedDataset as BlendedDataset
    from tokpack.samples.blend import Blends as Blends
    from tokpack.samples.blend import load_blend as load_blend
    from tokpack.samples.blend import open_blend as open_blend
    from tokpack.samples.blend import plan_blend as plan_blend
    from tokpack.samples.blend import save_blend as save_blend
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

# The command line needs only the settings, which load fast.
__getattr__, __all__ = face(
    __name__,
    {
        "batch": "attention_mask flat_cu_seqlens",
        "blend": "BlendedDataset Blends load_blend open_blend plan_blend save_blend",
        "fim": "FIM",
        "gather": "asked_ahead",
        "gpt": "GPTDataset",
        "iterate": "MicroBatches SampleIterator WholeBatches collate fingerprint_of",
        "settings": "parse_split split_tokens",
    },
)
