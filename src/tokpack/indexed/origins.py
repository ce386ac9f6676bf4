"""Which input and line a document came from, and what became of a line, by the inputs' names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tokpack.errors import FormatError, InputError, UsageError
from tokpack.files.foreign import parse_json
from tokpack.indexed.manifest import Manifest, manifest_path
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.trace import Trace, trace_path
from tokpack.stores import open_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

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

    InputError where one of these is missing, FormatError where it is broken or of another dataset.
    Opening takes a moment, a question some ten microseconds.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self._prefix = prefix_of(prefix)
        self.trace = Trace(trace_path(self._prefix))
        self._manifest = manifest = Manifest.load(self._prefix)
        self.sources = [_name(entry) for entry in manifest.inputs]
        kept = manifest.kept_empty
        expected = (
            len(manifest.inputs),
            manifest.documents + kept,
            manifest.empty - kept,
            manifest.rejected,
        )
        counts = (self.trace.count(kind) for kind in ("documents", "empty", "rejected"))
        found = (self.trace.sources, *counts)
        other = manifest.trace is not None and manifest.trace["bytes"] != self.trace.bytes
        if found != expected or other:
            raise FormatError(
                f"{self.trace.path}: inputs, documents, empty and rejected records are {found}, "
                f"expected {expected}, as {manifest_path(self._prefix)} has them: the files do not "
                "belong together"
            )

    def __len__(self) -> int:
        """Number of documents."""
        return self.trace.count()

    @property
    def records(self) -> list[int]:
        """How many records each input had."""
        return records_of(self._manifest)

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self._prefix}: document {document} of {len(self)}")
        source, line = self.trace.locate(number)
        return Origin(self.sources[source], source, line, "document", number)

    def __iter__(self) -> Iterator[Origin]:
        for run in self.trace.runs():
            name = self.sources[run.source]
            for i in range(run.length):
                yield Origin(name, run.source, run.line + i, "document", run.first + i)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        ``source`` is an input's name, or the end of it (``wiki.jsonl`` for ``data/wiki.jsonl``).
        UsageError where there is no such input, or no such line in it, or several are meant.
        """
        return [
            self.became(number, line) for number in matching(self.sources, source, self._prefix)
        ]

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
        limit = self._manifest.options.get("num_docs")
        if limit is not None:
            reason = f"blank, or not among the first {limit} records, which were read"
            return Origin(name, number, line, "nothing", reason=reason)
        if not 1 <= line <= lines:
            raise UsageError(f"{name} has {lines} lines, and no line {line}")
        return Origin(name, number, line, "nothing", reason="a blank line")

    def _reason(self, source: str, line: int) -> str:
        """From the rejects file, which may be gone; with several keys it has the common name."""
        key = self._manifest.options.get("key", "")
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


def matching(sources: list[str], source: str, prefix: str) -> list[int]:
    """The numbers of the inputs that a user means. UsageError where these are none, or several."""
    exact = [i for i, name in enumerate(sources) if name == source]
    if exact:
        return exact
    end = "/" + source.lstrip("./")
    found = [i for i, name in enumerate(sources) if ("/" + name).endswith(end)]
    names = sorted({sources[i] for i in found})
    if len(names) == 1:
        return found
    if names:
        raise UsageError(f"{source!r} could be {', '.join(names[:5])}: give more of its path")
    some = ", ".join(sources[:5]) + (", ..." if len(sources) > 5 else "")
    raise UsageError(f"{prefix} was not made from {source!r}; its inputs are {some}")


def records_of(manifest: Manifest) -> list[int]:
    """How many records each input had, as a manifest says; 0 where it does not."""
    counts = [entry.get("records") for entry in manifest.inputs if isinstance(entry, dict)]
    return [count if isinstance(count, int) else 0 for count in counts]


def _name(entry: object) -> str:
    return str(entry.get("name", "?")) if isinstance(entry, dict) else "?"
