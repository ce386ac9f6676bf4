"""Tables and histograms on a terminal, or in a pipe."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tokpack.cli.terminal import is_coloured, put
from tokpack.display import shown
from tokpack.report.facts import common_folder, facts, labels, percent, source_rows, warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.report import Stats
    from tokpack.report.facts import Row

_BLOCKS = " ▏▎▍▌▋▊▉█"
_MOST_GROUPS = 5
_MOST_SOURCES = 15


def width() -> int:
    """Columns to fill."""
    return max(60, min(shutil.get_terminal_size().columns, 120))


def bold(text: str) -> str:
    """A title."""
    return f"\x1b[1m{text}\x1b[0m" if is_coloured() else text


def dim(text: str) -> str:
    """Less important text."""
    return f"\x1b[2m{text}\x1b[0m" if is_coloured() else text


def bar(share: float, columns: int) -> str:
    """A bar of at most ``columns``, to an eighth of one."""
    eighths = round(8 * columns * min(max(share, 0.0), 1.0))
    eighths = max(eighths, 1) if share > 0 and columns > 0 else 0
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def table(rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,)) -> None:
    """Print columns, those numbered in ``left`` to the left, the others to the right."""
    from rich.cells import cell_len

    lines = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = []
        for number, (cell, size) in enumerate(zip(line, widths, strict=True)):
            blank = " " * (size - cell_len(cell))
            cells.append(cell + blank if number in left else blank + cell)
        put(("  " + "  ".join(cells)).rstrip())


def name(prefix: str, columns: int) -> str:
    """A path, its end where it is too long."""
    text = shown(prefix)
    return text if len(text) <= columns else "…" + text[1 - columns :]


def print_stats(datasets: Sequence[Stats], *, top: int) -> None:
    """Print the figures of datasets: side by side, then what is long, one after the other."""
    columns = max(12, (width() - 28) // len(datasets) - 2)
    names = labels(datasets)
    known = [facts(stats) for stats in datasets]
    length_rows = [dict(s.lengths.rows()) if s.lengths else {} for s in datasets]
    rows = [["", *(name(text, columns) for text in names)]] if known[1:] else []
    rows += [[key, *(shown(one[key]) for one in known)] for key in known[0]]
    if not known[1:]:
        put(bold(shown(datasets[0].prefix)))
    table(rows, left=range(len(datasets) + 1))
    for stats in datasets:
        for line in warnings(stats):
            put(f"  warning: {shown(stats.prefix)}: {line}")
    keys = next((list(row) for row in length_rows if row), [])
    if keys:
        put()
        put(bold("length of documents in tokens"))
        body = [[_number(row.get(key)) for key in keys] for row in length_rows]
        first = [name(text, 30) if known[1:] else "" for text in names]
        table([["", *keys], *([a, *b] for a, b in zip(first, body, strict=True))])
    for stats in datasets:
        if known[1:]:
            put()
            put(bold(shown(stats.prefix)))
        _print_one(stats, top)


def _print_one(stats: Stats, top: int) -> None:
    _print_histogram(stats)
    _print_tokens(stats, top)
    _print_sources(stats)
    _print_duplicates(stats)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _print_histogram(stats: Stats) -> None:
    if not stats.histogram:
        return
    highest = max(one.documents for one in stats.histogram)
    put()
    table(
        [
            ["tokens", "documents", "", ""],
            *(
                [
                    f"{one.begin:,}+",
                    f"{one.documents:,}",
                    percent(one.documents, stats.documents),
                    bar(one.documents / highest, width() - 44),
                ]
                for one in stats.histogram
            ),
        ],
        left=(3,),
    )


def _print_tokens(stats: Stats, top: int) -> None:
    found = stats.frequency.top[:top]
    if not found:
        return
    put()
    coverage = stats.frequency.coverage
    words = ", ".join(f"{ids:,} ids make {share}%" for share, ids in coverage.items())
    put(f"{bold('tokens by frequency')}: {words} of all tokens")
    table(
        [
            ["id", "token", "count", "", ""],
            *(
                [
                    str(token.id),
                    f"'{shown(token.text, limit=24)}'" if token.text else "",
                    f"{token.count:,}",
                    percent(token.count, stats.tokens),
                    bar(token.count / found[0].count, width() - 62),
                ]
                for token in found
            ),
        ],
        left=(1, 4),
    )


def _print_sources(stats: Stats) -> None:
    rows = source_rows(stats.sources, _MOST_SOURCES)
    if rows:
        put()
        print_sources(rows, common_folder(stats.sources))


def print_sources(rows: Sequence[Row], folder: str) -> None:
    """Print the table of sources, which are all in ``folder``."""
    put(bold("sources") + (f" in {shown(folder)}" if folder else ""))
    most = max(row.share for row in rows) or 1.0
    table(
        [
            ["", "documents", "tokens", "", "bytes a token", ""],
            *(
                [
                    name(row.name, 40),
                    f"{row.documents:,}",
                    f"{row.tokens:,}",
                    percent(row.share, 1),
                    f"{row.ratio:.2f}" if row.ratio else "",
                    bar(row.share / most, width() - 96),
                ]
                for row in rows
            ),
        ],
        left=(0, 5),
    )


def _print_duplicates(stats: Stats) -> None:
    groups = stats.duplicates.examples[:_MOST_GROUPS]
    if not groups:
        return
    put()
    put(f"{bold('duplicates')}: the costliest of {stats.duplicates.groups:,}")
    table(
        [
            ["documents", "copies", "tokens", ""],
            *(
                [
                    ", ".join(map(str, group.documents))
                    + (", …" if group.copies > len(group.documents) else ""),
                    f"{group.copies:,}",
                    f"{group.length:,}",
                    shown(group.text, limit=max(30, width() - 44)),
                ]
                for group in groups
            ),
        ],
        left=(0, 3),
    )
