"""Text in, training tokens out: a fast, safe tokenizing pipeline for pre-training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack.errors import (
    BusyError,
    FormatError,
    InputError,
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
    from tokpack.tokenizers.accelerated import AcceleratedTokenizer, patch_transformers

__all__ = [
    "AcceleratedTokenizer",
    "BlendedDataset",
    "BusyError",
    "EncodeOptions",
    "FormatError",
    "GPTDataset",
    "InputError",
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
    "patch_transformers",
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
    name: module
    for module, names in {
        "tokpack.api": "commit encode encode_shard export import_model "
        "load_model plan stats status train",
        "tokpack.documents": "compare_with_inputs decontaminate dedup select verify_sample",
        "tokpack.encoding": "EncodeOptions",
        "tokpack.indexed": "MMapIndexedDataset MMapIndexedDatasetBuilder Manifest",
        "tokpack.operations": "adopt convert merge split verify",
        "tokpack.samples": "BlendedDataset GPTDataset SampleIterator open_blend",
        "tokpack.tokenizers": "load_tokenizer",
        "tokpack.tokenizers.accelerated": "AcceleratedTokenizer patch_transformers",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name == "chat":  # tokpack.chat.render
        return import_module("tokpack.chat")
    if name not in _LAZY:
        raise AttributeError(f"module 'tokpack' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
