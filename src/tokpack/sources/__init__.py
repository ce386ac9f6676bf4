"""Input documents: files of every kind, cut into parts that workers read independently."""

from typing import TYPE_CHECKING

from tokpack.sources.base import (
    RAW_BYTES_KEPT,
    BadRecord,
    DocumentBatch,
    Documents,
    Limits,
    Part,
    Source,
)
from tokpack.sources.columns import (
    ArrowBatches,
    batch_of_columns,
    check_columns,
    decoded,
    text_column,
)
from tokpack.sources.compression import COMPRESSIONS, SUFFIXES
from tokpack.sources.detect import DOCUMENT_SUFFIXES
from tokpack.sources.find import discover, fingerprints
from tokpack.sources.hub import saved_files
from tokpack.sources.iterables import ArrowStream, DocumentReader, DocumentSegment, in_process
from tokpack.sources.parts import BLOCK_BYTES, LineStream, line_base, make_parts, parse, read
from tokpack.sources.records import LineBlock, count_newlines, documents_of, value_at
from tokpack.sources.rows import (
    WholeRecords,
    batch_with_rows,
    chosen_columns,
    nested,
    types_of,
    widest_type,
)
from tokpack.sources.streams import (
    block_checksums,
    content_checksum,
    fill,
    joined_blocks,
    open_stream,
)
from tokpack.sources.values import (
    as_text,
    column_of,
    is_json,
    is_table,
    objects_of,
    of_objects,
    of_table,
    of_texts,
    python_values,
    root_of,
    table_of,
)

if TYPE_CHECKING:
    from tokpack.sources.rows import Columns as Columns
    from tokpack.sources.values import Values as Values

__all__ = [
    "BLOCK_BYTES",
    "COMPRESSIONS",
    "DOCUMENT_SUFFIXES",
    "RAW_BYTES_KEPT",
    "SUFFIXES",
    "ArrowBatches",
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
    "Source",
    "WholeRecords",
    "as_text",
    "batch_of_columns",
    "batch_with_rows",
    "block_checksums",
    "check_columns",
    "chosen_columns",
    "column_of",
    "content_checksum",
    "count_newlines",
    "decoded",
    "discover",
    "documents_of",
    "fill",
    "fingerprints",
    "in_process",
    "is_json",
    "is_table",
    "joined_blocks",
    "line_base",
    "make_parts",
    "nested",
    "objects_of",
    "of_objects",
    "of_table",
    "of_texts",
    "open_stream",
    "parse",
    "python_values",
    "read",
    "root_of",
    "saved_files",
    "table_of",
    "text_column",
    "types_of",
    "value_at",
    "widest_type",
]
