"""Datasets in the ``.bin/.idx`` format of the Megatron family: read, written, joined, verified."""

from __future__ import annotations

from tokpack.dataset.dataset import MMapIndexedDataset as MMapIndexedDataset
from tokpack.dataset.format import best_fitting_dtype as best_fitting_dtype
from tokpack.dataset.format import bin_path as bin_path
from tokpack.dataset.format import idx_path as idx_path
from tokpack.dataset.format import index_chunks as index_chunks
from tokpack.dataset.format import prefix_of as prefix_of
from tokpack.dataset.format import storage_dtype as storage_dtype
from tokpack.dataset.manifest import FileDigest as FileDigest
from tokpack.dataset.manifest import HashingReader as HashingReader
from tokpack.dataset.manifest import Manifest as Manifest
from tokpack.dataset.manifest import check_tokenizers as check_tokenizers
from tokpack.dataset.manifest import digest_file as digest_file
from tokpack.dataset.manifest import has_digest as has_digest
from tokpack.dataset.manifest import manifest_path as manifest_path
from tokpack.dataset.shards import FINGERPRINT_VERSION as FINGERPRINT_VERSION
from tokpack.dataset.shards import Shard as Shard
from tokpack.dataset.shards import open_shard as open_shard
from tokpack.dataset.shards import piece_prefix as piece_prefix
from tokpack.dataset.shards import shard_fingerprint as shard_fingerprint
from tokpack.dataset.table import Origin as Origin
from tokpack.dataset.table import Origins as Origins
from tokpack.dataset.table import dropped_path as dropped_path
from tokpack.dataset.table import table_path as table_path
from tokpack.dataset.table import table_paths as table_paths
from tokpack.dataset.track import are_trained as are_trained
from tokpack.dataset.track import own_tracks as own_tracks
from tokpack.dataset.track import read_tracks as read_tracks
from tokpack.dataset.track import track_path as track_path
from tokpack.dataset.track import trained_ends as trained_ends
from tokpack.dataset.track import trained_in_files as trained_in_files
from tokpack.dataset.view import ViewIndex as ViewIndex
from tokpack.dataset.view import ViewTokens as ViewTokens
from tokpack.dataset.view import are_pairs as are_pairs
from tokpack.dataset.view import selection_chunks as selection_chunks
from tokpack.dataset.view import selection_dtype as selection_dtype
from tokpack.dataset.view import selection_path as selection_path
from tokpack.dataset.writer import MMapIndexedDatasetBuilder as MMapIndexedDatasetBuilder
from tokpack.dataset.writer import NewDataset as NewDataset
