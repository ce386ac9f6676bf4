"""Select documents of datasets: a view of the chosen documents, which copies nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset, selection_dtype
from tokpack.dataset.format import document_lengths, prefixes_of
from tokpack.dataset.table import NO_TOKENS
from tokpack.display import brief
from tokpack.documents.base import Base, as_count, as_share, as_table
from tokpack.documents.expressions import IN_MEMORY, SelectRequest, SelectResult, evaluate
from tokpack.documents.keys import token_hashes
from tokpack.documents.write import NewViews, ViewSpec
from tokpack.errors import UsageError, option
from tokpack.machine import usable_cores
from tokpack.sources import is_table
from tokpack.storage import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokpack.dataset.manifest import Manifest
    from tokpack.sources import ArrowStream
    from tokpack.storage import PathLike

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]


# A random share of documents is drawn by hash: whether a document is in it depends only on its
# tokens and a seed. So a larger share contains the smaller ones, adding documents moves no other
# document in or out, and equal documents are in or out together.

Hashes = npt.NDArray[np.uint64]

_STEP = 1 << 16  # numbers that are handled at a time, so that they stay in the cache
_BUCKET_BITS = 16
_BUCKET_SHIFT = np.uint64(64 - _BUCKET_BITS)


def draw(base: Base, seed: int) -> Hashes:
    """A random number for each document of the base, the same for equal tokens: uint64 [documents].

    It is uniform, and depends on ``seed``. Hashes come from the tables of documents if they exist,
    else from tokens. Both documents of a pair have the first one's.
    """
    numbers = np.full(int(base.starts[-1]), NO_TOKENS, np.uint64)
    for number, record in enumerate(base.records):
        out = numbers[base.starts[number] : base.starts[number + 1], None]
        with MMapIndexedDataset(record.prefix) as dataset:
            token_hashes(
                dataset, out, threads=usable_cores(), on_bytes=lambda size: None, sums=base.sums
            )
    for begin in range(0, len(numbers), _STEP):
        part = numbers[begin : begin + _STEP]
        part ^= np.uint64(_core.mix(seed))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # Splitmix64
            part ^= part >> np.uint64(shift)
            part *= np.uint64(factor)
        part ^= part >> np.uint64(31)
    if base.pairs:
        numbers[1::2] = numbers[::2]
    return numbers


def lowest(numbers: Hashes, weights: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.bool_]:
    """Whether each document has one of the lowest numbers, of total weight ``most``: bool [n].

    Documents of weight 0 may be included. Documents with equal numbers are included together or not
    at all.
    """
    sums, room = np.zeros(1 << _BUCKET_BITS), np.empty(_STEP, np.uint64)
    for begin in range(0, len(numbers), _STEP):
        part = numbers[begin : begin + _STEP]
        buckets = np.right_shift(part, _BUCKET_SHIFT, out=room[: len(part)]).view(np.int64)
        sums += np.bincount(buckets, weights[begin : begin + _STEP], minlength=len(sums))
    ends = np.cumsum(sums)  # exact, since far below 2^53
    bucket = int(np.searchsorted(ends, most, side="right"))
    if bucket == len(sums):
        return np.ones(len(numbers), np.bool_)
    within: npt.NDArray[np.bool_] = numbers < np.uint64(bucket << int(_BUCKET_SHIFT))
    places = [np.zeros(0, np.int64)]  # of numbers in the last bucket
    for begin in range(0, len(numbers), _STEP):
        part = numbers[begin : begin + _STEP] >> _BUCKET_SHIFT
        places.append(np.flatnonzero(part == np.uint64(bucket)) + begin)
    last = np.concatenate(places)
    left = most - (int(ends[bucket - 1]) if bucket else 0)
    order = last[np.argsort(numbers[last], kind="stable")]
    over = order[np.cumsum(weights[order]) > left]
    within[last] = numbers[last] < numbers[over[0]] if len(over) else True
    return within


def select(
    inputs: PathLike | Iterable[PathLike],
    output: PathLike,
    *,
    where: str | None = None,
    join: PathLike | Iterable[PathLike] | ArrowStream | None = None,
    on: str | Sequence[str] | None = None,
    repeat: str | int | None = None,
    random: float | str | None = None,
    tokens: float | str | None = None,
    first: int | str | None = None,
    seed: int = 0,
    rest: PathLike | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Write the view ``output`` of the documents of datasets that pass; nothing is copied.

    A view is a dataset like any other: a manifest, and the numbers of its documents, in the order
    of the inputs. ``where`` is an SQL expression on the columns of the datasets' tables
    (``encode(keep=...)``) and on those of the table ``join`` (.parquet, .csv, .tsv, .jsonl or .json
    files, a pyarrow Table, a DataFrame of pandas or polars); a row belongs to the document with the
    same values in the columns ``on`` ("id", or "id=doc_id" if it has another name in the table).
    ``repeat`` is an SQL expression for how often a document occurs, or ``"2 if score > 0.9"``.

    One of these takes a part of the documents that pass: ``random``, a share (0.1, "10%") by a hash
    of their tokens and ``seed``; ``tokens`` (10e9, "10B"), as many by the same hash as fit into
    this number of tokens, with repeats; ``first``, a number of documents from the beginning. The
    documents that this leaves out are written to the view ``rest``, as often as in the inputs,
    without ``repeat``. Pairs (a preferred and a rejected answer) are kept or dropped as a whole:
    ``where`` must be true of both documents, and the hash of the first counts.

    The manifest's ``options["select"]`` has the request, and counts that add up: ``documents`` in
    the inputs are ``kept`` or ``dropped``, by reason. UsageError for expressions that cannot be
    evaluated and if nothing is kept, InputError for a missing table, or a ``join`` without matches,
    FormatError for a table of another dataset, OutputError if an output exists.
    """
    prefixes = prefixes_of(paths_of(inputs))
    choice = _Choice(
        request=_request(where, repeat, join, on),
        random=as_share("random", random),
        tokens=as_count("tokens", tokens),
        first=as_count("first", first),
        seed=as_count("seed", seed) or 0,
    )
    choice.check(rest is not None)
    outputs = [os.fspath(output), *([] if rest is None else [os.fspath(rest)])]
    datasets = [MMapIndexedDataset(prefix) for prefix in prefixes]
    with NewViews(outputs, datasets, overwrite=overwrite) as new:
        selection = choice.of(new.base, with_left=rest is not None)
        parts = (("output", selection.kept), ("rest", selection.left))
        specs = [
            ViewSpec(name, documents, {"select": {**choice.to_json(part), **selection.counts}})
            for name, (part, documents) in zip(outputs, parts, strict=False)
        ]
        for spec in specs:
            if not len(spec.documents):
                raise UsageError(f"{spec.output} would have no documents: of {selection.shown}")
        manifests = [new.write(spec) for spec in specs]
        new.publish()
    return manifests[0]


