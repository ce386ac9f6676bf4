"""Text in, training tokens out: a fast, safe tokenizing pipeline for pre-training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.errors import (
    FormatError,
    InputError,
    OutputError,
    RecordError,
    ResumeError,
    TokenizerError,
    TokpackError,
    UsageError,
    WorkerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokpack.indexed import Manifest, MMapIndexedDataset, MMapIndexedDatasetBuilder
    from tokpack.operations import verify
    from tokpack.progress import Progress
    from tokpack.samples import BlendedDataset, GPTDataset, open_blend
    from tokpack.tokenizers import load_tokenizer

__all__ = [
    "BlendedDataset",
    "FormatError",
    "GPTDataset",
    "InputError",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "OutputError",
    "RecordError",
    "ResumeError",
    "TokenizerError",
    "TokpackError",
    "UsageError",
    "WorkerError",
    "__version__",
    "encode",
    "load_tokenizer",
    "open_blend",
    "verify",
]

__version__ = "0.1.0"

# Loaded when first used: ``import tokpack`` stays instant.
_LAZY = {
    "BlendedDataset": "tokpack.samples",
    "GPTDataset": "tokpack.samples",
    "MMapIndexedDataset": "tokpack.indexed",
    "MMapIndexedDatasetBuilder": "tokpack.indexed",
    "Manifest": "tokpack.indexed",
    "load_tokenizer": "tokpack.tokenizers",
    "open_blend": "tokpack.samples",
    "verify": "tokpack.operations",
}


def encode(
    inputs: str | Iterable[str],
    output: str | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> list[Manifest]:
    """Turn documents into PREFIX.bin, .idx and .json; one dataset, and manifest, for each key.

    ``inputs`` are files, folders, patterns or names of Hugging Face datasets; ``output`` is PREFIX,
    by default made from their names. ``options`` are the fields of tokpack.encoding.EncodeOptions:
    tokenizer, keys, append_eod, workers, dtype, special_tokens, on_error, max_rejects, and more.
    Raises a TokpackError.
    """
    from tokpack.encoding import EncodeOptions
    from tokpack.encoding import encode as run

    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    known = EncodeOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise UsageError(f"encode has no option {name!r}; it has {', '.join(known)}")
    return run(EncodeOptions(inputs=names, output=output or "", **options), progress=progress)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tokpack' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
