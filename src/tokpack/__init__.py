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
from tokpack.face import face

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
    from tokpack.documents import compare_with_inputs, decontaminate, dedup, select, verify_sample
    from tokpack.encoding import EncodeOptions
    from tokpack.formats.conversion import convert
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
_lazy, _ = face(
    __name__,
    {
        "api": "commit encode encode_shard export import_model load_model plan stats status train",
        "dataset": "MMapIndexedDataset MMapIndexedDatasetBuilder Manifest",
        "dataset.adopt": "adopt",
        "dataset.merge": "merge",
        "dataset.split": "split",
        "dataset.verify": "verify",
        "documents": "compare_with_inputs decontaminate dedup select verify_sample",
        "encoding": "EncodeOptions",
        "formats": "convert",
        "samples": "BlendedDataset GPTDataset SampleIterator open_blend",
        "tokenizers": "AcceleratedTokenizer load_tokenizer",
    },
)


def __getattr__(name: str) -> Any:
    return import_module("tokpack.chat") if name == "chat" else _lazy(name)


def _draw(thing: object) -> str | None:
    from tokpack.look.page import notebook

    return notebook(thing)


display.DRAWN_BY.append(_draw)


def __dir__() -> list[str]:
    return sorted(__all__)