def documents_where(dataset: MMapIndexedDataset, where: str) -> Int64s:
    """The numbers of the documents of ``dataset`` that ``where`` chooses, as for ``select``."""
    base, numbers = Base([dataset]), np.arange(dataset.documents)
    chosen = evaluate(SelectRequest(where, None, (), ()), base).chosen
    return numbers[chosen[base.numbers(0, numbers)]]


@dataclass
class _Selection:
    """The numbers, in the inputs, of documents that are kept, with repeats, and of the rest.

    The rest are only those outside the share; ``counts`` add up.
    """

    kept: npt.NDArray[Any]
    left: npt.NDArray[Any]
    counts: dict[str, Any]

    @property
    def shown(self) -> str:
        """The counts in words."""
        dropped = self.counts["dropped"].items()
        reasons = (f"{count:,} are dropped by {option(why)}" for why, count in dropped)
        return ", ".join([f"{self.counts['documents']:,}", *reasons])


@dataclass(frozen=True)
class _Choice:
    """The request of ``select``."""

    request: SelectRequest
    random: float | None
    tokens: int | None
    first: int | None
    seed: int

    @property
    def shares(self) -> dict[str, float]:
        """The requested kinds of shares; at most one is allowed."""
        shares = {"random": self.random, "tokens": self.tokens, "first": self.first}
        return {name: value for name, value in shares.items() if value is not None}

    def check(self, has_rest: bool) -> None:
        """Raise UsageError for contradictory or missing options."""
        request, shares = self.request, list(self.shares)
        if len(shares) > 1:
            raise UsageError(f"{option(shares[0])} and {option(shares[1])}: choose one of them")
        if self.random is not None and not 0 < self.random <= 1:
            raise UsageError(
                f"{option('random', self.random)}: expected a share above 0 and at most 1"
            )
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"{option('seed', self.seed)}: expected 0 to 2^64 - 1")
        for name, value in self.shares.items():
            if name != "random" and not 1 <= value < 2**62:
                raise UsageError(f"{option(name, value)}: expected 1 or more")
        if has_rest and not shares:
            raise UsageError(
                f"{option('rest')} is for what {option('random')}, {option('tokens')} or "
                f"{option('first')} leaves out: give one of these"
            )
        if bool(request.join) != bool(request.keys):
            raise UsageError(
                f"{option('join')} needs {option('on')}: the columns that match its rows to "
                "documents"
                if request.join
                else f"{option('on')} needs {option('join')}: the table that has these columns"
            )
        if request.join and not (request.where or request.repeat):
            raise UsageError(
                f"{option('join')} chooses nothing by itself: add {option('where')} or "
                f"{option('repeat')}"
            )

    def to_json(self, part: str) -> dict[str, Any]:
        """The request as JSON for a manifest."""
        request = self.request
        values = {
            "where": request.where,
            "repeat": request.repeat if part == "output" else None,
            "join": [os.path.basename(path) for path in request.join] or None,
            "on": [here if here == there else f"{here}={there}" for here, there in request.keys]
            or None,
            **self.shares,
            "seed": self.seed if {"random", "tokens"} & self.shares.keys() else None,
            "part": part if part == "rest" else None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def of(self, base: Base, *, with_left: bool) -> _Selection:
        """Choose among the documents of datasets; list the rest if requested."""
        documents = int(base.starts[-1])
        answer = SelectResult(np.ones(documents, np.bool_), None, None)
        if self.request.where is not None or self.request.repeat is not None:
            answer = evaluate(self.request, base)
        together = 2 if base.pairs else 1  # documents kept or dropped together
        within = self._within(base, answer)
        first = None if self.first is None else self.first // together * together
        kept, left = [], []
        passed = outside = lost = 0  # pass the expression; outside the share; repeated 0 times
        for numbers, rows in _documents(base):
            passes = answer.chosen[rows]
            if base.pairs:
                passes = np.repeat(passes[::2] & passes[1::2], 2)
            passing = int(np.count_nonzero(passes))
            inside = passes  # those that are in the share
            if within is not None:
                inside = passes & within[rows]
            elif first is not None and passed + len(passes) > first:
                inside = passes & (np.cumsum(passes) <= first - passed)
            passed += passing
            outside += passing - int(np.count_nonzero(inside))
            if with_left:
                left.append(numbers[passes & ~inside])
            chosen = numbers[inside]
            if answer.times is not None:
                times = answer.times[rows][inside]
                lost += int(np.count_nonzero(times == 0))
                if base.pairs:
                    self._check_pairs(chosen, times)
                chosen = np.repeat(chosen.reshape(-1, together), times[::together], axis=0).ravel()
            kept.append(chosen)
        total = int(base.firsts[-1])
        dropped: dict[str, int] = {}
        if self.request.where:
            dropped["where"] = total - passed
        if self.request.repeat:
            dropped["repeat"] = lost
        dropped |= dict.fromkeys(self.shares, outside)
        counts: dict[str, Any] = {
            "documents": total,
            "kept": passed - outside - lost,
            "dropped": dropped,
        }
        if self.request.repeat is not None:
            counts["with_repeats"] = sum(map(len, kept))
        if answer.unmatched is not None:
            counts["unmatched"] = answer.unmatched
        none = np.zeros(0, selection_dtype(total))
        return _Selection(np.concatenate([none, *kept]), np.concatenate([none, *left]), counts)

    def _check_pairs(self, documents: npt.NDArray[Any], times: npt.NDArray[np.uint16]) -> None:
        """Raise UsageError for a pair with different repeats."""
        for one in np.flatnonzero(times[::2] != times[1::2])[:1].tolist():
            number = int(documents[2 * one])
            raise UsageError(
                f"{option('repeat')} {self.request.repeat}: gives {times[2 * one]} for document "
                f"{number} and {times[2 * one + 1]} for document {number + 1}, the other of its "
                "pair: it must give both the same"
            )

    def _within(self, base: Base, answer: SelectResult) -> Bools | None:
        """Whether each document of the base is in a share by hash; None for any other share."""
        if self.random is None and self.tokens is None:
            return None
        numbers = draw(base, self.seed)
        if self.random is not None:
            limit = int(self.random * 2**64)
            if limit >= 2**64:
                return np.ones(len(numbers), np.bool_)
            within: Bools = numbers < np.uint64(limit)
            return within
        times = answer.chosen.astype(np.int64)
        if answer.times is not None:
            times *= answer.times
        if any(dataset.view is not None for dataset in base.datasets) or len(base.moves) > 1:
            listed = np.zeros(len(times), np.int64)
            for _, rows in _documents(base):
                if isinstance(rows, slice):
                    listed[rows] += 1
                else:
                    np.add.at(listed, rows, 1)
            times *= listed
        for number, shard in enumerate(base.shards()):
            part = times[base.starts[number] : base.starts[number + 1]]
            part *= document_lengths(shard.index.lengths, shard.index.doc_idx)
        return lowest(numbers, times, self.tokens or 0)


def _documents(base: Base) -> Iterator[tuple[npt.NDArray[Any], Int64s | slice]]:
    """The documents of all inputs, some at a time: by their numbers in these, and in the base."""
    dtype = selection_dtype(int(base.firsts[-1]))
    for number in range(len(base.datasets)):
        first, end = int(base.firsts[number]), int(base.firsts[number + 1])
        for begin in range(first, end, _STEP):
            here = slice(begin - first, min(begin + _STEP, end) - first)
            yield np.arange(begin, first + here.stop, dtype=dtype), base.places(number, here)


def _request(where: Any, repeat: Any, join: Any, on: str | Sequence[str] | None) -> SelectRequest:
    """The request for documents. UsageError."""
    repeat = str(repeat) if isinstance(repeat, int) else repeat
    if not (repeat is None or isinstance(repeat, str)):
        raise UsageError(
            f"{option('repeat')} is {brief(repeat)}; it is a whole number, or an expression in SQL "
            "such as '2 if score > 0.9'"
        )
    if is_table(join):
        return SelectRequest(where, repeat, [IN_MEMORY], _keys(on), as_table("join", join))
    files = [] if join is None else paths_of(join, option("join"))
    return SelectRequest(where, repeat, files, _keys(on))


def _keys(on: str | Sequence[str] | None) -> list[tuple[str, str]]:
    """The columns of documents and of a joined table, from ``id`` or ``id=doc_id``."""
    texts = [on] if isinstance(on, str) else on or ()
    pairs = [name.partition("=") for text in texts for name in text.split(",") if name]
    return [(here, there if equals else here) for here, equals, there in pairs]
