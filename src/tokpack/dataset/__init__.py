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
    check_tokenizers,
    digest_file,
    has_digest,
    manifest_path,
)
from tokpack.dataset.shards import (
    FINGERPRINT_VERSION,
    Shard,
    open_shard,
    piece_prefix,
    shard_fingerprint,
)
from tokpack.dataset.table import Origin, Origins, dropped_path, table_path, table_paths
from tokpack.dataset.track import (
    are_trained,
    own_tracks,
    read_tracks,
    track_path,
    trained_ends,
    trained_in_files,
)
from tokpack.dataset.view import (
    ViewIndex,
    ViewTokens,
    are_pairs,
    selection_chunks,
    selection_dtype,
    selection_path,
)
from tokpack.dataset.writer import MMapIndexedDatasetBuilder, NewDataset

__all__ = [
    "FINGERPRINT_VERSION",
    "FileDigest",
    "HashingReader",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Manifest",
    "NewDataset",
    "Origin",
    "Origins",
    "Shard",
    "ViewIndex",
    "ViewTokens",
    "are_pairs",
    "are_trained",
    "best_fitting_dtype",
    "bin_path",
    "check_tokenizers",
    "digest_file",
    "dropped_path",
    "has_digest",
    "idx_path",
    "index_chunks",
    "manifest_path",
    "open_shard",
    "own_tracks",
    "piece_prefix",
    "prefix_of",
    "read_tracks",
    "selection_chunks",
    "selection_dtype",
    "selection_path",
    "shard_fingerprint",
    "storage_dtype",
    "table_path",
    "table_paths",
    "track_path",
    "trained_ends",
    "trained_in_files",
]
