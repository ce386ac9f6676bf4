"""Input documents: files of every kind, cut into parts that workers read independently."""

from tokpack.sources.base import (
    RAW_BYTES_KEPT,
    BadRecord,
    DocumentBatch,
    Documents,
    Limits,
    Part,
    Rows,
    Source,
)
from tokpack.sources.compression import COMPRESSIONS, SUFFIXES
from tokpack.sources.detect import DOCUMENT_SUFFIXES
from tokpack.sources.find import discover, fingerprints
from tokpack.sources.iterables import ArrowStream, DocumentReader, DocumentSegment, in_process
from tokpack.sources.parts import BLOCK_BYTES, LineStream, line_base, make_parts, parse, read
from tokpack.sources.records import LineBlock, count_newlines, documents_of, value_at
from tokpack.sources.streams import (
    block_checksums,
    content_checksum,
    fill,
    joined_blocks,
    open_stream,
)

__all__ = [
    "BLOCK_BYTES",
    "COMPRESSIONS",
    "DOCUMENT_SUFFIXES",
    "RAW_BYTES_KEPT",
    "SUFFIXES",
    "ArrowStream",
    "BadRecord",
    "DocumentBatch",
    "DocumentReader",
    "DocumentSegment",
    "Documents",
    "Limits",
    "LineBlock",
    "LineStream",
    "Part",
    "Rows",
    "Source",
    "block_checksums",
    "content_checksum",
    "count_newlines",
    "discover",
    "documents_of",
    "fill",
    "fingerprints",
    "in_process",
    "joined_blocks",
    "line_base",
    "make_parts",
    "open_stream",
    "parse",
    "read",
    "value_at",
]
