"""Which input and line a document came from, and what became of a line, by the inputs' names."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.foreign import parse_json
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shards import is_virtual, piece_prefix
from tokpack.indexed.trace import Trace, trace_path
from tokpack.stores import open_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_OPEN = 8  # shards
Became = Literal["document", "empty", "rejected", "nothing"]


@dataclass(frozen=True)
class Origin:
    """A line of an input, and what became of it.

    ``source`` is the input's name as in the manifest, ``number`` its place there, from 0; ``line``
    counts from 1: lines of JSON lines and plain text (blank ones too, compressed or not), elements
    of a JSON array, rows of a table, records of an archive. It became a ``document``, whose number
    in the dataset is ``document``; or it was left out: ``empty`` (no token), ``rejected`` with a
    ``reason``, where that is still known; ``nothing`` is a line that is no record.
    """

    source: str
    number: int
    line: int
    became: Became
    document: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        """``wiki.jsonl:123``."""
        return f"{self.source}:{self.line}"


class Origins:
    """The origins of the documents of the dataset ``prefix``, by its trace and manifest.

    A dataset in shards has the traces of its shards, each opened when it is asked. InputError where
    one of these is missing, FormatError where it is broken or of another dataset. Opening takes a
    moment, a question some ten microseconds.
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
            self._manifest = self._shard(0).manifest
            counts = [self._manifest.documents + self._manifest.kept_empty]
        self._ends = [0, *accumulate(counts)]
        self.sources = _names(self._manifest)
        if self._prefixes:
            self._shard(0)  # so that what has no trace is known at once

    def __len__(self) -> int:
        """Number of documents."""
        return self._ends[-1]

    @property
    def trace(self) -> Trace:
        """The trace of the first shard, which mostly is the only one."""
        return self._shard(0).trace

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self._prefix}: document {document} of {len(self)}")
        shard = bisect_right(self._ends, number) - 1
        return self._numbered(shard, self._shard(shard).origin(number - self._ends[shard]))

    def __iter__(self) -> Iterator[Origin]:
        for shard in range(len(self._prefixes)):
            for origin in self._shard(shard):
                yield self._numbered(shard, origin)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError where there is no such input, or no such line in it, or several are meant.
        """
        name = self.sources[_matching(self.sources, source, self._prefix)]
        origins: dict[int, Origin] = {}
        error = UsageError(f"{self._prefix}: no shard has lines of {name}")
        for shard in range(len(self._prefixes)):
            reader = self._shard(shard)
            for number in (n for n, source in enumerate(reader.sources) if source == name):
                try:
                    origin = self._numbered(shard, reader.became(number, line))
                except UsageError as failure:  # its lines in this shard end before that
                    error = failure
                    continue
                # Of a file in several shards the first that reaches the line is asked.
                origins.setdefault(origin.number, origin)
        if not origins:
            raise error
        return list(origins.values())

    def _numbered(self, shard: int, origin: Origin) -> Origin:
        """With the numbers that document and input have in the whole dataset."""
        if not shard:
            return origin
        document = None if origin.document is None else self._ends[shard] + origin.document
        return replace(origin, document=document, number=self._first_inputs[shard] + origin.number)

    @cached_property
    def _first_inputs(self) -> list[int]:
        """The number of the first input of each shard; the last of one may go on in the next."""
        records = _records(self._manifest)
        numbers, end = [], 0
        left = 0  # records of the input before ``end`` that no shard so far has
        for shard in map(self._shard, range(len(self._prefixes))):
            goes_on = end > 0 and (left > 0 or self.sources[end : end + 1] != shard.sources[:1])
            numbers.append(end - goes_on)
            end = numbers[-1] + len(shard.sources)
            before = left if goes_on and len(shard.sources) == 1 else records[end - 1]
            left = before - shard.records[-1]
        return numbers


class _ShardOrigins:
    """The origins of the documents of one shard, which are numbered in it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.trace = Trace(trace_path(prefix))
        self.manifest = manifest = Manifest.load(prefix)
        self.sources, self.records = _names(manifest), _records(manifest)
        kept = manifest.kept_empty
        expected = (
            len(manifest.inputs),
            manifest.documents + kept,
            manifest.empty - kept,
            manifest.rejected,
        )
        counts = (self.trace.count(kind) for kind in ("documents", "empty", "rejected"))
        there = (self.trace.sources, *counts)
        other = manifest.trace is not None and manifest.trace["bytes"] != self.trace.bytes
        if there != expected or other:
            raise FormatError(
                f"{self.trace.path}: inputs, documents, empty and rejected records are {there}, "
                f"expected {expected}, as {manifest_path(prefix)} has them: the files do not "
                "belong together"
            )

    def origin(self, number: int) -> Origin:
        """Where a document of this shard came from."""
        source, line = self.trace.locate(number)
        return Origin(self.sources[source], source, line, "document", number)

    def __iter__(self) -> Iterator[Origin]:
        for run in self.trace.runs():
            name = self.sources[run.source]
            for i in range(run.length):
                yield Origin(name, run.source, run.line + i, "document", run.first + i)

    def became(self, number: int, line: int) -> Origin:
        """What became of a line of input ``number``. UsageError where it has no such line."""
        name, lines = self.sources[number], self.trace.lines(number)
        document = self.trace.find(number, line)
        if document is not None:
            return Origin(name, number, line, "document", document)
        if self.trace.find(number, line, "empty") is not None:
            return Origin(name, number, line, "empty", reason="no token")
        if self.trace.find(number, line, "rejected") is not None:
            return Origin(name, number, line, "rejected", reason=self._reason(name, line))
        limit = self.manifest.options.get("num_docs")
        if limit is not None:
            reason = f"blank, or not among the first {limit} records, which were read"
            return Origin(name, number, line, "nothing", reason=reason)
        if not 1 <= line <= lines:
            raise UsageError(f"{name} has {lines} lines, and no line {line}")
        return Origin(name, number, line, "nothing", reason="a blank line")

    def _reason(self, source: str, line: int) -> str:
        """From the rejects file, which may be gone; with several keys it has the common name."""
        key = self.manifest.options.get("key", "")
        common = re.sub(rf"_{re.escape(str(key))}(-\d+)?$", r"\1", self._prefix)  # of a shard, too
        for stem in (self._prefix, common):
            try:
                with open_file(stem + ".rejects.jsonl") as file:
                    for text in file:
                        record = parse_json(text, stem)
                        if record["source"] == source and record["line"] == line:
                            return str(record["reason"])
            except (OSError, InputError, ValueError, KeyError, TypeError):  # also FormatError
                continue
        return ""


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


def _entries(manifest: Manifest) -> list[dict[str, Any]]:
    return [entry if isinstance(entry, dict) else {} for entry in manifest.inputs]


def _names(manifest: Manifest) -> list[str]:
    return [str(entry.get("name", "?")) for entry in _entries(manifest)]


def _records(manifest: Manifest) -> list[int]:
    """How many records each input had, as a manifest says; 0 where it does not."""
    counts = [entry.get("records") for entry in _entries(manifest)]
    return [count if isinstance(count, int) else 0 for count in counts]
