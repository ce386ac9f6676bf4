"""What the tests of documents of this process share: documents, and segments of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.encoding_tools import documents
from tokpack.sources.base import Limits
from tokpack.sources.iterables import DocumentReader

if TYPE_CHECKING:
    from tokpack.sources import DocumentSegment

TEXTS = documents(2100, words=30)
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
KEYS = ["text"]


def table() -> Any:
    import pyarrow as pa

    return pa.table({"id": [row["id"] for row in ROWS], "text": TEXTS})


def segments(
    made: Any, segment_bytes: int, block_bytes: int, most: int | None = None, **kind: bool
) -> list[DocumentSegment]:
    reader = DocumentReader("documents", made, **kind)
    limits = Limits(block_bytes, 1 << 20)
    read = reader.segments(KEYS, segment_bytes, limits, most)
    return [segment for segment in read if segment is not None]


def texts_of(found: list[DocumentSegment]) -> list[str]:
    texts = []
    for segment in found:
        assert segment.line == len(texts)
        for batch in segment.batches:
            docs = batch.documents["text"]
            assert docs.lines.tolist() == list(
                range(len(texts) - segment.line, len(texts) - segment.line + len(docs))
            )
            texts += [docs.text(number).decode() for number in range(len(docs))]
    return texts
