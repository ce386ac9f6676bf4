"""Remove copies of documents, exact and near, within and across datasets: a view of the others."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.documents.arguments import as_share
from tokpack.documents.exact import equal_documents, joined_keys, token_hashes
from tokpack.documents.near import Compared, NearRules, find_near, have_trained
from tokpack.documents.tables import BESIDE_VIEW, NewTable
from tokpack.documents.write import NewViews, ViewSpec
from tokpack.errors import UsageError, option
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
    """What became of the documents of one dataset: ``read == kept + exact + near``.

    ``most_of_one`` of them are near copies of one and the same document.
    """

    prefix: str
    read: DocumentCount
    kept: DocumentCount
    exact: DocumentCount
    near: DocumentCount
    most_of_one: int


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
    on: Compared = "all",
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
    ``recall`` says. ``on="trained"`` compares trained tokens alone, by the tracks of the datasets:
    conversations with one long prompt would otherwise be near copies of each other.

    Of datasets of pairs (a preferred and a rejected answer) both documents of a pair stay or go: it
    is a copy of another where both are.

    Also writes OUTPUT.clusters.parquet (needs pyarrow, the extra ``parquet``): a row for each
    document that has copies or is one. The result does not depend on ``threads`` (0: all cores).
    Numbers of documents and hashes wait in files without names, in the folder of the output: 16
    bytes a document, with ``near`` also 8 for each band. ``progress`` is told bytes of .bin.
    UsageError for datasets that do not belong together, FormatError where one is broken,
    OutputError where the output is taken or cannot be written.
    """
    near = as_share("near", near)
    rules = None if near is None else NearRules(near, ngram, bands, rows, verify, on)
    if rules is not None:
        rules.check()
    elif on != "all":
        raise UsageError(f"{option('on', on)} is about near copies: add {option('near', 0.8)}")
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
            if rules is not None:
                rules.check_datasets(datasets, pairs=new.base.pairs)
            documents = _Documents(datasets, new.files, pairs=new.base.pairs)
            size = sum(
                int(one[-1]) * d.dtype.itemsize
                for one, d in zip(documents.ends, datasets, strict=True)
            )
            stage = ProgressStage(progress, "dedup", size * (1 if rules is None else 2))
            documents.find_exact(stage, threads, new.base.sums)
            if rules is not None:
                documents.find_near(rules, stage, threads)
            made_by: dict[str, Any] = {"inputs": prefixes, "near": near}
            if rules is not None:
                made_by |= {**rules._asdict()}
            clusters = documents.write_clusters(output + CLUSTERS_SUFFIX, prefixes, made_by)
            manifest = new.write(ViewSpec(output, documents.kept, {"dedup": made_by}))
            new.publish()
            shares = documents.shares(prefixes)
    return DedupReport(manifest, shares, clusters, rules.recall(rules.near) if rules else None)


