"""Files that are one document each; an archive that is named itself has one in each member."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from tokpack.errors import UsageError
from tokpack.sources.base import BOM, PATH, RAW_BYTES_KEPT, BadRecord, DocumentBatch, Documents
from tokpack.sources.detect import ARCHIVE, HEAD_BYTES, why_no_text
from tokpack.sources.peekable import PeekableStream, read_exactly
from tokpack.sources.records import not_utf8, only_bad, without
from tokpack.sources.streams import FileStream, open_stream
from tokpack.sources.values import of_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tokpack.sources.base import Limits, Source


_SMALL = 1 << 20  # bytes of a file that is read at once


def read_file(
    source: Source,
    keys: Sequence[str],
    limits: Limits,
    tell_sums: Callable[[str], None] | None,
    columns: Sequence[str] = (),
) -> Generator[DocumentBatch]:
    """Yield the one document of a file, decompressed, without a BOM; or those of an archive.

    ``tell_sums`` and ``columns`` as of ``read``: there is the column ``path``.
    """
    if len(keys) > 1:
        raise UsageError(
            f"{source.name}: a file is one document without the keys {', '.join(keys)}"
        )
    file = FileStream(source, sums=tell_sums is not None)
    is_small = 0 < source.size < _SMALL and not source.compression
    first = source.size + 1 if is_small else HEAD_BYTES
    with closing(open_stream(source, file=file)) as stream:
        text = read_exactly(stream, first)
        if why_no_text(text[:HEAD_BYTES]) == ARCHIVE:
            from tokpack.sources.archives import read_members  # 20 ms of tarfile and zipfile

            members = PeekableStream(stream, text)
            yield from read_members(source, members, keys, limits, columns, are_documents=True)
            return
        if len(text) == first:  # there may be more
            most = limits.max_document_bytes + len(BOM) + 1
            text += read_exactly(stream, max(most - first, 0))
        stored, length = stream.stored, len(text)
        text = text.removeprefix(BOM)
        if len(text) > limits.max_document_bytes:
            reason = f"a document of more than {limits.max_document_bytes} bytes"
            batch = only_bad(keys, BadRecord(0, reason, text[:RAW_BYTES_KEPT]))
        else:
            spans = np.array([[0, len(text)]], np.int64)
            one = Documents(np.frombuffer(text, np.uint8), spans, np.zeros(1, np.int64))
            if PATH in columns:
                one.columns[PATH] = of_objects([source.name])
            documents = {keys[0]: one}
            bad = not_utf8(documents[keys[0]])
            batch = DocumentBatch(without(documents, bad), list(bad.values()), 1, 1)
        batch.bytes_read, batch.text_bytes = stored, length
        yield batch
        sums = file.block_checksums()
        if tell_sums is not None and sums is not None:
            tell_sums(sums)
