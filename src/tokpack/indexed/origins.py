"""Which input and line a document came from, and what became of a line, by the inputs' names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokpack.errors import InputError, UsageError
from tokpack.indexed.document_table import DocumentTable
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.table import EMPTY, ROW_GROUP, TableReader, check_footer, dropped_path
from tokpack.stores import near

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

_OPEN = 8  # shards
_WHERE = ("source", "line")
Became = Literal["document", "empty", "rejected", "unselected", "nothing"]


@dataclass(frozen=True)
class Origin:
    """A line of an input, and what became of it.

    ``source`` is the input's name as in the manifest; ``line`` counts from 1: lines of JSON lines
    and plain text (blank ones too, compressed or not), elements of a JSON array, rows of a table,
    records of an archive; None where it is not known. It became a ``document``, whose number in the
    dataset is ``document``; or it was left out: ``empty`` (no token), ``rejected`` with a
    ``reason``, ``unselected`` where it is a document that a view does not list; ``nothing`` is a
    line that is no record, or one that
    ``where`` or ``map`` left out, of which nothing is kept. ``kept`` are the kept values of a
    document, by column, where they were asked for.
    """

    source: str
    line: int | None
    became: Became
    document: int | None = None
    reason: str = ""
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """``wiki.jsonl:123``."""
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Origins:
    """The origins of the documents of the dataset ``prefix``, by its table and manifest.

    A dataset in shards has the tables of its shards, each opened when it is asked, and a view those
    of the datasets of which it lists documents. InputError where one of these is missing,
    FormatError where it is broken or of another dataset. Opening takes a moment, that of a view a
    pass over its list; a question some milliseconds, and less for a document near the one before.
    With ``kept`` they have the kept values of documents, which takes longer to read.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, kept: bool = False) -> None:
        self._has_kept = kept
        self.table = table = DocumentTable(prefix)
        self._dropped = lru_cache(_OPEN)(_dropped)
        self._manifests = [Manifest.load(table.prefix)]
        if table.numbers is not None:  # the inputs of a view are datasets, and not what these read
            bases = (Manifest.find(one) for one in table.prefixes)
            self._manifests = [one for one in bases if one is not None]
        names = [name for one in self._manifests for name in _names(one)]
        self.sources = names if table.numbers is None else list(dict.fromkeys(names))

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.table)

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self.table.prefix}: document {document} of {len(self)}")
        [origin] = self._of(number, number + 1)
        return origin

    def __iter__(self) -> Iterator[Origin]:
        for begin in range(0, len(self), ROW_GROUP):
            yield from self._of(begin, min(begin + ROW_GROUP, len(self)))

    def _of(self, begin: int, end: int) -> Iterator[Origin]:
        """The origins of documents [begin, end)."""
        columns = (*_WHERE, *(self.table.kept if self._has_kept else ()))
        rows = self.table.rows(np.arange(begin, end), columns)
        for number, row in enumerate(rows, begin):
            source, line = row.pop("source"), row.pop("line")
            yield Origin(source, line, "document", number, kept=row)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError where there is no such input, or several are meant.
        """
        table = self.table
        name = self.sources[_matching(self.sources, source, table.prefix)]
        origins = []
        for shard, first in enumerate(table.ends[:-1]):
            reader = table.shard(shard)
            for row in reader.find(name, line, (*_WHERE, *(reader.kept if self._has_kept else ()))):
                number = row.pop("row")
                kept = {key: value for key, value in row.items() if key not in _WHERE}
                origin = Origin(name, line, "document", number, kept=kept)
                origins += self._with_number(origin, shard, first + number)
            origins += self._dropped_origins(shard, name, line)
        return origins or [Origin(name, line, "nothing", reason=self._no_record(name))]

    def _with_number(self, origin: Origin, shard: int, number: int) -> list[Origin]:
        """An origin with each number that a document of the shards has in the dataset."""
        if self.table.numbers is None:
            return [replace(origin, document=number)]
        places = np.flatnonzero(self.table.numbers == number).tolist()
        reason = f"it is document {origin.document} of {self.table.prefixes[shard]}"
        left_out = replace(origin, became="unselected", document=None, reason=reason)
        return [replace(origin, document=place) for place in places] or [left_out]

    def _dropped_origins(self, shard: int, source: str, line: int) -> Iterator[Origin]:
        """Those of the records of a line that a shard has left out."""
        dropped = self._dropped(self.table.prefixes[shard])
        for row in [] if dropped is None else dropped.find(source, line, (*_WHERE, "reason")):
            if row["reason"] == EMPTY:
                yield Origin(source, line, "empty", reason="no token")
            else:
                yield Origin(source, line, "rejected", reason=row["reason"])

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


def _dropped(prefix: str) -> TableReader | None:
    """The table of the records that a shard has left out, where there are such."""
    manifest, path = Manifest.load(prefix), dropped_path(prefix)
    if manifest.dropped is None:
        return None
    left_out = manifest.empty + manifest.rejected - manifest.kept_empty
    try:
        local = near(path)
        check_footer(local, manifest, left_out, path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing, of which the manifest tells") from None
    return TableReader(local, path)


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