class _Documents:
    """The documents of several datasets, numbered through, and the first copy of each.

    With ``pairs`` they are compared two by two: ``firsts`` and all else is of pairs then.
    """

    def __init__(
        self, datasets: Sequence[MMapIndexedDataset], files: NewFiles, *, pairs: bool
    ) -> None:
        self._datasets, self._files, self._size = datasets, files, 2 if pairs else 1
        self.ends = [document_ends(dataset.sizes, dataset.doc_idx) for dataset in datasets]
        self._lengths = [np.diff(ends[:: self._size]) for ends in self.ends]
        counts = [len(lengths) for lengths in self._lengths]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._count = int(self._starts[-1])
        self._firsts: Int64s = files.scratch(self._count, np.int64)
        self._firsts[:] = np.arange(self._count)
        self._reasons = np.zeros(self._count, np.int8)
        self._has_tokens = np.concatenate([lengths > 0 for lengths in self._lengths])

    @property
    def kept(self) -> Int64s:
        """The documents that stay."""
        kept = np.flatnonzero(self._firsts == np.arange(self._count))
        return self._documents(kept)

    def find_exact(self, stage: ProgressStage, threads: int, sums: dict[str, str]) -> None:
        """Find the documents with the tokens of an earlier one; as ``token_hashes``."""
        count = self._count * self._size
        keys = self._files.scratch(2 * count, np.uint64).reshape(count, 2)
        begin = 0
        for dataset, ends in zip(self._datasets, self.ends, strict=False):
            out = keys[begin : begin + len(ends) - 1]
            token_hashes(dataset, out, ends=ends, threads=threads, on_bytes=stage.add, sums=sums)
            begin += len(out)
        if self._size > 1:
            keys = joined_keys(keys, self._size)
        for pairs in equal_documents(keys, threads=threads):
            first, copy = pairs[self._has_tokens[pairs[:, 1]]].T
            self._firsts[copy] = first
            self._reasons[copy] = EXACT

    def find_near(self, rules: NearRules, stage: ProgressStage, threads: int) -> None:
        """Find the documents that are near copies of an earlier one that no exact copy is."""
        are_candidates = (self._reasons == KEPT) & self._has_tokens
        if rules.on == "trained":
            has_trained = have_trained(self._datasets, self.ends)
            are_candidates &= has_trained.reshape(-1, self._size).all(axis=1)
        candidates = np.flatnonzero(are_candidates)
        firsts = find_near(
            self._datasets,
            self.ends,
            candidates,
            rules,
            self._files,
            together=self._size,
            threads=threads,
            on_bytes=stage.add,
        )
        copies = candidates[firsts != candidates]
        self._reasons[copies] = NEAR
        self._firsts[candidates] = firsts
        for begin in range(0, self._count, _STEP):  # the copies of what is a near copy
            part = self._firsts[begin : begin + _STEP]
            part[:] = self._firsts[part]

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
        has_copies = np.zeros(self._count, bool)
        has_copies[self._firsts[self._reasons != KEPT]] = True
        for begin in range(0, self._count, _STEP):
            part = slice(begin, begin + _STEP)
            rows = np.flatnonzero(has_copies[part] | (self._reasons[part] != KEPT)) + begin
            if not len(rows):
                continue
            dataset, document = self._place(self._documents(rows))
            first_dataset, first_document = self._place(self._documents(self._firsts[rows]))
            reasons = np.repeat(self._reasons[rows], self._size)
            values = (dataset, document, first_dataset, first_document, reasons)
            table.append(dict(zip(schema, values, strict=True)))
        table.close()
        return int(np.count_nonzero(has_copies))

    def shares(self, prefixes: Sequence[str]) -> tuple[DedupShare, ...]:
        """What became of the documents of each dataset."""
        result = []
        for number, (prefix, lengths) in enumerate(zip(prefixes, self._lengths, strict=True)):
            part = slice(*self._starts[number : number + 2])
            reasons = self._reasons[part]
            kinds = [self._share(lengths[reasons == kind]) for kind in (KEPT, EXACT, NEAR)]
            _, counts = np.unique(self._firsts[part][reasons == NEAR], return_counts=True)
            most = self._size * int(counts.max(initial=0))
            kept, exact, near = kinds
            read = self._share(lengths)
            result.append(DedupShare(prefix, read, kept, exact, near, most))
        return tuple(result)

    def _documents(self, numbers: Int64s) -> Int64s:
        """The numbers of documents: of each pair both, one after the other."""
        if self._size == 1:
            return numbers
        return (self._size * numbers[:, None] + np.arange(self._size)).ravel()

    def _place(self, documents: Int64s) -> tuple[Int64s, Int64s]:
        """The dataset of each document, and its number there."""
        starts = self._size * self._starts
        dataset = np.searchsorted(starts, documents, side="right") - 1
        return dataset, documents - starts[dataset]

    def _share(self, lengths: Int64s) -> DocumentCount:
        return DocumentCount(self._size * len(lengths), int(lengths.sum()))
