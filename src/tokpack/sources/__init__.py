"""Where documents come from: files of every kind, cut into parts that workers read alone."""

from tokpack.sources.base import FORMATS, BadRecord, Batch, Documents, Part, Source
from tokpack.sources.blocks import block_checksums, content_checksum, joined_blocks
from tokpack.sources.discover import discover
from tokpack.sources.parts import make_parts
from tokpack.sources.read import line_base, read

__all__ = [
    "FORMATS",
    "BadRecord",
    "Batch",
    "Documents",
    "Part",
    "Source",
    "block_checksums",
    "content_checksum",
    "discover",
    "joined_blocks",
    "line_base",
    "make_parts",
    "read",
]
