"""Remove copies of documents, exact and near, within and across datasets: a view of the others."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.format import document_lengths, prefixes_of, starts_of
from tokpack.dataset.table import has_table, import_parquet
from tokpack.documents.alike import are_alike, compared_by
from tokpack.documents.base import as_share, trained_tracks
from tokpack.documents.keys import (
    KeptKeys,
    band_hashes,
    have_trained,
    pairs_of_parts,
    token_hashes,
)
from tokpack.documents.write import BESIDE_VIEW, NewTable, NewViews, ViewSpec
from tokpack.errors import StoreError, UsageError, option
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.storage import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.dataset import Manifest
    from tokpack.dataset.results import RunTasks
    from tokpack.documents.base import Base
    from tokpack.progress import Show
    from tokpack.storage import PathLike


Int64s = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


MOST_PLACES = 4096  # bands times rows
# Pairs that wait until tasks compare all of them, at least, and the share of all documents.
_ROUND, _ROUNDS = 1 << 22, 8
_PAIR_BASE = np.uint64(0xD1342543DE82EF95)  # combines two hashes, as csrc's hash_ngram


Compared = Literal["all", "trained"]


class NearRules(NamedTuple):
    """The definition of near copies.

    Two documents are near copies if their sets of ``ngram`` consecutive tokens have at least the
    Jaccard similarity ``near``. Candidates are pairs that agree in all rows of a band, by MinHash
    signatures of ``bands`` times ``rows`` values. With ``verify`` their sets are compared; without
    it all candidates count as near copies. ``on`` says which tokens are compared: all, or trained
    ones.
    """

    near: float
    ngram: int
    bands: int
    rows: int
    verify: bool
    on: Compared

    @property
    def deciding(self) -> dict[str, Any]:
        """Those that decide the hashes of bands."""
        values = self._asdict()
        return {name: values[name] for name in ("ngram", "bands", "rows", "on")}

    def check(self) -> None:
        """Raise UsageError for values outside of their range."""
        if not 0 < self.near <= 1:
            raise UsageError(
                f"{option('near', self.near)}: expected a similarity above 0 and at most 1, such "
                "as 0.8"
            )
        for name in ("ngram", "bands", "rows"):
            if getattr(self, name) < 1:
                raise UsageError(f"{option(name, getattr(self, name))}: expected 1 or more")
        if self.bands * self.rows > MOST_PLACES:
            raise UsageError(
                f"{option('bands', self.bands)} times {option('rows', self.rows)} is "
                f"{self.bands * self.rows}, expected at most {MOST_PLACES}"
            )

        if self.on not in get_args(Compared):
            raise UsageError(
                f"{option('on', self.on)}: expected one of {', '.join(get_args(Compared))}"
            )

    def check_datasets(self, datasets: Sequence[MMapIndexedDataset], *, pairs: bool) -> None:
        """Raise UsageError for datasets to which the rules cannot be applied."""
        if self.on == "trained" and not any(map(trained_tracks, datasets)):
            raise UsageError(
                f"{option('on', 'trained')}: {datasets[0].path_prefix} has no mask, which `tokpack "
                "encode --chat` writes, to say which tokens are trained"
            )
        if pairs and not self.verify:
            raise UsageError(
                f"{option('verify', False)}: pairs are always verified, by both of their "
                "documents: leave it out"
            )

    def recall(self, similarity: float) -> float:
        """The probability that two documents of this similarity are candidates."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


def _firsts_and_neighbours(pairs: Int64s) -> tuple[Int64s, Int64s]:
    """Pairs with the first document of a key, then pairs with the document before.

    Usually the first document is similar to all others; then the second kind needs no comparison.
    """
    again = np.zeros(len(pairs), bool)
    again[1:] = pairs[1:, 1] == pairs[:-1, 1]
    return pairs[~again], pairs[again]


CLUSTERS_SUFFIX = ".clusters.parquet"
KEPT, EXACT, NEAR = range(3)
REASONS = ("kept", "exact", "near")
_STEP = 1 << 20


@dataclass(frozen=True)
class DocumentCount:
    """A number of documents, and of their tokens."""

    documents: int
    tokens: int


