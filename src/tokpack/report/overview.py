"""What a dataset is, on one screen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokpackError
from tokpack.indexed import bin_path, dropped_path, idx_path, manifest_path, table_path
from tokpack.indexed.document_table import DocumentTable
from tokpack.indexed.selection import HEADER_BYTES, selection_path
from tokpack.indexed.track import track_path
from tokpack.quantities import counted
from tokpack.report.lengths import Lengths, measure
from tokpack.report.select import sample_documents
from tokpack.report.sources import bytes_per_token, own_manifest, shares
from tokpack.report.spelling import Spelling
from tokpack.report.tokenizer import find_tokenizer
from tokpack.stores import identity, is_url

if TYPE_CHECKING:
    from tokpack.indexed import MMapIndexedDataset
    from tokpack.report.sources import SourceShare

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
    multimodal: bool
    tracks: dict[str, str]  # their dtypes, by name
    trained: int | None
    tokenizer: dict[str, Any]
    created: str
    version: str
    records: int | None
    empty: int | None
    rejected: int | None
    left_out: int  # by ``where``
    mapped_out: int  # by ``map``
    mapped_in: int
    text_bytes: int | None
    bytes_per_token: float | None
    measured: bool
    lengths: Lengths | None
    sources: tuple[SourceShare, ...]
    columns: dict[str, str]  # the kept ones of the table of its documents, with their types
    files: dict[str, int]


def overview(dataset: MMapIndexedDataset, spelling: Spelling | None = None) -> Overview:
    """Describe a dataset; reads the whole index, and of the tokens a few at most.

    Raises FormatError where an entry of the index is broken.
    """
    lengths = measure(dataset).lengths
    manifest = own_manifest(dataset)
    tokenizer = dict(manifest.tokenizer) if manifest else {}
    if not tokenizer and spelling:
        tokenizer = spelling.tokenizer.describe()
    ratio = bytes_per_token(dataset)
    measured = ratio is None and spelling is not None
    if measured and spelling:
        ratio = _measure(dataset, spelling)
    return Overview(
        prefix=dataset.path_prefix,
        documents=dataset.documents,
        sequences=len(dataset),
        tokens=dataset.token_count,
        dtype=str(dataset.dtype),
        multimodal=dataset.modes is not None,
        tracks={name: str(dtype) for name, dtype in dataset.tracks.items()} if manifest else {},
        trained=manifest.trained if manifest else None,
        tokenizer=tokenizer,
        created=manifest.created if manifest else "",
        version=manifest.tokpack_version if manifest else "",
        records=manifest.records if manifest else None,
        empty=manifest.empty if manifest else None,
        rejected=manifest.rejected if manifest else None,
        left_out=manifest.left_out if manifest else 0,
        mapped_out=manifest.mapped_out if manifest else 0,
        mapped_in=manifest.mapped_in if manifest else 0,
        # Of a view, or datasets without manifests, the bytes of the text are not known.
        text_bytes=(manifest.text_bytes or None) if manifest else None,
        bytes_per_token=ratio,
        measured=measured and ratio is not None,
        lengths=lengths,
        sources=tuple(shares(dataset)),
        columns=_columns(dataset),
        files=_files(dataset),
    )


def describe(dataset: MMapIndexedDataset) -> dict[str, Any]:
    """What ``tokpack inspect --json`` prints of a dataset: the fields of an Overview.

    Without a tokenizer that is found nothing is decoded.
    """
    tokenizer = find_tokenizer(dataset).tokenizer
    return asdict(overview(dataset, Spelling(tokenizer) if tokenizer else None))


def _measure(dataset: MMapIndexedDataset, spelling: Spelling) -> float | None:
    text = tokens = 0
    eod = spelling.tokenizer.eod_id
    for number in sample_documents(dataset.documents, _SAMPLE) if dataset.documents else ():
        ids = dataset.document(number)[:_SAMPLE_TOKENS].tolist()
        tokens += len(ids)
        text += len(spelling.text([token for token in ids if token != eod]))
    return text / tokens if tokens else None


def _columns(dataset: MMapIndexedDataset) -> dict[str, str]:
    """The kept columns; none where the table would have to be fetched, or is not there."""
    if own_manifest(dataset) is None or is_url(dataset.path_prefix):
        return {}
    try:
        return DocumentTable(dataset.path_prefix).kept
    except TokpackError:
        return {}


def _files(dataset: MMapIndexedDataset) -> dict[str, int]:
    """Size of each file of the dataset that is there; of all pieces of a virtual one together."""
    prefix = dataset.path_prefix
    paths = [bin_path(prefix), idx_path(prefix), manifest_path(prefix)]
    manifest = own_manifest(dataset)
    if manifest is not None:
        paths += [table_path(prefix)] if manifest.table else []
        paths += [dropped_path(prefix)] if manifest.dropped else []
    if not dataset.records and dataset.view is None:
        paths[2:2] = [track_path(prefix, name) for name in dataset.tracks]
    sizes = {path: file.size for path in paths if (file := identity(path))}
    if dataset.view is not None:
        records = dataset.view.base.records
        sizes[selection_path(prefix)] = dataset.view.numbers.nbytes + HEADER_BYTES
        sizes[f"{counted(len(records), 'dataset')} that it selects from"] = sum(
            one.bin_bytes + one.idx_bytes for one in records
        )
    elif records := dataset.records:
        sizes[f"{len(records)} pieces"] = sum(one.bin_bytes + one.idx_bytes for one in records)
    return sizes
