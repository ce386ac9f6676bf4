"""The ``.bin/.idx`` format of the Megatron family: read it, write it, describe it."""

from __future__ import annotations

from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import (
    best_fitting_dtype,
    bin_path,
    idx_path,
    index_chunks,
    storage_dtype,
)
from tokpack.indexed.manifest import (
    FileDigest,
    HashingReader,
    Manifest,
    digest_file,
    has_digest,
    manifest_path,
)
from tokpack.indexed.origins import Origin, Origins
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.trace import Trace, is_trace, runs_of, trace_chunks, trace_path
from tokpack.indexed.writer import MMapIndexedDatasetBuilder

__all__ = [
    "FileDigest",
    "HashingReader",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "Origin",
    "Origins",
    "Trace",
    "best_fitting_dtype",
    "bin_path",
    "digest_file",
    "has_digest",
    "idx_path",
    "index_chunks",
    "is_trace",
    "manifest_path",
    "prefix_of",
    "runs_of",
    "storage_dtype",
    "trace_chunks",
    "trace_path",
]
