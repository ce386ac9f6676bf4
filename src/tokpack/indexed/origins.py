"""Which input and line a document came from, and what became of a line, by the inputs' names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokpack.errors import InputError, UsageError
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.table import (
    EMPTY,
    ROW_GROUP,
    TableReader,
    check_footer,
    dropped_path,
    table_file,
    table_path,
)
from tokpack.indexed.view import numbers_of_view
from tokpack.stores import near

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import Any

    import numpy.typing as npt

    from tokpack.indexed.selection import Numbers

    Int64s = npt.NDArray[np.int64]

_OPEN = 8  # shards
_WHERE = ("source", "line")
Became = Literal["document", "empty", "rejected", "unselected", "nothing"]


@dataclass(frozen=True)
class Origin:
    """A line of an input, and what became of it.

    ``source`` is the input's name as in the manifest; ``line`` counts from 1: lines of JSON lines
    and plain text (blank ones too, compressed or not), elements of a JSON array, rows of a table,
    records of an archive. It became a ``document``, whose number in the dataset is ``document``; or
    it was left out: ``empty`` (no token), ``rejected`` with a ``reason``, ``unselected`` where it
    is a document that a view does not list; ``nothing`` is a line that is no record, or one that
    ``where`` or ``map`` left out, of which nothing is kept.
    """

    source: str
    line: int
    became: Became
    document: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        """``wiki.jsonl:123``."""
        return f"{self.source}:{self.line}"


class Origins:
    """The origins of the documents of the dataset ``prefix``, by its table and manifest.

    A dataset in shards has the tables of its shards, each opened when it is asked, and a view those
    of the datasets of which it lists documents. InputError where one of these is missing,
    FormatError where it is broken or of another dataset. Opening takes a moment, that of a view a
    pass over its list; a question some milliseconds, and less for a document near the one before.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self._prefix = prefix_of(prefix)
        self._shard = lru_cache(_OPEN)(lambda shard: _ShardOrigins(self._prefixes[shard]))
        self._numbers: Numbers | None = None  # of a view's documents in its datasets
        if is_virtual(self._prefix):
            manifest = Manifest.load(self._prefix)
            if manifest.selection is not None:
                self._numbers = numbers_of_view(self._prefix)
            pieces = manifest.pieces or ()
            self._prefixes = [piece_prefix(self._prefix, piece) for piece in pieces]
            counts = [piece.documents for piece in pieces]
        else:
            self._prefixes = [self._prefix]
            counts = [len(self._shard(0).table)]
            manifest = Manifest.load(self._prefix)
        self._ends = [0, *accumulate(counts)]
        self._manifests = [manifest]
        if self._numbers is not None:  # the inputs of a view are datasets, and not what these read
            bases = (Manifest.find(one) for one in self._prefixes)
            self._manifests = [one for one in bases if one is not None]
        names = [name for one in self._manifests for name in _names(one)]
        self.sources = names if self._numbers is None else list(dict.fromkeys(names))
        if self._prefixes:
            self._shard(0)  # so that what has no table is known at once

    def __len__(self) -> int:
        """Number of documents."""
        return self._ends[-1] if self._numbers is None else len(self._numbers)

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self._prefix}: document {document} of {len(self)}")
        [origin] = self._of(number, number + 1)
        return origin

    def __iter__(self) -> Iterator[Origin]:
        for begin in range(0, len(self), ROW_GROUP):
            yield from self._of(begin, min(begin + ROW_GROUP, len(self)))

    def _of(self, begin: int, end: int) -> Iterator[Origin]:
        """The origins of documents [begin, end)."""
        for number, row in enumerate(self.rows(np.arange(begin, end), _WHERE), begin):
            yield Origin(row["source"], row["line"], "document", number)

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the first table, with their types in words."""
        schema = self._shard(0).table.schema
        kinds = ("string" if "dictionary" in str(kind) else str(kind) for kind in schema.types)
        return dict(zip(schema.names, kinds, strict=True))

    def rows(self, documents: Int64s, columns: Sequence[str]) -> list[dict[str, Any]]:
        """What the tables say of documents, int64 [n]; a column that a shard has not is left out.

        IndexError where a document is not there.
        """
        numbers = documents
        if self._numbers is not None:
            numbers = self._numbers[documents].astype(np.int64)
        shards = np.searchsorted(self._ends, numbers, side="right") - 1
        rows: list[dict[str, Any]] = [{}] * len(numbers)
        for shard in np.unique(shards).tolist():
            here, table = np.flatnonzero(shards == shard), self._shard(shard).table
            known = tuple(name for name in columns if name in table.schema.names)
            found = table.take(numbers[here] - self._ends[shard], known)
            for place, row in zip(here.tolist(), found.to_pylist(), strict=True):
                rows[place] = row
        return rows

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError where there is no such input, or several are meant.
        """
        name = self.sources[_matching(self.sources, source, self._prefix)]
        origins = []
        for shard, first in enumerate(self._ends[:-1]):
            for origin in self._shard(shard).became(name, line):
                if origin.document is None:
                    origins.append(origin)
                else:
                    origins += self._with_number(origin, shard, first + origin.document)
        return origins or [Origin(name, line, "nothing", reason=self._no_record(name))]

    def _with_number(self, origin: Origin, shard: int, number: int) -> list[Origin]:
        """An origin with each number that a document of the shards has in the dataset."""
        if self._numbers is None:
            return [replace(origin, document=number)]
        places = np.flatnonzero(self._numbers == number).tolist()
        own = f"it is document {origin.document} of {self._prefixes[shard]}"
        left_out = replace(origin, became="unselected", document=None, reason=own)
        return [replace(origin, document=place) for place in places] or [left_out]

    def _no_record(self, name: str) -> str:
        """Why a line of an input is neither a document nor among those that were left out."""
        reasons = ["blank", "behind the last line"]
        manifests = [one for one in self._manifests if name in _names(one)]
        for key, count in (("where", "left_out"), ("map", "mapped_out")):
            if any(getattr(one, count) for one in manifests):
                reasons.append(f"left out by {key}")
        for limit in {one.options.get("num_docs") for one in manifests} - {None}:
            reasons.append(f"not among the first {limit} records, which were read")
        return f"{', '.join(reasons[:-1])}, or {reasons[-1]}"


