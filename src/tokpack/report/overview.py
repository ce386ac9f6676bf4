"""What a dataset is, on one screen."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tokpack.indexed import bin_path, idx_path, manifest_path
from tokpack.indexed.virtual import VirtualIndexedDataset
from tokpack.report.lengths import Lengths, summarize
from tokpack.report.select import sample_documents

if TYPE_CHECKING:
    from tokpack.report.dataset import Opened, Share
    from tokpack.report.pieces import Pieces

_SAMPLE = 200  # documents to measure bytes a token by
_SAMPLE_TOKENS = 1 << 16


@dataclass(frozen=True)
class Overview:
    """The facts about a dataset; what is not known is None, "" or empty.

    ``measured`` is true where ``bytes_per_token`` comes from documents that were decoded, and not
    from the manifest.
    """

    prefix: str
    documents: int
    sequences: int
    tokens: int
    dtype: str
    tokenizer: dict[str, Any]
    created: str
    version: str
    records: int | None
    empty: int | None
    rejected: int | None
    text_bytes: int | None
    bytes_per_token: float | None
    measured: bool
    lengths: Lengths | None
    sources: tuple[Share, ...]
    files: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """A form that ``json`` can write."""
        return asdict(self)


def overview(opened: Opened, pieces: Pieces | None = None) -> Overview:
    """Describe a dataset; reads the whole index, and of the tokens a few at most.

    Raises FormatError where an entry of the index is broken.
    """
    manifest = opened.manifest
    tokenizer = dict(manifest.tokenizer) if manifest else {}
    if not tokenizer and pieces:
        tokenizer = pieces.tokenizer.describe()
    ratio = opened.bytes_per_token
    measured = ratio is None and pieces is not None
    if measured and pieces:
        ratio = _measure(opened, pieces)
    return Overview(
        prefix=opened.prefix,
        documents=opened.documents,
        sequences=len(opened.dataset),
        tokens=opened.tokens,
        dtype=str(opened.dataset.dtype),
        tokenizer=tokenizer,
        created=manifest.created if manifest else "",
        version=manifest.tokpack_version if manifest else "",
        records=manifest.records if manifest else None,
        empty=manifest.empty if manifest else None,
        rejected=manifest.rejected if manifest else None,
        text_bytes=manifest.text_bytes if manifest else None,
        bytes_per_token=ratio,
        measured=measured and ratio is not None,
        lengths=summarize(opened.length_chunks()),
        sources=tuple(opened.shares),
        files=_files(opened),
    )


def _measure(opened: Opened, pieces: Pieces) -> float | None:
    text = tokens = 0
    eod = pieces.tokenizer.eod_id
    for number in sample_documents(opened.documents, _SAMPLE) if opened.documents else ():
        ids = opened.document(number)[:_SAMPLE_TOKENS].tolist()
        tokens += len(ids)
        text += len(pieces.text([token for token in ids if token != eod]))
    return text / tokens if tokens else None


def _files(opened: Opened) -> dict[str, int]:
    """Size of each file of the dataset that is there; of all pieces of a virtual one together."""
    prefix = opened.prefix
    paths = (bin_path(prefix), idx_path(prefix), manifest_path(prefix))
    sizes = {path: os.path.getsize(path) for path in paths if os.path.isfile(path)}
    if isinstance(opened.dataset, VirtualIndexedDataset):
        pieces = opened.dataset.pieces
        sizes[f"{len(pieces)} pieces"] = sum(one.bin_bytes + one.idx_bytes for one in pieces)
    return sizes
