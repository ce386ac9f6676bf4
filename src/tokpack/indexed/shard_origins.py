"""The origins of the documents of a dataset in shards: each shard's own trace, asked in turn."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from tokpack.errors import UsageError
from tokpack.indexed.manifest import Manifest
from tokpack.indexed.origins import Origin, Origins, matching, records_of
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shards import is_virtual, piece_prefix

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_OPEN = 8  # shards


class ShardOrigins:
    """As ``Origins``, for a dataset whose manifest lists shards that have traces.

    InputError where the first shard has none, later where another has none.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self._prefix = prefix_of(prefix)
        manifest = Manifest.load(self._prefix)
        self._pieces = manifest.pieces or ()
        self._ends = list(accumulate(piece.documents for piece in self._pieces))
        self.sources = [str(entry.get("name", "?")) for entry in manifest.inputs]
        self._records = records_of(manifest)
        self._shard = lru_cache(_OPEN)(self._open)
        if self._pieces:
            self._shard(0)  # so that what has no trace is known at once

    def __len__(self) -> int:
        """Number of documents."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, document: int) -> Origin:
        """Where a document came from; IndexError where there is no document of that number."""
        number = document + len(self) if document < 0 else document
        if not 0 <= number < len(self):
            raise IndexError(f"{self._prefix}: document {document} of {len(self)}")
        shard = bisect_right(self._ends, number)
        return self._numbered(shard, self._shard(shard)[number - self._begin(shard)])

    def __iter__(self) -> Iterator[Origin]:
        for shard in range(len(self._pieces)):
            for origin in self._shard(shard):
                yield self._numbered(shard, origin)

    def find(self, source: str, line: int) -> list[Origin]:
        """What became of a line: an origin for each time that the input was given.

        Raises as ``Origins.find`` does.
        """
        name = self.sources[matching(self.sources, source, self._prefix)[0]]
        found: dict[int, Origin] = {}
        error = UsageError(f"{self._prefix}: no shard has lines of {name}")
        for shard in range(len(self._pieces)):
            own = self._shard(shard)
            for number in (n for n, source in enumerate(own.sources) if source == name):
                try:
                    origin = self._numbered(shard, own.became(number, line))
                except UsageError as failure:  # its lines in this shard end before that
                    error = failure
                    continue
                # Of a file in several shards the first that reaches the line is asked.
                found.setdefault(origin.number, origin)
        if not found:
            raise error
        return list(found.values())

    def _open(self, shard: int) -> Origins:
        return Origins(piece_prefix(self._prefix, self._pieces[shard]))

    def _begin(self, shard: int) -> int:
        return self._ends[shard] - self._pieces[shard].documents

    def _numbered(self, shard: int, origin: Origin) -> Origin:
        """With the numbers that document and input have in the whole dataset."""
        document = None if origin.document is None else self._begin(shard) + origin.document
        return replace(origin, document=document, number=self._first_inputs[shard] + origin.number)

    @cached_property
    def _first_inputs(self) -> list[int]:
        """The number of the first input of each shard; the last of one may go on in the next."""
        numbers, end = [], 0
        left = 0  # records of the input before ``end`` that no shard so far has
        for shard in range(len(self._pieces)):
            own = self._shard(shard)
            goes_on = end > 0 and (left > 0 or self.sources[end : end + 1] != own.sources[:1])
            numbers.append(end - goes_on)
            end = numbers[-1] + len(own.sources)
            before = left if goes_on and len(own.sources) == 1 else self._records[end - 1]
            left = before - own.records[-1]
        return numbers


def origins_of(prefix: str | os.PathLike[str]) -> Origins | ShardOrigins:
    """The origins of the documents of any dataset. Raises as ``Origins``."""
    return ShardOrigins(prefix) if is_virtual(prefix_of(prefix)) else Origins(prefix)
