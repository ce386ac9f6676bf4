"""Figures in words, the same for a terminal and for a page."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.dataset import manifest_path, piece_prefix, selection_path
from tokpack.dataset.sources import SourceShare
from tokpack.quantities import bytes_text, counted, percent
from tokpack.storage import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.look.statistics import Stats

_UNKNOWN = "not known"
_NAME = 120  # characters of a name
_FEW = 5


def bases(dataset: MMapIndexedDataset) -> tuple[str, ...]:
    """The datasets that a view selects documents of; none for any other dataset."""
    records = () if dataset.view is None else dataset.view.base.records
    return tuple(piece_prefix(dataset.path_prefix, record) for record in records)


def few(names: Sequence[object]) -> list[object]:
    """The first of some names, and how many more there are."""
    more = [f"{len(names) - _FEW:,} more"] if len(names) > _FEW else []
    return [*names[:_FEW], *more]


def few_text(names: Sequence[str]) -> str:
    """The same as words."""
    return ", ".join(map(str, few(names)))


def size_text(dataset: MMapIndexedDataset) -> str:
    """The size of a dataset's tokens on disk; for a view, of its own files."""
    if dataset.view is None:
        return bytes_text(dataset.token_count * dataset.dtype.itemsize)
    paths = manifest_path(dataset.path_prefix), selection_path(dataset.path_prefix)
    return bytes_text(sum(file.size for file in map(identity, paths) if file))


def tokenizer_name(tokenizer: Mapping[str, Any] | None) -> str:
    """The name of a tokenizer as it is described, without its folder."""
    name = str((tokenizer or {}).get("name", _UNKNOWN))
    return os.path.basename(name) if os.path.isabs(name) else name


def dataset_facts(dataset: MMapIndexedDataset, tokenizer: str) -> dict[str, str]:
    """The figures of a dataset that need no pass over it."""
    view_of = few_text(bases(dataset))
    return {
        "documents": f"{dataset.documents:,}",
        "sequences": f"{len(dataset):,}",
        "tokens": f"{dataset.token_count:,}",
        **({"view of": view_of} if view_of else {}),
        "size": size_text(dataset),
        "ids as": dataset.dtype.name,
        "tokenizer": tokenizer,
    }


