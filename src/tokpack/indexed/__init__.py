"""The ``.bin/.idx`` format of the Megatron family: read it, write it, describe it."""

from __future__ import annotations

from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.digests import FileDigest, HashingReader, digest_file, has_digest
from tokpack.indexed.format import (
    best_fitting_dtype,
    bin_path,
    idx_path,
    index_chunks,
    storage_dtype,
)
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.origins import Origin, Origins
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.table import dropped_path, table_path, table_paths
from tokpack.indexed.writer import MMapIndexedDatasetBuilder

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
