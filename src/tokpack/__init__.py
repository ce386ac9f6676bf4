"""Text in, training tokens out: a fast, safe tokenizing pipeline for pre-training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokpack import display
from tokpack.errors import (
    BusyError,
    FormatError,
    InputError,
    LimitError,
    NoDatasetError,
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
    from tokpack.dataset import Manifest, MMapIndexedDataset, MMapIndexedDatasetBuilder
    from tokpack.dataset.adopt import adopt
    from tokpack.dataset.merge import merge
    from tokpack.dataset.split import split
    from tokpack.dataset.verify import verify
    from tokpack.documents.conservation import compare_with_inputs, verify_sample
    from tokpack.documents.decontaminate import decontaminate
    from tokpack.documents.dedup import dedup
    from tokpack.documents.select import select
    from tokpack.encoding import EncodeOptions
    from tokpack.formats.convert import convert
    from tokpack.samples import BlendedDataset, GPTDataset, SampleIterator, open_blend
    from tokpack.tokenizers import AcceleratedTokenizer, load_tokenizer

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
    "NoDatasetError",
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

# Modules are loaded at their first use, so that ``import tokpack`` takes no time.
_LAZY = {
    "AcceleratedTokenizer": "tokpack.tokenizers",
    "BlendedDataset": "tokpack.samples",
    "EncodeOptions": "tokpack.encoding",
    "GPTDataset": "tokpack.samples",
    "MMapIndexedDataset": "tokpack.dataset",
    "MMapIndexedDatasetBuilder": "tokpack.dataset",
    "Manifest": "tokpack.dataset",
    "SampleIterator": "tokpack.samples",
    "adopt": "tokpack.dataset.adopt",
    "commit": "tokpack.api",
    "compare_with_inputs": "tokpack.documents",
    "convert": "tokpack.formats",
    "decontaminate": "tokpack.documents",
    "dedup": "tokpack.documents",
    "encode": "tokpack.api",
    "encode_shard": "tokpack.api",
    "export": "tokpack.api",
    "import_model": "tokpack.api",
    "load_model": "tokpack.api",
    "load_tokenizer": "tokpack.tokenizers",
    "merge": "tokpack.dataset.merge",
    "open_blend": "tokpack.samples",
    "plan": "tokpack.api",
    "select": "tokpack.documents",
    "split": "tokpack.dataset.split",
    "stats": "tokpack.api",
    "status": "tokpack.api",
    "train": "tokpack.api",
    "verify": "tokpack.dataset.verify",
    "verify_sample": "tokpack.documents",
}


def __getattr__(name: str) -> Any:
    if name == "chat":  # tokpack.chat.render
        return import_module("tokpack.chat")
    if name not in _LAZY:
        raise AttributeError(f"module 'tokpack' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def _draw(thing: object) -> str | None:
    from tokpack.look.page import notebook

    return notebook(thing)


display.DRAWN_BY.append(_draw)


def __dir__() -> list[str]:
    return sorted(__all__)
