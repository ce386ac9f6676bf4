"""Where a dataset comes from, by manifest and table: inputs, and the line of each document."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.manifest import Manifest, manifest_path, not_a_manifest
from tokpack.dataset.table import Origins, has_table
from tokpack.display import shown
from tokpack.errors import TokpackError
from tokpack.storage import exists

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.dataset.dataset import MMapIndexedDataset

_MOST = 60  # characters of a value in messages


def doubt(dataset: MMapIndexedDataset) -> str:
    """Why PREFIX.json is not used as the dataset's manifest; "" if it is used, or missing.

    FormatError if it is a manifest that is broken or of a newer version.
    """
    path, manifest = manifest_path(dataset.path_prefix), dataset.manifest
    if manifest is None:
        return not_a_manifest(path) if exists(path) else ""
    if (manifest.sequences, manifest.tokens) == (len(dataset), dataset.token_count):
        return ""
    return (
        f"{path}: says {manifest.sequences} sequences and {manifest.tokens} tokens, but the "
        f"dataset has {len(dataset)} and {dataset.token_count}: it belongs to another dataset"
    )


def own_manifest(dataset: MMapIndexedDataset) -> Manifest | None:
    """The manifest of a dataset, or None if it has none of its own."""
    return None if doubt(dataset) else dataset.manifest


def bytes_per_token(dataset: MMapIndexedDataset) -> float | None:
    """UTF-8 bytes of text for each token, EOD included, by the manifest; None if not known."""
    manifest = own_manifest(dataset)
    if manifest is None or not manifest.tokens or not manifest.text_bytes:
        return None
    return manifest.text_bytes / manifest.tokens


@dataclass(frozen=True)
class SourceShare:
    """The share of one input in a dataset, by its manifest; ``trained`` only for conversations."""

    name: str
    documents: int
    tokens: int
    text_bytes: int
    trained: int = 0

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text for each token; 0 if there is none."""
        return self.text_bytes / self.tokens if self.tokens else 0.0


def shares(dataset: MMapIndexedDataset) -> list[SourceShare]:
    """The share of each input, in their order; [] without a manifest."""
    manifest = own_manifest(dataset)
    return shares_of(manifest) if manifest else []


def shares_of(manifest: Manifest) -> list[SourceShare]:
    """The share of each input, in their order."""
    return [
        SourceShare(
            str(entry.get("name", "?")),
            *(_count(entry.get(key)) for key in ("documents", "tokens", "text_bytes", "trained")),
        )
        for entry in manifest.inputs
        if isinstance(entry, dict)
    ]


@dataclass(frozen=True)
class Place:
    """Where a document comes from: input, line, from 1, and kept values of its record.

    Unknown ones are "", None and empty.
    """

    source: str = ""
    line: int | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """``wiki.jsonl:123``."""
        return self.source + ("" if self.line is None else f":{self.line}")

    @property
    def words(self) -> list[str]:
        """What is known, in words: ``wiki.jsonl:123``, ``id=doc17``."""
        return [*filter(None, [shown(str(self))]), *kept_values(self.kept)]


def kept_values(kept: Mapping[str, Any]) -> list[str]:
    """Kept values in words: ``id=doc17``, ``score=0.5``; null is left out."""
    return [
        f"{shown(name)}={shown(str(value), limit=_MOST)}"
        for name, value in kept.items()
        if value is not None
    ]


class Sources:
    """Finds the origins of a dataset's documents."""

    def __init__(self, dataset: MMapIndexedDataset) -> None:
        self._dataset = dataset

    def find(self, number: int) -> Place:
        """The origin of document ``number``, by the table if there is one, else by the manifest."""
        if self._origins is not None and number < len(self._origins):
            with suppress(TokpackError):  # a shard may have no table
                origin = self._origins[number]
                return Place(origin.source, origin.line, origin.kept)
        return Place(self._name(number))

    @property
    def columns(self) -> dict[str, str]:
        """The columns of its table, with their types in words; {} without a table."""
        return {} if self._origins is None else self._origins.table.columns

    def rows(self, numbers: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of documents in its table, in order. FormatError if it is broken."""
        if self._origins is None or not columns:
            return [{} for _ in numbers]
        return self._origins.table.rows(np.array(numbers, np.int64), columns)

    @cached_property
    def _origins(self) -> Origins | None:
        prefix = self._dataset.path_prefix
        if own_manifest(self._dataset) is None:
            return None
        try:
            is_there = self._dataset.records or has_table(prefix)
            return Origins(prefix, kept=True) if is_there else None
        except TokpackError:  # `inspect --trace` gives the reason for a wrong table
            return None

    @cached_property
    def _shares(self) -> list[SourceShare]:
        return shares(self._dataset)

    def _name(self, number: int) -> str:
        before = 0
        if sum(share.documents for share in self._shares) != self._dataset.documents:
            return ""
        for share in self._shares:
            before += share.documents
            if number < before:
                return share.name
        return ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