def facts(stats: Stats) -> dict[str, str]:
    """The figures of a dataset, by their names."""
    dup, eods = stats.duplicates, stats.eods
    none = "none" if stats.tokenizer else _UNKNOWN
    ratio, size = stats.bytes_per_token, stats.vocab_size
    shared = {}
    if stats.shared:
        shared = {
            "documents shared": _share(stats.shared.documents, stats.documents),
            "tokens shared": _share(stats.shared.tokens, stats.tokens),
        }
    trained = stats.tokens if stats.trained is None else stats.trained
    more = {"view of": few_text(stats.view_of)} if stats.view_of else {}
    if stats.truncated:
        more["documents cut to length"] = _share(stats.truncated, stats.documents)
    if (packed := stats.packed) is not None:
        more["packed, best-fit"] = (
            f"{packed.fill:.2%} of {counted(packed.samples, 'sample')} filled, {packed.cut:,} cut"
        )
    return {
        "documents": f"{stats.documents:,}",
        "sequences": f"{stats.sequences:,}",
        "tokens": f"{stats.tokens:,}",
        "trained tokens": _share(trained, stats.tokens),
        **more,
        "stored as": stats.dtype,
        "tokenizer": stats.tokenizer or _UNKNOWN,
        "bytes per token": _UNKNOWN if ratio is None else f"{ratio:.3f}",
        "vocabulary": _UNKNOWN if size is None else f"{size:,}",
        "different ids": _share(stats.frequency.used, size or 0),
        "entropy": f"{stats.frequency.entropy:.2f} bits per token",
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
    """A name for each dataset, without its folder if the names stay different."""
    names = [stats.prefix.rpartition("/")[2] for stats in datasets]
    return names if len(set(names)) == len(names) else [stats.prefix for stats in datasets]


def warnings(stats: Stats) -> list[str]:
    """Figures that may be caused by faulty data, in words."""
    lines = []
    if stats.outside:
        lines.append(f"{counted(stats.outside, 'token')} outside the vocabulary")
    if stats.eods and stats.eods.inside and not stats.roles:  # in chats it may end a turn
        document, position = stats.eods.examples[0]
        lines.append(
            f"{counted(stats.eods.inside, 'EOD token')} inside documents, the first in document "
            f"{document} at token {position}"
        )
    if stats.eods and 0 < stats.eods.without < stats.documents - stats.empty:
        lines.append(
            f"{counted(stats.eods.without, 'document')} without EOD, though others have it"
        )
    return lines


@dataclass(frozen=True)
class Table:
    """A table of a report, for a terminal or a page.

    ``bars`` are lengths from 0 to 1 for each row, drawn in the column ``SHARE``: the share there,
    or the count relative to the highest. The column ``texts`` has text from the data. ``kind`` is
    its class in the style sheet.
    """

    kind: str
    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[float] = ()
    texts: int | None = None


SHARE = 3  # the column with bars


def token_table(stats: Stats, most: int) -> Table | None:
    """The ``most`` frequent tokens; None if there is no token."""
    top = stats.frequency.top[:most]
    if not top:
        return None
    shares = stats.frequency.coverage.items()
    coverage = ", ".join(f"{ids:,} ids make {share}%" for share, ids in shares)
    return Table(
        "tokens",
        "tokens by frequency",
        f"{coverage} of all tokens",
        ("id", "token", "share", "count"),
        [[str(t.id), t.text, percent(t.count, stats.tokens), f"{t.count:,}"] for t in top],
        [token.count / top[0].count for token in top],
        texts=1,
    )


def source_table(sources: Sequence[SourceShare], most: int) -> Table | None:
    """The ``most`` sources with the most tokens, and all others together in the last row."""
    if not sources:
        return None
    total = sum(source.tokens for source in sources) or 1
    folder = common_folder(sources)
    ranked = sorted(sources, key=lambda source: -source.tokens)
    shown = ranked[: most if len(ranked) > most + 1 else None]
    if others := ranked[len(shown) :]:
        values = ((s.documents, s.tokens, s.text_bytes, s.trained) for s in others)
        name = f"{folder}{len(others):,} others"
        shown.append(SourceShare(name, *map(sum, zip(*values, strict=True))))
    has_trained = any(source.trained for source in shown)
    return Table(
        "sources",
        "sources",
        f"in {folder}" if folder else "",
        (
            *("source", "documents", "tokens", "share", "bytes per token"),
            *(("trained",) if has_trained else ()),
        ),
        [
            [
                source.name[len(folder) :][-_NAME:],
                f"{source.documents:,}",
                f"{source.tokens:,}",
                percent(source.tokens, total),
                f"{source.bytes_per_token:.2f}" if source.bytes_per_token else "",
                *([_share(source.trained, source.tokens)] if has_trained else []),
            ]
            for source in shown
        ],
        [source.tokens / total for source in shown],
    )


def role_table(stats: Stats) -> Table | None:
    """The tokens of each role in conversations; None if they are not known."""
    if not stats.roles:
        return None
    return Table(
        "roles",
        "roles",
        "a token belongs to the turn in which it begins",
        ("role", "tokens", "trained", "share"),
        [
            [
                role or "outside turns",
                f"{tokens:,}",
                _share(trained, tokens),
                percent(tokens, stats.tokens),
            ]
            for role, tokens, trained in stats.roles
        ],
        [tokens / (stats.tokens or 1) for _, tokens, _ in stats.roles],
    )


def trained_table(stats: Stats) -> Table | None:
    """The trained text of the first documents; None if everything is trained."""
    if not stats.trained_texts:
        return None
    return Table(
        "texts",
        "trained text",
        "of the first documents",
        ("document", "trained"),
        [[str(number), text] for number, text in stats.trained_texts],
        texts=1,
    )


def duplicate_table(stats: Stats, most: int) -> Table | None:
    """The groups of equal documents with the most tokens."""
    duplicates = stats.duplicates
    if not duplicates.examples:
        return None
    return Table(
        "texts",
        "duplicates",
        f"{counted(duplicates.documents, 'document')} equal to an earlier one, with "
        f"{counted(duplicates.tokens, 'token')} ({percent(duplicates.tokens, stats.tokens)}), of "
        f"{counted(duplicates.groups, 'different text')}; the costliest:",
        ("documents", "copies", "tokens each", "text"),
        [
            [
                ", ".join(map(str, group.documents))
                + (", \N{HORIZONTAL ELLIPSIS}" if group.copies > len(group.documents) else ""),
                f"{group.copies:,}",
                f"{group.length:,}",
                group.text,
            ]
            for group in duplicates.examples[:most]
        ],
        texts=3,
    )


def common_folder(sources: Sequence[SourceShare]) -> str:
    """The folder that all sources are in, with its slash; "" for none."""
    # Compared as text, because os.path.commonpath refuses to mix paths and URLs.
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
