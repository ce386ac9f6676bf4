"""Near copies: documents that share most of their n-grams, found by MinHash."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.documents.exact import pairs_of_parts
from tokpack.documents.passes import scan_documents, trained_tracks
from tokpack.errors import UsageError, option
from tokpack.indexed.table import plain_ids
from tokpack.indexed.track import are_trained, trained_ends
from tokpack.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.indexed.new_files import NewFiles

Int64s = npt.NDArray[np.int64]

MOST_PLACES = 4096  # bands times rows
_PAIRS = 256  # compared at a time


Compared = Literal["all", "trained"]


class NearRules(NamedTuple):
    """What near copies are.

    Two documents whose sets of ``ngram`` tokens in a row share ``near`` of all that they have
    (Jaccard similarity). Signatures of ``bands`` times ``rows`` values find candidates: those that
    agree in all rows of a band. With ``verify`` their sets are compared, without it any two
    candidates are near copies. ``on`` says which tokens they have: all, or those that are trained.
    """

    near: float
    ngram: int
    bands: int
    rows: int
    verify: bool
    on: Compared

    def check(self) -> None:
        """UsageError for values that none of them can have."""
        if not 0 < self.near <= 1:
            raise UsageError(
                f"{option('near', self.near)}: a similarity is above 0 and at most 1, as 0.8"
            )
        for name in ("ngram", "bands", "rows"):
            if getattr(self, name) < 1:
                raise UsageError(f"{option(name, getattr(self, name))}: expected 1 or more")
        if self.bands * self.rows > MOST_PLACES:
            raise UsageError(
                f"{option('bands', self.bands)} with {option('rows', self.rows)}: their product is "
                f"{self.bands * self.rows}, at most {MOST_PLACES} values are compared"
            )

        if self.on not in get_args(Compared):
            raise UsageError(
                f"{option('on', self.on)}: expected one of {', '.join(get_args(Compared))}"
            )

    def check_datasets(self, datasets: Sequence[MMapIndexedDataset], *, pairs: bool) -> None:
        """UsageError for datasets that they cannot be applied to."""
        if self.on == "trained" and not any(map(trained_tracks, datasets)):
            raise UsageError(
                f"{option('on', 'trained')}: no mask beside {datasets[0].path_prefix} says which "
                "tokens are trained, as `tokpack encode --chat` writes it"
            )
        if pairs and not self.verify:
            raise UsageError(
                f"{option('verify')}: pairs are near copies where both of their documents are, "
                "which is always compared: leave it out"
            )

    def recall(self, similarity: float) -> float:
        """The probability that two documents of this similarity are candidates."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


def find_near(
    datasets: Sequence[MMapIndexedDataset],
    ends: Sequence[Int64s],
    candidates: Int64s,
    rules: NearRules,
    new: NewFiles,
    *,
    together: int,
    threads: int,
    on_bytes: Callable[[int], None],
) -> Int64s:
    """The first near copy of each candidate, itself where it is the first: numbers of documents.

    ``candidates``, ascending, are numbers of documents with tokens, through all datasets; ``ends``
    those of ``scan_documents`` for each. What is transitive counts: a copy of a copy belongs to the
    first. With ``together`` 2 they are numbers of pairs, which are found by their first documents,
    and are copies where both are. The result does not depend on threads. On the disk of ``new`` it
    takes 8 bytes for each band of a candidate, and 8 more; in memory the sorting of one part of a
    band.
    """
    hashes = new.scratch(rules.bands * len(candidates), np.uint64)
    hashes = hashes.reshape(rules.bands, len(candidates))
    documents = together * candidates
    _sign(datasets, ends, documents, rules, hashes, threads=threads, on_bytes=on_bytes)
    parents = new.scratch(len(candidates), np.int64)
    parents[:] = np.arange(len(candidates))
    compare = _Comparison(datasets, documents, rules, together)
    with ThreadPoolExecutor(threads or usable_cores()) as pool:
        for band in range(rules.bands):
            for pairs in pairs_of_parts(hashes[band], neighbours=rules.verify, threads=threads):
                for some in _firsts_and_neighbours(pairs):
                    # The trees follow from the pairs alone, so those within one need no look.
                    apart = _core.separate_pairs(parents, some)
                    if rules.verify:
                        apart = compare.alike(apart, pool)
                    _core.join_pairs(parents, apart)
    # parents[i] <= i: one pass in order finds every root.
    return candidates[_roots(parents)]


