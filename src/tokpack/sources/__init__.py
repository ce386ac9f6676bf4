"""Input documents: files of every kind, cut into parts that workers read independently."""

from typing import TYPE_CHECKING

from tokpack.sources.base import RAW_BYTES_KEPT as RAW_BYTES_KEPT
from tokpack.sources.base import BadRecord as BadRecord
from tokpack.sources.base import DocumentBatch as DocumentBatch
from tokpack.sources.base import Documents as Documents
from tokpack.sources.base import Limits as Limits
from tokpack.sources.base import Part as Part
from tokpack.sources.base import Source as Source
from tokpack.sources.columns import ArrowBatches as ArrowBatches
from tokpack.sources.columns import batch_of_columns as batch_of_columns
from tokpack.sources.columns import check_columns as check_columns
from tokpack.sources.columns import decoded as decoded
from tokpack.sources.columns import text_column as text_column
from tokpack.sources.compression import COMPRESSIONS as COMPRESSIONS
from tokpack.sources.compression import SUFFIXES as SUFFIXES
from tokpack.sources.detect import DOCUMENT_SUFFIXES as DOCUMENT_SUFFIXES
from tokpack.sources.find import discover as discover
from tokpack.sources.find import fingerprints as fingerprints
from tokpack.sources.hub import saved_files as saved_files
from tokpack.sources.iterables import ArrowStream as ArrowStream
from tokpack.sources.iterables import DocumentReader as DocumentReader
from tokpack.sources.iterables import DocumentSegment as DocumentSegment
from tokpack.sources.iterables import in_process as in_process
from tokpack.sources.parts import BLOCK_BYTES as BLOCK_BYTES
from tokpack.sources.parts import LineStream as LineStream
from tokpack.sources.parts import line_base as line_base
from tokpack.sources.parts import make_parts as make_parts
from tokpack.sources.parts import parse as parse
from tokpack.sources.parts import read as read
from tokpack.sources.records import LineBlock as LineBlock
from tokpack.sources.records import count_newlines as count_newlines
from tokpack.sources.records import documents_of as documents_of
from tokpack.sources.records import value_at as value_at
from tokpack.sources.rows import WholeRecords as WholeRecords
from tokpack.sources.rows import batch_with_rows as batch_with_rows
from tokpack.sources.rows import chosen_columns as chosen_columns
from tokpack.sources.rows import nested as nested
from tokpack.sources.rows import types_of as types_of
from tokpack.sources.rows import widest_type as widest_type
from tokpack.sources.streams import block_checksums as block_checksums
from tokpack.sources.streams import content_checksum as content_checksum
from tokpack.sources.streams import fill as fill
from tokpack.sources.streams import joined_blocks as joined_blocks
from tokpack.sources.streams import open_stream as open_stream
from tokpack.sources.values import as_text as as_text
from tokpack.sources.values import column_of as column_of
from tokpack.sources.values import is_json as is_json
from tokpack.sources.values import is_table as is_table
from tokpack.sources.values import objects_of as objects_of
from tokpack.sources.values import of_objects as of_objects
from tokpack.sources.values import of_table as of_table
from tokpack.sources.values import of_texts as of_texts
from tokpack.sources.values import python_values as python_values
from tokpack.sources.values import root_of as root_of
from tokpack.sources.values import table_of as table_of

if TYPE_CHECKING:
    from tokpack.sources.rows import Columns as Columns
    from tokpack.sources.values import Values as Values
