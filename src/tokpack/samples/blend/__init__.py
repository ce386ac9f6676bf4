"""Weighted blends: the request, the plan, and the datasets that it opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.samples.blend.blended import BlendedDataset as BlendedDataset
    from tokpack.samples.blend.blended import Phase as Phase
    from tokpack.samples.blend.blended import blend_order as blend_order
    from tokpack.samples.blend.datasets import find_prefix as find_prefix
    from tokpack.samples.blend.file import check_saved as check_saved
    from tokpack.samples.blend.file import entries as entries
    from tokpack.samples.blend.file import is_blend_file as is_blend_file
    from tokpack.samples.blend.file import load_blend as load_blend
    from tokpack.samples.blend.file import read_values as read_values
    from tokpack.samples.blend.file import read_words as read_words
    from tokpack.samples.blend.file import save_blend as save_blend
    from tokpack.samples.blend.open import Blends as Blends
    from tokpack.samples.blend.open import CachedIndex as CachedIndex
    from tokpack.samples.blend.open import index_files as index_files
    from tokpack.samples.blend.open import open_blend as open_blend
    from tokpack.samples.blend.open import prebuild as prebuild
    from tokpack.samples.blend.plan import BlendPlan as BlendPlan
    from tokpack.samples.blend.plan import Mixture as Mixture
    from tokpack.samples.blend.plan import Portion as Portion
    from tokpack.samples.blend.plan import as_json as as_json
    from tokpack.samples.blend.plan import cap_epochs as cap_epochs
    from tokpack.samples.blend.plan import plan_blend as plan_blend
    from tokpack.samples.blend.plan import plan_of as plan_of
    from tokpack.samples.blend.spec import OPTIONS as OPTIONS
    from tokpack.samples.blend.spec import BlendSpec as BlendSpec
    from tokpack.samples.blend.spec import Entries as Entries

__getattr__, __all__ = face(
    __name__,
    {
        "blended": "BlendedDataset Phase blend_order",
        "datasets": "find_prefix",
        "file": "check_saved entries is_blend_file load_blend read_values read_words save_blend",
        "open": "Blends CachedIndex index_files open_blend prebuild",
        "plan": "BlendPlan Mixture Portion as_json cap_epochs plan_blend plan_of",
        "spec": "OPTIONS BlendSpec Entries",
    },
)