@dataclass(frozen=True)
class DedupShare:
    """The counts of one dataset: ``read == kept + exact + near``.

    ``most_of_one`` is the largest number of near copies of a single document.
    """

    prefix: str
    read: DocumentCount
    kept: DocumentCount
    exact: DocumentCount
    near: DocumentCount
    most_of_one: int


@dataclass(frozen=True)
class DedupReport:
    """The counts of all datasets.

    ``manifest`` is the view's, ``clusters`` the number of distinct documents with copies.
    ``recall`` is the probability that two documents with exactly the similarity ``near`` are
    compared at all; None if only exact copies were searched.
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
    tasks: RunTasks | None = None,
) -> DedupReport:
    """Make the view ``output`` of the documents of datasets without their copies.

    Of documents with the same tokens the first stays, in the order of ``inputs``; documents without
    tokens are never copies. With ``near`` (0.8, "80%") near copies are removed too: documents whose
    sets of ``ngram`` consecutive tokens have at least this Jaccard similarity, or that are linked
    by a chain of such pairs. Candidates are found by MinHash, with ``bands`` of ``rows`` values
    each; with ``verify`` their sets are then compared, without it all count. Documents of
    similarity J are found with the probability 1 - (1 - J**rows)**bands, see ``recall``.
    ``on="trained"`` compares only trained tokens, by the datasets' tracks: otherwise conversations
    with the same long prompt would be near copies.

    In datasets of pairs (a preferred and a rejected answer) a pair stays or goes as a whole: it is
    a copy
    if both documents are.

    Also writes OUTPUT.clusters.parquet (needs pyarrow, the extra ``parquet``): a row for each
    document that has copies or is one. The result does not depend on ``threads`` (0: all cores).
    Numbers and hashes are kept in unnamed files in the folder of the output: 16 bytes per document,
    with ``near`` 8 more per band. ``tasks`` reads the tokens elsewhere: the hashes are then kept
    beside the shards, and used again for the same request. ``progress`` is told bytes of .bin.
    UsageError for datasets that do not fit together, FormatError if one is broken, OutputError if
    the output exists or cannot be written.
    """
    near = as_share("near", near)
    rules = None if near is None else NearRules(near, ngram, bands, rows, verify, on)
    if rules is not None:
        rules.check()
    elif on != "all":
        raise UsageError(f"{option('on', on)} needs {option('near', 0.8)}: it is for near copies")
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
            has_tables = all(has_table(one.path_prefix) for one in datasets)
            kept = _kept_keys(new.base, rules, None if rules is None and has_tables else tasks)
            documents = _Documents(output, new, kept, tasks)
            size = sum(one.token_count * one.dtype.itemsize for one in datasets)
            stage = ProgressStage(progress, "dedup", size * (1 if rules is None else 2))
            documents.find_exact(stage, threads)
            made_by: dict[str, Any] = {"inputs": prefixes, "near": near}
            if rules is not None:
                documents.find_near(rules, stage, threads)
                made_by |= rules._asdict()
            clusters = documents.write_clusters(output + CLUSTERS_SUFFIX, prefixes, made_by)
            manifest = new.write(ViewSpec(output, documents.kept, {"dedup": made_by}))
            new.publish()
            shares = documents.shares(prefixes)
    return DedupReport(manifest, shares, clusters, rules.recall(rules.near) if rules else None)


def _kept_keys(base: Base, rules: NearRules | None, tasks: RunTasks | None) -> KeptKeys | None:
    """The keys that are kept beside all shards, made if there are ``tasks``; None without them."""
    served = any(record.prefix.startswith(("http://", "https://")) for record in base.records)
    if served and tasks is None:  # by a web server, which lists nothing
        return None
    try:
        keys = KeptKeys(base, rules and rules.deciding)
        if tasks is not None:
            tasks("keys", keys.tasks)
        return keys if keys.are_there else None
    except StoreError:
        if tasks is not None:
            raise
        return None  # the objects of a store may be read, and not listed


class _Documents:
    """The documents of several datasets, numbered through, and the first copy of each.

    With ``pairs`` the unit is a pair: then ``firsts`` and everything else is about pairs.
    """

    def __init__(
        self, output: str, new: NewViews, kept: KeptKeys | None, tasks: RunTasks | None
    ) -> None:
        self._output, self._base, self._files = output, new.base, new.files
        self._kept, self._tasks = kept, tasks
        self._datasets, self._size = new.base.datasets, 2 if new.base.pairs else 1
        self._lengths = [
            self._of_both(document_lengths(one.sizes, one.doc_idx)) for one in self._datasets
        ]
        counts = [len(lengths) for lengths in self._lengths]
        self._starts = starts_of(counts)
        self._first_documents = self._size * self._starts
        self._count = int(self._starts[-1])
        self._firsts: Int64s = self._files.scratch(self._count, np.int64)
        self._firsts[:] = np.arange(self._count)
        self._reasons = np.zeros(self._count, np.int8)
        self._has_tokens = np.concatenate([lengths > 0 for lengths in self._lengths])

    @property
    def kept(self) -> Int64s:
        """The documents that stay."""
        kept = np.flatnonzero(self._firsts == np.arange(self._count))
        return self._documents(kept)

    def find_exact(self, stage: ProgressStage, threads: int) -> None:
        """Find the documents with the tokens of an earlier one. Raises as ``token_hashes``."""
        sums = self._base.sums
        if self._kept is not None:
            keys = self._kept.column(0)
            sums |= self._kept.checksums()
        else:
            count, begin = self._count * self._size, 0
            keys = self._files.scratch(2 * count, np.uint64).reshape(count, 2)
            for dataset in self._datasets:
                out = keys[begin : begin + dataset.documents]
                token_hashes(dataset, out, threads=threads, on_bytes=stage.add, sums=sums)
                begin += len(out)
        if self._size > 1:  # one key from those of the documents of a pair
            data = np.ascontiguousarray(keys).view(np.uint8).ravel()
            ends = np.arange(0, len(data) + 1, 16 * self._size)
            digests = _core.text_digests(data.data, np.stack([ends[:-1], ends[1:]], axis=1))
            keys = digests.view(np.uint64)
        for pairs in pairs_of_parts(keys, neighbours=False, threads=threads):
            first, copy = pairs[self._has_tokens[pairs[:, 1]]].T
            self._firsts[copy] = first
            self._reasons[copy] = EXACT

    def find_near(self, rules: NearRules, stage: ProgressStage, threads: int) -> None:
        """Among documents without an earlier exact copy, find those with an earlier near copy.

        The relation is made transitive: a copy of a copy belongs to the first document. Pairs are
        copies if both of their documents are. The result does not depend on threads. Takes 8 bytes
        on disk per document and band, plus 8 per document, and memory to sort one part of a band.
        """
        are_candidates = (self._reasons == KEPT) & self._has_tokens
        if rules.on == "trained":
            every = (
                np.concatenate([*map(have_trained, self._datasets)])
                if self._kept is None
                else self._kept.column(1 + rules.bands) > 0
            )
            are_candidates &= every.reshape(-1, self._size).all(axis=1)
        candidates = np.flatnonzero(are_candidates)
        documents = self._documents(candidates)
        most = 1 if self._tasks is None else max(_ROUND, self._count // _ROUNDS)
        waiting: tuple[list[Int64s], list[Int64s]] = [], []

        def compare_waiting() -> None:
            # Copies are kept as trees. A pair that is in one tree already adds nothing, so it need
            # not be compared.
            for some in waiting:
                pairs = some[0] if len(some) == 1 else np.unique(np.concatenate(some), axis=0)
                apart = _core.separate_pairs(self._firsts, pairs)
                if rules.verify and len(apart):
                    apart = apart[self._are_alike(apart, rules, pool)]
                _core.join_pairs(self._firsts, apart)
                some.clear()

        with ThreadPoolExecutor(threads or usable_cores()) as pool:
            for keys in self._bands(documents, rules, stage, threads):
                for pairs in pairs_of_parts(keys, neighbours=rules.verify, threads=threads):
                    for some, new in zip(waiting, _firsts_and_neighbours(pairs), strict=True):
                        some.append(_core.separate_pairs(self._firsts, candidates[new]))
                    if sum(map(len, [*waiting[0], *waiting[1]])) >= most:
                        compare_waiting()
                del keys
            if waiting[0]:
                compare_waiting()
        for begin in range(0, self._count, _STEP):  # parents come first, and are roots by then
            part = self._firsts[begin : begin + _STEP]
            while len(below := np.flatnonzero(self._firsts[part] != part)):
                part[below] = self._firsts[part[below]]
            reasons = self._reasons[begin : begin + _STEP]
            reasons[(reasons == KEPT) & (part != np.arange(begin, begin + len(part)))] = NEAR

    def _bands(
        self, documents: Int64s, rules: NearRules, stage: ProgressStage, threads: int
    ) -> Iterator[Keys]:
        """The keys of each band: uint64 [candidates], of pairs made from those of both."""
        if self._kept is None:
            shape = rules.bands, len(documents)
            hashes = self._files.scratch(math.prod(shape), np.uint64).reshape(shape)
            first = 0
            for dataset in self._datasets:
                low, high = np.searchsorted(documents, (first, first + dataset.documents))
                band_hashes(
                    dataset,
                    documents[low:high] - first,
                    hashes[:, low:high],
                    rules=rules.deciding,
                    pairs=self._size > 1,
                    threads=threads,
                    on_bytes=stage.add,
                )
                first += dataset.documents
        for band in range(rules.bands):
            keys = hashes[band] if self._kept is None else self._kept.column(1 + band)
            if self._kept is not None:  # those of other documents go, in place
                for begin in range(0, len(documents), _STEP):
                    some = documents[begin : begin + _STEP]
                    keys[begin : begin + len(some)] = keys[some]
                keys = keys[: len(documents)]
            if self._size > 1:
                keys = keys[::2] * _PAIR_BASE + keys[1::2]
            yield keys
            del keys  # before there are others

    def _are_alike(
        self, pairs: Int64s, rules: NearRules, pool: ThreadPoolExecutor
    ) -> npt.NDArray[np.bool_]:
        """Whether the two of each pair are as alike as asked for: bool [pairs]."""
        documents, asked = self._size * pairs, {**rules._asdict(), "together": self._size}

        def place(document: int) -> tuple[MMapIndexedDataset, int]:
            dataset, number = map(int, self._place(document))
            return self._datasets[dataset], number

        if self._tasks is None:
            return are_alike(documents, place, asked, pool)
        return compared_by(self._tasks, self._output, self._base, documents, asked)

    def write_clusters(self, path: str, prefixes: Sequence[str], made_by: dict[str, Any]) -> int:
        """Write the table of documents with copies. Returns the number of distinct ones."""
        columns: dict[str, str | Sequence[str]] = {
            "dataset": prefixes,
            "document": "int64",
            "first_dataset": prefixes,
            "first_document": "int64",
            "reason": REASONS,
        }
        table = NewTable(path, self._files, columns, made_by)
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
            table.append(dict(zip(columns, values, strict=True)))
        table.close()
        return int(np.count_nonzero(has_copies))

    def shares(self, prefixes: Sequence[str]) -> tuple[DedupShare, ...]:
        """The counts of each dataset."""
        result = []
        for number, (prefix, lengths) in enumerate(zip(prefixes, self._lengths, strict=True)):
            part = slice(*self._starts[number : number + 2])
            reasons = self._reasons[part]
            kept, exact, near = (
                self._share(lengths[reasons == kind]) for kind in (KEPT, EXACT, NEAR)
            )
            _, counts = np.unique(self._firsts[part][reasons == NEAR], return_counts=True)
            most = self._size * int(counts.max(initial=0))
            read = self._share(lengths)
            result.append(DedupShare(prefix, read, kept, exact, near, most))
        return tuple(result)

    def _of_both(self, lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Lengths of documents; for pairs those of both together."""
        return lengths if self._size == 1 else lengths.reshape(-1, 2).sum(axis=1, dtype=np.int64)

    def _documents(self, numbers: Int64s) -> Int64s:
        """The numbers of documents; for a pair those of both, one after the other."""
        if self._size == 1:
            return numbers
        return (self._size * numbers[:, None] + np.arange(self._size)).ravel()

    def _place(self, documents: Any) -> tuple[Any, Any]:
        """The dataset of each document, or of one, and its number there."""
        dataset = np.searchsorted(self._first_documents, documents, side="right") - 1
        return dataset, documents - self._first_documents[dataset]

    def _share(self, lengths: Int64s) -> DocumentCount:
        return DocumentCount(self._size * len(lengths), int(lengths.sum()))
