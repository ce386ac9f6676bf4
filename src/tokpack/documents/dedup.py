"""Remove copies of documents, exact and near, within and across datasets: a view of the others."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.documents.arguments import as_share
from tokpack.documents.exact import equal_documents, token_hashes
from tokpack.documents.near import NearRules, find_near
from tokpack.documents.tables import BESIDE_VIEW, NewTable
from tokpack.documents.write import NewViews, ViewSpec
from tokpack.errors import UsageError
from tokpack.indexed import MMapIndexedDataset
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.prefix import prefixes_of
from tokpack.indexed.table import import_parquet
from tokpack.progress import ProgressStage, with_bar
from tokpack.stores import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.indexed import Manifest
    from tokpack.indexed.new_files import NewFiles
    from tokpack.progress import Show
    from tokpack.stores.storage import PathLike

Int64s = npt.NDArray[np.int64]

CLUSTERS_SUFFIX = ".clusters.parquet"
KEPT, EXACT, NEAR = range(3)
REASONS = ("kept", "exact", "near")
_STEP = 1 << 20


@dataclass(frozen=True)
class DocumentCount:
    """Documents of a dataset, and their tokens."""

    documents: int
    tokens: int


@dataclass(frozen=True)
class DedupShare:
    """What became of the documents of one dataset: ``read == kept + exact + near``."""

    prefix: str
    read: DocumentCount
    kept: DocumentCount
    exact: DocumentCount
    near: DocumentCount


@dataclass(frozen=True)
class DedupReport:
    """What became of all documents.

    ``manifest`` is that of the view, ``clusters`` the number of different documents that have
    copies. ``recall`` is the probability that two documents exactly as alike as ``near`` says are
    compared at all; None where only exact copies were looked for.
    """

    manifest: Manifest
    datasets: tuple[DedupShare, ...]
    clusters: int
    recall: float | None


@with_bar
def dedup(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    near: float | str | None = None,
    ngram: int = 5,
    bands: int = 14,
    rows: int = 8,
    verify: bool = True,
    threads: int = 0,
    overwrite: bool = False,
    progress: Show | bool | None = None,
) -> DedupReport:
    """Make the view ``output`` of the documents of datasets without their copies.

    Of documents with the same tokens the first stays, in the order of ``inputs``; a document
    without a token is nobody's copy. With ``near`` (0.8, "80%"), so do near copies go: documents
    whose sets of ``ngram`` tokens in a row share at least this of all that they have (Jaccard
    similarity), or that are linked by others which do. They are found by MinHash, with ``bands`` of
    ``rows`` values each; with ``verify`` the sets of those found are then compared, without it all
    count. Two that are alike to J are found with the probability 1 - (1 - J**rows)**bands, as
    ``recall`` says.

    Also writes OUTPUT.clusters.parquet (needs pyarrow, the extra ``parquet``): a row for each
    document that has copies or is one. The result does not depend on ``threads`` (0: all cores).
    Numbers of documents and hashes wait in files without names, in the folder of the output: 16
    bytes a document, with ``near`` also 8 for each band. ``progress`` is told bytes of .bin.
    UsageError for datasets that do not belong together, FormatError where one is broken,
    OutputError where the output is taken or cannot be written.
    """
    near = as_share("near", near)
    rules = None if near is None else NearRules(near, ngram, bands, rows, verify)
    if rules is not None:
        rules.check()
    import_parquet()
    output = os.fspath(output)
    prefixes = prefixes_of(paths_of(inputs))
    if not prefixes:
        raise UsageError("nothing to deduplicate: name datasets by their prefixes")
    with ExitStack() as stack:
        datasets = [stack.enter_context(MMapIndexedDataset(one)) for one in prefixes]
        table = (output + CLUSTERS_SUFFIX, BESIDE_VIEW)
        new = NewViews([output], datasets, overwrite=overwrite, beside=[table])
        with new:
            for dataset in datasets:
                dataset.validate()
            documents = _Documents(datasets, new.files)
            size = sum(
                int(one[-1]) * d.dtype.itemsize
                for one, d in zip(documents.ends, datasets, strict=True)
            )
            stage = ProgressStage(progress, "dedup", size * (1 if rules is None else 2))
            documents.find_exact(stage, threads)
            if rules is not None:
                documents.find_near(rules, stage, threads)
            made_by: dict[str, Any] = {"inputs": prefixes, "near": near}
            if rules is not None:
                made_by |= {**rules._asdict()}
            clusters = documents.write_clusters(output + CLUSTERS_SUFFIX, prefixes, made_by)
            kept = np.flatnonzero(documents.firsts == np.arange(documents.count))
            manifest = new.write(ViewSpec(output, kept, {"dedup": made_by}))
            new.publish()
            shares = documents.shares(prefixes)
    return DedupReport(manifest, shares, clusters, rules.recall(rules.near) if rules else None)


class _Documents:
    """The documents of several datasets, numbered through, and the first copy of each."""

    def __init__(self, datasets: Sequence[MMapIndexedDataset], files: NewFiles) -> None:
        self._datasets, self._files = datasets, files
        self.ends = [document_ends(dataset.sizes, dataset.doc_idx) for dataset in datasets]
        counts = [len(ends) - 1 for ends in self.ends]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.count = int(self._starts[-1])
        self.firsts: Int64s = files.scratch(self.count, np.int64)
        self.firsts[:] = np.arange(self.count)
        self._reasons = np.zeros(self.count, np.int8)
        self._has_tokens = np.concatenate([np.diff(ends) > 0 for ends in self.ends])

    def find_exact(self, stage: ProgressStage, threads: int) -> None:
        """Find the documents with the tokens of an earlier one."""
        keys = self._files.scratch(2 * self.count, np.uint64).reshape(self.count, 2)
        for begin, dataset, ends in zip(self._starts, self._datasets, self.ends, strict=False):
            out = keys[begin : begin + len(ends) - 1]
            token_hashes(dataset, out, ends=ends, threads=threads, on_bytes=stage.add)
        for pairs in equal_documents(keys, threads=threads):
            first, copy = pairs[self._has_tokens[pairs[:, 1]]].T
            self.firsts[copy] = first
            self._reasons[copy] = EXACT

    def find_near(self, rules: NearRules, stage: ProgressStage, threads: int) -> None:
        """Find the documents that are near copies of an earlier one that no exact copy is."""
        candidates = np.flatnonzero((self._reasons == KEPT) & self._has_tokens)
        firsts = find_near(
            self._datasets,
            self.ends,
            candidates,
            rules,
            self._files,
            threads=threads,
            on_bytes=stage.add,
        )
        copies = candidates[firsts != candidates]
        self._reasons[copies] = NEAR
        self.firsts[candidates] = firsts
        for begin in range(0, self.count, _STEP):  # the copies of what is a near copy
            part = self.firsts[begin : begin + _STEP]
            part[:] = self.firsts[part]

    def write_clusters(self, path: str, prefixes: Sequence[str], made_by: dict[str, Any]) -> int:
        """Write the table of documents with copies; how many different ones there are."""
        arrow = import_parquet()
        names = arrow.dictionary(arrow.int32(), arrow.string())
        schema = {
            "dataset": names,
            "document": arrow.int64(),
            "first_dataset": names,
            "first_document": arrow.int64(),
            "reason": names,
        }
        texts = {"dataset": prefixes, "first_dataset": prefixes, "reason": REASONS}
        table = NewTable(path, self._files, schema, made_by, texts)
        has_copies = np.zeros(self.count, bool)
        has_copies[self.firsts[self._reasons != KEPT]] = True
        for begin in range(0, self.count, _STEP):
            part = slice(begin, begin + _STEP)
            rows = np.flatnonzero(has_copies[part] | (self._reasons[part] != KEPT)) + begin
            if not len(rows):
                continue
            dataset, document = self._place(rows)
            first_dataset, first_document = self._place(self.firsts[rows])
            values = (dataset, document, first_dataset, first_document, self._reasons[rows])
            table.append(dict(zip(schema, values, strict=True)))
        table.close()
        return int(np.count_nonzero(has_copies))

    def shares(self, prefixes: Sequence[str]) -> tuple[DedupShare, ...]:
        """What became of the documents of each dataset."""
        result = []
        for number, (prefix, ends) in enumerate(zip(prefixes, self.ends, strict=True)):
            reasons = self._reasons[self._starts[number] : self._starts[number + 1]]
            lengths = np.diff(ends)
            kinds = [_share(lengths[reasons == kind]) for kind in (KEPT, EXACT, NEAR)]
            result.append(DedupShare(prefix, _share(lengths), *kinds))
        return tuple(result)

    def _place(self, documents: Int64s) -> tuple[Int64s, Int64s]:
        """The dataset of each document, and its number there."""
        dataset = np.searchsorted(self._starts, documents, side="right") - 1
        return dataset, documents - self._starts[dataset]


def _share(lengths: Int64s) -> DocumentCount:
    return DocumentCount(len(lengths), int(lengths.sum()))
