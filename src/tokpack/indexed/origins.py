"""Which input and line a document came from, and what became of a line, by the inputs' names."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

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
from tokpack.stores import near

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Any

_OPEN = 8  # shards
_WHERE = ("source", "line")
Became = Literal["document", "empty", "rejected", "nothing"]


@dataclass(frozen=True)
class Origin:
    """A line of an input, and what became of it.

    ``source`` is the input's name as in the manifest; ``line`` counts from 1: lines of JSON lines
    and plain text (blank ones too, compressed or not), elements of a JSON array, rows of a table,
    records of an archive. It became a ``document``, whose number in the dataset is ``document``; or
    it was left out: ``empty`` (no token), ``rejected`` with a ``reason``; ``nothing`` is a line
    that is no record.
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

    A dataset in shards has the tables of its shards, each opened when it is asked. InputError where
    one of these is missing, FormatError where it is broken or of another dataset. Opening takes a
    moment; a question some milliseconds, and less for a document near the one before.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self._prefix = prefix_of(prefix)
        self._shard = lru_cache(_OPEN)(lambda shard: _ShardOrigins(self._prefixes[shard]))
        if is_virtual(self._prefix):
            self._manifest = Manifest.load(self._prefix)
            if self._manifest.selection is not None:  # its numbers are those of other documents
                raise InputError(
                    f"{self._prefix}: is a view, which has no trace: ask the datasets of which it "
                    "lists documents"
                )
            pieces = self._manifest.pieces or ()
            self._prefixes = [piece_prefix(self._prefix, piece) for piece in pieces]
            counts = [piece.documents for piece in pieces]
        else:
            self._prefixes = [self._prefix]
            counts = [len(self._shard(0).table)]
            self._manifest = Manifest.load(self._prefix)
        self._ends = [0, *accumulate(counts)]
        self.sources = _names(self._manifest)
        if self._prefixes:
            self._shard(0)  # so that what has no table is known at once

    def __len__(self) -> int:
        """Number of documents."""
        return self._ends[-1]

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self._prefix}: document {document} of {len(self)}")
        shard = bisect_right(self._ends, number) - 1
        first = number - self._ends[shard]
        [row] = self._shard(shard).table.rows(first, first + 1, _WHERE)
        return Origin(row["source"], row["line"], "document", number)

    def __iter__(self) -> Iterator[Origin]:
        for shard, (first, last) in enumerate(zip(self._ends, self._ends[1:], strict=False)):
            table = self._shard(shard).table
            for begin in range(0, last - first, ROW_GROUP):
                rows = table.rows(begin, min(begin + ROW_GROUP, last - first), _WHERE)
                for number, row in enumerate(rows, first + begin):
                    yield Origin(row["source"], row["line"], "document", number)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError where there is no such input, or several are meant.
        """
        name = self.sources[_matching(self.sources, source, self._prefix)]
        origins = []
        for shard, first in enumerate(self._ends[:-1]):
            for origin in self._shard(shard).became(name, line):
                document = None if origin.document is None else first + origin.document
                origins.append(replace(origin, document=document))
        limit = self._manifest.options.get("num_docs")
        more = "" if limit is None else f", or not among the first {limit} records, which were read"
        reason = f"blank, or behind the last line{more}"
        return origins or [Origin(name, line, "nothing", reason=reason)]


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
