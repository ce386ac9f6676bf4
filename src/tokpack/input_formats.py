"""The formats of inputs, and how people speak of them."""

from __future__ import annotations

from typing import NamedTuple


class InputFormat(NamedTuple):
    """What a summary calls a format, and what messages count in an input of it, "" for lines.

    ``is_of_lines`` is whether blocks of it are whole lines, or values.
    """

    words: str
    unit: str = ""
    is_of_lines: bool = False


FORMATS = {
    "jsonl": InputFormat("JSON lines", is_of_lines=True),
    "json": InputFormat("JSON values", "record number", is_of_lines=True),
    "text": InputFormat("plain text, one document per line", is_of_lines=True),
    "csv": InputFormat("CSV", "row number"),
    "tsv": InputFormat("TSV", "row number"),
    "parquet": InputFormat("parquet"),
    "arrow": InputFormat("Arrow"),
    "archive": InputFormat("an archive"),
    "wet": InputFormat("WET", "record number"),
    "file": InputFormat("each file as a document", "document number"),
}
