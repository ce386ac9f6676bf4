"""Text in, training tokens out: a fast, safe tokenizing pipeline for pre-training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.errors import (
    BusyError,
    FormatError,
    InputError,
    LimitError,
    OutputError,
    RecordError,
    ResumeError,
    StoreError,
    TokenizerError,
    TokpackError,
    TrainingError,
    UnreachableError,
    UsageError,
    WorkerError,
)

if TYPE_CHECKING:
    from tokpack.api import (
        commit,
        encode,
        encode_shard,
        export,
        import_model,
        load_model,
        plan,
        stats,
        status,
        train,
    )
    from tokpack.documents.conservation import compare_with_inputs
    from tokpack.documents.decontaminate import decontaminate
    from tokpack.documents.dedup import dedup
    from tokpack.documents.sampled import verify_sample
    from tokpack.documents.select import select
    from tokpack.encoding import EncodeOptions
    from tokpack.indexed import Manifest, MMapIndexedDataset, MMapIndexedDatasetBuilder
    from tokpack.operations.adopt import adopt
    from tokpack.operations.convert import convert
    from tokpack.operations.merge import merge
    from tokpack.operations.split import split
    from tokpack.operations.verify import verify
    from tokpack.samples import BlendedDataset, GPTDataset, SampleIterator, open_blend
    from tokpack.tokenizers import load_tokenizer
    from tokpack.tokenizers.accelerated import AcceleratedTokenizer

__all__ = [
    "AcceleratedTokenizer",
    "BlendedDataset",
    "BusyError",
    "EncodeOptions",
    "FormatError",
    "GPTDataset",
    "InputError",
    "LimitError",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "OutputError",
    "RecordError",
    "ResumeError",
    "SampleIterator",
    "StoreError",
    "TokenizerError",
    "TokpackError",
    "TrainingError",
    "UnreachableError",
    "UsageError",
    "WorkerError",
    "__version__",
    "adopt",
    "commit",
    "compare_with_inputs",
    "convert",
    "decontaminate",
    "dedup",
    "encode",
    "encode_shard",
    "export",
    "import_model",
    "load_model",
    "load_tokenizer",
    "merge",
    "open_blend",
    "plan",
    "select",
    "split",
    "stats",
    "status",
    "train",
    "verify",
    "verify_sample",
]

__version__ = "0.1.0"

# Loaded when first used: ``import tokpack`` stays instant.
_LAZY = {
    "AcceleratedTokenizer": "tokpack.tokenizers.accelerated",
    "BlendedDataset": "tokpack.samples",
    "EncodeOptions": "tokpack.encoding",
    "GPTDataset": "tokpack.samples",
    "MMapIndexedDataset": "tokpack.indexed",
    "MMapIndexedDatasetBuilder": "tokpack.indexed",
    "Manifest": "tokpack.indexed",
    "SampleIterator": "tokpack.samples",
    "adopt": "tokpack.operations",
    "commit": "tokpack.api",
    "compare_with_inputs": "tokpack.documents",
    "convert": "tokpack.operations",
    "decontaminate": "tokpack.documents",
    "dedup": "tokpack.documents",
    "encode": "tokpack.api",
    "encode_shard": "tokpack.api",
    "export": "tokpack.api",
    "import_model": "tokpack.api",
    "load_model": "tokpack.api",
    "load_tokenizer": "tokpack.tokenizers",
    "merge": "tokpack.operations",
    "open_blend": "tokpack.samples",
    "plan": "tokpack.api",
    "select": "tokpack.documents",
    "split": "tokpack.operations",
    "stats": "tokpack.api",
    "status": "tokpack.api",
    "train": "tokpack.api",
    "verify": "tokpack.operations",
    "verify_sample": "tokpack.documents",
}


def __getattr__(name: str) -> Any:
    if name == "chat":  # tokpack.chat.render
        return import_module("tokpack.chat")
    if name not in _LAZY:
        raise AttributeError(f"module 'tokpack' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
