"""From documents to a dataset: plan, parts, commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.encoding.options import EncodeOptions, megatron_names
from tokpack.progress import Progress

if TYPE_CHECKING:
    from tokpack.encoding.run import encode

__all__ = ["EncodeOptions", "Progress", "encode", "megatron_names"]


def __getattr__(name: str) -> Any:  # the options alone are light, and the command line needs them
    if name != "encode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokpack.encoding.run import encode

    return encode
