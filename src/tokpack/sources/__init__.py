"""Input documents: files of every kind, cut into parts that workers read on their own."""

from tokpack.sources.base import FORMATS, BadRecord, DocumentBatch, Documents, Part, Source
from tokpack.sources.find import discover, fingerprints
from tokpack.sources.iterables import DocumentSegment, in_process
from tokpack.sources.parts import LineStream, line_base, make_parts, parse, read
from tokpack.sources.records import LineBlock, count_newlines
from tokpack.sources.streams import block_checksums, content_checksum, joined_blocks

__all__ = [
    "FORMATS",
    "BadRecord",
    "DocumentBatch",
    "DocumentSegment",
    "Documents",
    "LineBlock",
    "LineStream",
    "Part",
    "Source",
    "block_checksums",
    "content_checksum",
    "count_newlines",
    "discover",
    "fingerprints",
    "in_process",
    "joined_blocks",
    "line_base",
    "make_parts",
    "parse",
    "read",
]