class _ShardOrigins:
    """The origins of the documents of one shard, which are numbered in it."""

    def __init__(self, prefix: str) -> None:
        self.table = TableReader(table_file(prefix), table_path(prefix))
        self._prefix = prefix

    @cached_property
    def _dropped(self) -> TableReader | None:
        """The table of records that were left out, where there are such; opened when asked."""
        manifest, path = Manifest.load(self._prefix), dropped_path(self._prefix)
        if manifest.dropped is None:
            return None
        left_out = manifest.empty + manifest.rejected - manifest.kept_empty
        try:
            local = near(path)
            check_footer(local, manifest, left_out, path)
        except FileNotFoundError:
            raise InputError(f"{path} is missing, of which the manifest tells") from None
        return TableReader(local, path)

    def became(self, source: str, line: int) -> Iterator[Origin]:
        """What became of a line of an input of that name."""
        for row in self.table.find(source, line, _WHERE):
            yield Origin(source, line, "document", row["row"])
        rows: list[dict[str, Any]] = []
        if self._dropped is not None:
            rows = self._dropped.find(source, line, (*_WHERE, "reason"))
        for row in rows:
            if row["reason"] == EMPTY:
                yield Origin(source, line, "empty", reason="no token")
            else:
                yield Origin(source, line, "rejected", reason=row["reason"])


def _matching(sources: list[str], source: str, prefix: str) -> int:
    """The number of an input that a user means. UsageError where there is none, or several."""
    if source in sources:
        return sources.index(source)
    end = "/" + source.lstrip("./")
    names = sorted({name for name in sources if ("/" + name).endswith(end)})
    if len(names) == 1:
        return sources.index(names[0])
    if names:
        raise UsageError(f"{source!r} could be {', '.join(names[:5])}: give more of its path")
    some = ", ".join(sources[:5]) + (", ..." if len(sources) > 5 else "")
    raise UsageError(f"{prefix} was not made from {source!r}; its inputs are {some}")


def _names(manifest: Manifest) -> list[str]:
    entries = (entry if isinstance(entry, dict) else {} for entry in manifest.inputs)
    return [str(entry.get("name", "?")) for entry in entries]
