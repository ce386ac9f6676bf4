"""Where documents come from: files of every kind, cut into parts that workers read alone."""

from tokpack.sources.base import FORMATS, BadRecord, Batch, Documents, Part, Source
from tokpack.sources.blocks import block_checksums, content_checksum, joined_blocks
from tokpack.sources.discover import discover
from tokpack.sources.read import line_base, read
from tokpack.sources.split import split

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
    "read",
    "split",
]
