"""Remove copies of documents, exact and near, within and across datasets: a view of the others."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset, are_trained, trained_ends
from tokpack.dataset.format import document_ends, prefixes_of, starts_of
from tokpack.dataset.table import (
    OWN,
    DocumentTable,
    has_table,
    import_parquet,
    plain_ids,
    token_digests,
)
from tokpack.documents.base import as_share, scan_documents, trained_tracks
from tokpack.documents.write import BESIDE_VIEW, NewTable, NewViews, ViewSpec
from tokpack.errors import UsageError, option
from tokpack.machine import usable_cores
from tokpack.progress import ProgressStage, with_bar
from tokpack.storage import paths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokpack.dataset import Manifest
    from tokpack.dataset.outputs import NewFiles
    from tokpack.progress import Show
    from tokpack.storage import PathLike


Int64s = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

_PART = 1 << 22  # documents that are sorted at a time, with 24 bytes each


def token_hashes(
    dataset: MMapIndexedDataset,
    out: Keys,
    *,
    ends: Int64s | None = None,
    threads: int,
    on_bytes: Callable[[int], None],
    sums: dict[str, str],
) -> None:
    """Write XXH3-128 of each document's tokens to ``out``, uint64 [documents, 2].

    If ``out`` is [documents, 1], only the upper halves are written. Tokens are hashed as int32,
    little endian, whatever the dtype. Hashes come from the table of documents if there is one;
    otherwise ``ends``, the tokens before each document, are computed if not given. ``on_bytes`` is
    told how many bytes are done, ``sums`` are those of ``scan_documents``.
    """
    width = out.shape[1]
    if has_table(dataset.path_prefix):
        table = DocumentTable(dataset.path_prefix)
        if table.numbers is None:
            _read_hashes(table, out)
        else:
            base = np.empty((table.ends[-1], width), np.uint64)
            _read_hashes(table, base)
            out[:] = base[table.numbers]
        on_bytes(dataset.token_count * dataset.dtype.itemsize)
        return
    if ends is None:
        ends = document_ends(dataset.sizes, dataset.doc_idx)

    def look(first: int, tokens: npt.NDArray[Any], spans: Int64s) -> None:
        out[first : first + len(spans)] = _halves(token_digests(tokens, spans))[:, :width]

    for size, _ in scan_documents(dataset, ends, look, threads=threads, sums=sums):
        on_bytes(size)


def pairs_of_parts(keys: Keys, *, neighbours: bool, threads: int) -> Iterator[Int64s]:
    """Pairs of documents with equal keys, [pairs, 2]: the first of a key with each other one.

    With ``neighbours`` as in ``_core.equal_pairs``. A key is one number or two: uint64 [documents]
    or [documents, 2]. Threads take a share at a time; pairs come in order.
    """
    parts = -(-max(len(keys), 1) // _PART)
    threads = min(threads or usable_cores(), parts)
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, parts, threads):
            numbers = range(begin, min(begin + threads, parts))
            yield from pool.map(
                lambda part: _core.equal_pairs(keys, part, parts, neighbours), numbers
            )


def _read_hashes(table: DocumentTable, out: Keys) -> None:
    """Write the hashes in all rows of a table."""
    at = 0
    for reader in table:
        for column in reader.column(f"{OWN}tokens_xxh3"):
            begin, count = 16 * column.offset, 16 * len(column)
            keys = _halves(column.buffers()[1][begin : begin + count])
            out[at : at + len(column)] = keys[:, : out.shape[1]]
            at += len(column)


def _halves(digests: Any) -> npt.NDArray[Any]:
    """The upper and the lower half of each digest: big endian uint64 [n, 2]."""
    return np.frombuffer(digests, ">u8").reshape(-1, 2)


MOST_PLACES = 4096  # bands times rows
_PAIRS = 256  # pairs that are compared at a time
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


def _firsts_and_neighbours(pairs: Int64s) -> Iterator[Int64s]:
    """Pairs with the first document of a key, then pairs with the document before.

    Usually the first document is similar to all others; then the second kind needs no comparison.
    """
    again = np.zeros(len(pairs), bool)
    again[1:] = pairs[1:, 1] == pairs[:-1, 1]
    yield pairs[~again]
    if again.any():
        yield pairs[again]


def _roots(parents: Int64s) -> Int64s:
    """The root of each tree, by replacing parents with grandparents until nothing changes."""
    roots = parents
    while True:
        above: Int64s = roots[roots]
        if np.array_equal(above, roots):
            return above
        roots = above


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
    with ``near`` 8 more per band. ``progress`` is told bytes of .bin. UsageError for datasets that
    do not fit together, FormatError if one is broken, OutputError if the output exists or cannot be
    written.
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
            documents = _Documents(datasets, new.files, pairs=new.base.pairs)
            size = sum(
                int(one[-1]) * d.dtype.itemsize
                for one, d in zip(documents.ends, datasets, strict=True)
            )
            stage = ProgressStage(progress, "dedup", size * (1 if rules is None else 2))
            documents.find_exact(stage, threads, new.base.sums)
            made_by: dict[str, Any] = {"inputs": prefixes, "near": near}
            if rules is not None:
                documents.find_near(rules, stage, threads)
                made_by |= rules._asdict()
            clusters = documents.write_clusters(output + CLUSTERS_SUFFIX, prefixes, made_by)
            manifest = new.write(ViewSpec(output, documents.kept, {"dedup": made_by}))
            new.publish()
            shares = documents.shares(prefixes)
    return DedupReport(manifest, shares, clusters, rules.recall(rules.near) if rules else None)


class _Documents:
    """The documents of several datasets, numbered through, and the first copy of each.

    With ``pairs`` the unit is a pair: then ``firsts`` and everything else is about pairs.
    """

    def __init__(
        self, datasets: Sequence[MMapIndexedDataset], files: NewFiles, *, pairs: bool
    ) -> None:
        self._datasets, self._files, self._size = datasets, files, 2 if pairs else 1
        self.ends = [document_ends(dataset.sizes, dataset.doc_idx) for dataset in datasets]
        self._lengths = [np.diff(ends[:: self._size]) for ends in self.ends]
        counts = [len(lengths) for lengths in self._lengths]
        self._starts = starts_of(counts)
        self._first_documents = self._size * self._starts
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
        """Find the documents with the tokens of an earlier one. Raises as ``token_hashes``."""
        count = self._count * self._size
        keys = self._files.scratch(2 * count, np.uint64).reshape(count, 2)
        begin = 0
        for dataset, ends in zip(self._datasets, self.ends, strict=False):
            out = keys[begin : begin + len(ends) - 1]
            token_hashes(dataset, out, ends=ends, threads=threads, on_bytes=stage.add, sums=sums)
            begin += len(out)
        if self._size > 1:  # combine the keys of a pair's documents
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
            are_candidates &= self._have_trained().reshape(-1, self._size).all(axis=1)
        candidates = np.flatnonzero(are_candidates)
        documents = self._size * candidates
        hashes = self._sign(documents, rules, stage, threads)
        for others in hashes[1:]:  # combine the hashes of a pair's documents
            for band in range(rules.bands):
                hashes[0, band] *= _PAIR_BASE
                hashes[0, band] += others[band]
        parents = self._files.scratch(len(candidates), np.int64)
        parents[:] = np.arange(len(candidates))
        compared = partial(self._tokens, rules)

        def alike(pairs: Int64s) -> Int64s:
            chosen = [
                all(
                    _core.jaccard(compared(one + i), compared(other + i), rules.ngram) >= rules.near
                    for i in range(self._size)
                )
                for one, other in documents[pairs].tolist()
            ]
            kept: Int64s = pairs[np.array(chosen, bool)]
            return kept

        with ThreadPoolExecutor(threads or usable_cores()) as pool:
            for keys in hashes[0]:
                for pairs in pairs_of_parts(keys, neighbours=rules.verify, threads=threads):
                    for some in _firsts_and_neighbours(pairs):
                        # Copies form trees. A pair that is in the same tree already adds nothing,
                        # so skip the comparison.
                        apart = _core.separate_pairs(parents, some)
                        if rules.verify:
                            begins = range(0, len(apart), _PAIRS)
                            parts = [apart[begin : begin + _PAIRS] for begin in begins]
                            apart = np.concatenate([apart[:0], *pool.map(alike, parts)])
                        _core.join_pairs(parents, apart)
        firsts = candidates[_roots(parents)]
        self._reasons[candidates[firsts != candidates]] = NEAR
        self._firsts[candidates] = firsts
        for begin in range(0, self._count, _STEP):  # exact copies follow their near copy
            part = self._firsts[begin : begin + _STEP]
            part[:] = self._firsts[part]

    def _tokens(self, rules: NearRules, document: int) -> npt.NDArray[Any]:
        """The tokens of a document that are compared."""
        place, number = map(int, self._place(document))
        dataset = self._datasets[place]
        tokens = plain_ids(dataset.document(number))
        tracks = trained_tracks(dataset) if rules.on == "trained" else ()
        if not tracks:
            return tokens
        return tokens[are_trained({name: dataset.track(name).document(number) for name in tracks})]

    def _have_trained(self) -> npt.NDArray[np.bool_]:
        """Whether each document of all datasets has a trained token: bool [documents]."""
        counts = []
        for dataset, bounds in zip(self._datasets, self.ends, strict=True):
            tracks = trained_tracks(dataset)
            counts.append(trained_ends(dataset.shards(), tracks, bounds) if tracks else bounds)
        return np.concatenate([np.diff(one) > 0 for one in counts])

    def _sign(
        self, documents: Int64s, rules: NearRules, stage: ProgressStage, threads: int
    ) -> npt.NDArray[np.uint64]:
        """The hashes of the bands: uint64 [documents of each, bands, candidates].

        ``documents`` are the first documents of candidates. The two documents of a pair share the
        rows of a band, half each. So pairs match with the same probability as single documents of
        equal similarity, and not just because they have the same preferred answer, which is
        frequent.
        """
        together, base = self._size, 0
        shape = together, rules.bands, len(documents)
        hashes = self._files.scratch(math.prod(shape), np.uint64).reshape(shape)
        for dataset, bounds in zip(self._datasets, self.ends, strict=True):

            def look(first: int, tokens: Any, spans: Int64s, base: int = base) -> None:
                for i in range(together):
                    begin = base + first - i
                    low, high = np.searchsorted(documents, (begin, begin + len(spans)))
                    chosen = spans[documents[low:high] - begin]
                    rows = max((rules.rows + together - 1 - i) // together, 1)
                    hashes[i, :, low:high] = _core.band_hashes(
                        tokens, chosen, rules.ngram, rules.bands, rows
                    ).T

            tracks = trained_tracks(dataset) if rules.on == "trained" else ()
            for size, _ in scan_documents(dataset, bounds, look, threads=threads, tracks=tracks):
                stage.add(size)
            base += dataset.documents
        return hashes

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
