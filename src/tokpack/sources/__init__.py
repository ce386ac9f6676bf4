"""Where documents come from: files of every kind, cut into parts that workers read alone."""

from tokpack.sources.base import FORMATS, BadRecord, DocumentBatch, Documents, Part, Source
from tokpack.sources.blocks import block_checksums, content_checksum, joined_blocks
from tokpack.sources.discover import discover
from tokpack.sources.in_process import in_process
from tokpack.sources.iterables import DocumentSegment
from tokpack.sources.lines import LineBlock, count_newlines
from tokpack.sources.looks import fingerprints
from tokpack.sources.parts import make_parts
from tokpack.sources.read import LineStream, line_base, parse, read

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
