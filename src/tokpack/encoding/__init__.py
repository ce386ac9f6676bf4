"""From documents to a dataset: plan, parts, commit."""

from __future__ import annotations

from tokpack.encoding.options import EncodeOptions, megatron_names
from tokpack.encoding.progress import Progress
from tokpack.encoding.run import encode

__all__ = ["EncodeOptions", "Progress", "encode", "megatron_names"]
