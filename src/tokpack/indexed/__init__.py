"""The ``.bin/.idx`` format of the Megatron family: read it, write it, describe it."""

from __future__ import annotations

from tokpack.indexed.format import best_fitting_dtype, bin_path, idx_path, storage_dtype
from tokpack.indexed.manifest import (
    FileDigest,
    Manifest,
    digest_file,
    manifest_path,
)
from tokpack.indexed.origins import Origin, Origins
from tokpack.indexed.reader import MMapIndexedDataset
from tokpack.indexed.trace import Trace, is_trace, runs_of, trace_chunks, trace_path
from tokpack.indexed.writer import MMapIndexedDatasetBuilder, write_index

__all__ = [
    "FileDigest",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "Origin",
    "Origins",
    "Trace",
    "best_fitting_dtype",
    "bin_path",
    "digest_file",
    "idx_path",
    "is_trace",
    "manifest_path",
    "runs_of",
    "storage_dtype",
    "trace_chunks",
    "trace_path",
    "write_index",
]
