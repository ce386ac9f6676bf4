"""Figures as words: the same for a terminal and for a page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.quantities import counted, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.report.sources import Share
    from tokpack.report.stats import Stats

MOST_SOURCES = 30
_UNKNOWN = "not known"


def facts(stats: Stats) -> dict[str, str]:
    """The figures of a dataset, by their names."""
    dup, eods = stats.duplicates, stats.eods
    none = "none" if stats.tokenizer else _UNKNOWN
    ratio, size = stats.bytes_per_token, stats.vocab_size
    shared = {}
    if stats.shared:
        shared = {
            "documents in others too": _share(stats.shared.documents, stats.documents),
            "tokens in others too": _share(stats.shared.tokens, stats.tokens),
        }
    return {
        "documents": f"{stats.documents:,}",
        "sequences": f"{stats.sequences:,}",
        "tokens": f"{stats.tokens:,}",
        "ids as": stats.dtype,
        "tokenizer": stats.tokenizer or _UNKNOWN,
        "bytes a token": _UNKNOWN if ratio is None else f"{ratio:.3f}",
        "vocabulary": _UNKNOWN if size is None else f"{size:,}",
        "different ids": _share(stats.frequency.used, size or 0),
        "entropy": f"{stats.frequency.entropy:.2f} bits a token",
        "documents without tokens": _share(stats.empty, stats.documents),
        "duplicate documents": _share(dup.documents, stats.documents),
        "tokens in duplicates": _share(dup.tokens, stats.tokens),
        **shared,
        "EOD inside documents": _UNKNOWN if eods is None else f"{eods.inside:,}",
        "documents without EOD": _UNKNOWN
        if eods is None
        else _share(eods.without, stats.documents),
        "unknown tokens": none if stats.unknown is None else _share(stats.unknown, stats.tokens),
        "ids outside the vocabulary": f"{stats.outside:,}",
    }


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({percent(part, whole)})" if part and whole else f"{part:,}"


def labels(datasets: Sequence[Stats]) -> list[str]:
    """A name for each dataset: without its folder, where that keeps them apart."""
    names = [stats.prefix.rpartition("/")[2] for stats in datasets]
    return names if len(set(names)) == len(names) else [stats.prefix for stats in datasets]


def warnings(stats: Stats) -> list[str]:
    """What in the figures may be a fault of the data."""
    found = []
    if stats.outside:
        found.append(f"{counted(stats.outside, 'token')} outside the vocabulary")
    if stats.eods and stats.eods.inside:
        document, position = stats.eods.examples[0]
        found.append(
            f"{counted(stats.eods.inside, 'EOD token')} inside documents, the first in document "
            f"{document} at token {position}"
        )
    if stats.eods and 0 < stats.eods.without < stats.documents - stats.empty:
        found.append(f"{counted(stats.eods.without, 'document')} without EOD, the others have it")
    return found


@dataclass(frozen=True)
class Row:
    """One line of the table of sources; ``share`` of all tokens, ``ratio`` bytes a token."""

    name: str
    documents: int
    tokens: int
    share: float
    ratio: float


def source_rows(sources: Sequence[Share], most: int = MOST_SOURCES) -> list[Row]:
    """The sources with the most tokens, and all others in one row at the end."""
    total = sum(source.tokens for source in sources) or 1
    folder = common_folder(sources)
    ranked = sorted(sources, key=lambda source: -source.tokens)
    rows = [
        Row(s.name[len(folder) :], s.documents, s.tokens, s.tokens / total, s.bytes_per_token)
        for s in ranked[: most if len(ranked) > most + 1 else None]
    ]
    others = ranked[len(rows) :]
    if others:
        documents, tokens, text = (
            sum(values)
            for values in zip(*((s.documents, s.tokens, s.text_bytes) for s in others), strict=True)
        )
        ratio = text / tokens if tokens else 0.0
        rows.append(Row(f"{len(others):,} others", documents, tokens, tokens / total, ratio))
    return rows


def common_folder(sources: Sequence[Share]) -> str:
    """The folder that all sources are in, with its slash; "" for none."""
    # os.path.commonpath would refuse to mix paths and URLs: their text is compared.
    shared = os.path.commonprefix([source.name for source in sources])  # noqa: RUF071
    folder, slash, _ = shared.rpartition("/")
    return folder + slash


def binary(value: int) -> str:
    """A power of two for an axis: 512, 2k, 1M."""
    for unit in ("", "k", "M", "G"):
        if value < 1024:
            return f"{value}{unit}"
        value //= 1024
    return f"{value}T"