def have_trained(
    datasets: Sequence[MMapIndexedDataset], ends: Sequence[Int64s]
) -> npt.NDArray[np.bool_]:
    """Which documents of all datasets have a trained token: bool [documents]."""
    counts = []
    for dataset, bounds in zip(datasets, ends, strict=True):
        tracks = trained_tracks(dataset)
        counts.append(trained_ends(dataset.shards(), tracks, bounds) if tracks else bounds)
    return np.concatenate([np.diff(one) > 0 for one in counts])


def _sign(
    datasets: Sequence[MMapIndexedDataset],
    ends: Sequence[Int64s],
    candidates: Int64s,
    rules: NearRules,
    out: npt.NDArray[np.uint64],
    *,
    threads: int,
    on_bytes: Callable[[int], None],
) -> None:
    """Write the hashes of the bands of candidates to ``out``, [bands, candidates]."""
    base = 0
    for dataset, bounds in zip(datasets, ends, strict=True):

        def look(first: int, tokens: Any, spans: Int64s, base: int = base) -> None:
            low, high = np.searchsorted(candidates, (base + first, base + first + len(spans)))
            chosen = spans[candidates[low:high] - (base + first)]
            out[:, low:high] = _core.band_hashes(
                tokens, chosen, rules.ngram, rules.bands, rules.rows
            ).T

        tracks = trained_tracks(dataset) if rules.on == "trained" else ()
        for size, _ in scan_documents(dataset, bounds, look, threads=threads, tracks=tracks):
            on_bytes(size)
        base += dataset.documents


def _firsts_and_neighbours(pairs: Int64s) -> Iterator[Int64s]:
    """Pairs with the first document of a key, then those with the one before.

    Where the first is like all others, as it mostly is, nothing is left to compare of the second.
    """
    again = np.zeros(len(pairs), bool)
    again[1:] = pairs[1:, 1] == pairs[:-1, 1]
    yield pairs[~again]
    if again.any():
        yield pairs[again]


def _roots(parents: Int64s) -> Int64s:
    """The root of each tree: parents of parents, until nothing changes."""
    roots = parents
    while True:
        above: Int64s = roots[roots]
        if np.array_equal(above, roots):
            return above
        roots = above


class _Comparison:
    """Compares the sets of n-grams of candidates, and of those ``together`` with them."""

    def __init__(
        self,
        datasets: Sequence[MMapIndexedDataset],
        documents: Int64s,
        rules: NearRules,
        together: int,
    ) -> None:
        self._datasets, self._documents, self._rules = datasets, documents, rules
        self._together = range(together)
        counts = [dataset.documents for dataset in datasets]
        self._firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def alike(self, pairs: Int64s, pool: ThreadPoolExecutor) -> Int64s:
        """The pairs that are alike enough, in order."""
        some = [pairs[begin : begin + _PAIRS] for begin in range(0, len(pairs), _PAIRS)]
        return np.concatenate([pairs[:0], *pool.map(self._alike, some)])

    def _alike(self, pairs: Int64s) -> Int64s:
        chosen = [self._are_alike(*pair) for pair in self._documents[pairs].tolist()]
        kept: Int64s = pairs[np.array(chosen, bool)]
        return kept

    def _are_alike(self, one: int, other: int) -> bool:
        least, ngram = self._rules.near, self._rules.ngram
        return all(
            _core.jaccard(self._tokens(one + i), self._tokens(other + i), ngram) >= least
            for i in self._together
        )

    def _tokens(self, number: int) -> npt.NDArray[Any]:
        place = int(np.searchsorted(self._firsts, number, side="right")) - 1
        dataset, number = self._datasets[place], number - int(self._firsts[place])
        tokens = plain_ids(dataset.document(number))
        tracks = trained_tracks(dataset) if self._rules.on == "trained" else ()
        if not tracks:
            return tokens
        return tokens[are_trained({name: dataset.track(name).document(number) for name in tracks})]
