"""From documents to a dataset: plan, parts, commit."""

from __future__ import annotations

from tokpack.encoding.options import EncodeOptions, megatron_names
from tokpack.encoding.run import encode
from tokpack.progress import Progress

__all__ = ["EncodeOptions", "Progress", "encode", "megatron_names"]
