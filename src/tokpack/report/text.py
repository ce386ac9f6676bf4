"""The text of a document, without what frames it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.report.sources import own_manifest

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report.spelling import Spelling


def document_text(dataset: MMapIndexedDataset, spelling: Spelling, number: int) -> bytes:
    """The text of document ``number``, in [0, documents), as UTF-8.

    Ids that the manifest says to stand around each document (EOD, BOS) are left out where they are
    there; without such a word the EOD at the end is. FormatError for a broken index.
    """
    ids = dataset.document(number)
    manifest = own_manifest(dataset)
    frame = manifest.frame if manifest else None
    eod = spelling.tokenizer.eod_id
    before, after = frame or ([], [] if eod is None else [eod])
    if before and ids[: len(before)].tolist() == before:
        ids = ids[len(before) :]
    if after and ids[-len(after) :].tolist() == after:
        ids = ids[: -len(after)]
    return spelling.text(ids)
