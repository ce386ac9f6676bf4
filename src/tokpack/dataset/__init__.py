"""Datasets in the ``.bin/.idx`` format of the Megatron family: read, written, joined, verified."""

from __future__ import annotations

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import (
    best_fitting_dtype,
    bin_path,
    idx_path,
    index_chunks,
    prefix_of,
    storage_dtype,
)
from tokpack.dataset.manifest import (
    FileDigest,
    HashingReader,
    Manifest,
    digest_file,
    has_digest,
    manifest_path,
)
from tokpack.dataset.table import Origin, Origins, dropped_path, table_path, table_paths
from tokpack.dataset.writer import MMapIndexedDatasetBuilder

__all__ = [
    "FileDigest",
    "HashingReader",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "Origin",
    "Origins",
    "best_fitting_dtype",
    "bin_path",
    "digest_file",
    "dropped_path",
    "has_digest",
    "idx_path",
    "index_chunks",
    "manifest_path",
    "prefix_of",
    "storage_dtype",
    "table_path",
    "table_paths",
]
