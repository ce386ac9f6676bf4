"""Tables and histograms on a terminal, or in a pipe."""

from __future__ import annotations

import shutil
import textwrap
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING

from tokpack.cli.terminal import is_coloured, put
from tokpack.display import shown
from tokpack.quantities import percent
from tokpack.report.facts import (
    duplicate_table,
    facts,
    labels,
    source_table,
    token_table,
    warnings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.report import Stats
    from tokpack.report.facts import Table

_BLOCKS = " ▏▎▍▌▋▊▉█"
_MOST_BAR, _LEAST_BAR = 40, 6  # columns
_LEAST_TEXT = 24
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


def green(text: str) -> str:
    """What stands for trained tokens."""
    return f"\x1b[32m{text}\x1b[0m" if is_coloured() else text


def bar(share: float, columns: int) -> str:
    """A bar of at most ``columns``, to an eighth of one."""
    eighths = round(8 * columns * min(max(share, 0.0), 1.0))
    eighths = max(eighths, 1) if share > 0 and columns > 0 else 0
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def table(
    rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), bars: Iterable[float] = ()
) -> None:
    """Print columns, those numbered in ``left`` to the left, the others to the right.

    ``bars`` are shares, shown in the room that is left behind the rows below the first. Where there
    is too little room, what is long in columns to the left is wrapped, or has lines of its own.
    """
    from rich.cells import cell_len

    lines = [[shown(cell) for cell in row] for row in rows]
    widths, apart = _fitted(lines, left)
    room = min(width() - sum(widths) - 2 * len(widths) - 2, _MOST_BAR)
    for line, share in zip(lines, chain([0.0], bars, repeat(0.0)), strict=False):
        long = [column for column in apart if cell_len(line[column]) > widths[column]]
        cells = [
            [""] if column in long else _wrapped(cell, widths[column])
            for column, cell in enumerate(line)
        ]
        if 0 in long:
            put(f"  {line[0]}")
        drawn = bar(share, room) if room >= _LEAST_BAR else ""
        for number, parts in enumerate(zip_longest(*cells, fillvalue="")):
            text = ""
            for column, (part, size) in enumerate(zip(parts, widths, strict=True)):
                blank = " " * (size - cell_len(part))
                text += "  " + (part + blank if column in left else blank + part)
            put(f"{text}  {drawn if number == 0 else ''}".rstrip())
        for column in long:
            if column > 0:
                put(f"    {line[column]}")


def _fitted(lines: Sequence[Sequence[str]], left: Sequence[int]) -> tuple[list[int], list[int]]:
    """The widths of columns, and which of them have long cells on lines of their own.

    Words that are long are wrapped instead, where there is room to read them.
    """
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    apart = []
    for number in sorted(left, key=lambda number: -widths[number]):
        most = width() - (sum(widths) - widths[number] + 2 * len(widths))
        if most >= widths[number]:
            break
        words = all(" " in cell for cell in columns[number] if cell_len(cell) > most)
        if words and number > 0 and most >= _LEAST_TEXT:
            widths[number] = most
        else:
            short = (n for cell in columns[number] if (n := cell_len(cell)) <= max(most, 8))
            widths[number] = max(short, default=0)
            apart.append(number)
    return widths, apart


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, break_on_hyphens=False) if len(text) > columns else [text]


def sentence(text: str) -> None:
    """Print words, on several lines where one is too short."""
    for line in textwrap.wrap(text, width(), subsequent_indent="  ", break_on_hyphens=False):
        put(line)


def name(prefix: str, columns: int) -> str:
    """A path, its end where it is too long."""
    text = shown(prefix)
    return text if len(text) <= columns else "…" + text[1 - columns :]


def print_stats(datasets: Sequence[Stats], *, top: int) -> None:
    """Print the figures of datasets: side by side, then what is long, one after the other."""
    names = labels(datasets)
    columns = [facts(stats) for stats in datasets]
    length_rows = [dict(s.lengths.rows()) if s.lengths else {} for s in datasets]
    if columns[1:]:
        _print_facts(names, columns)
    else:
        put(bold(shown(datasets[0].prefix)))
        table(list(columns[0].items()), left=(0, 1))
    for stats in datasets:
        for line in warnings(stats):
            put(f"  warning: {shown(stats.prefix)}: {line}")
    keys = next((list(row) for row in length_rows if row), [])
    if keys:
        put()
        put(bold("length of documents in tokens"))
        body = [[_number(row.get(key)) for key in keys] for row in length_rows]
        first = names if columns[1:] else [""]
        table([["", *keys], *([a, *b] for a, b in zip(first, body, strict=True))])
    for stats in datasets:
        if columns[1:]:
            put()
            put(bold(shown(stats.prefix)))
        _print_one(stats, top)


def _print_facts(names: Sequence[str], datasets: Sequence[dict[str, str]]) -> None:
    """Print the facts of datasets side by side, of as many at a time as there is room for."""
    keys = list(datasets[0])
    size = min(max(len(value) for one in datasets for value in (*one.values(), " " * 12)), 20)
    many = max(1, (width() - max(map(len, keys)) - 2) // (size + 2))
    for begin in range(0, len(datasets), many):
        some = datasets[begin : begin + many]
        titles = [_wrapped(shown(text), size) for text in names[begin : begin + many]]
        if begin:
            put()
        table(
            [
                *(["", *parts] for parts in zip_longest(*titles, fillvalue="")),
                *([key, *(name(one[key], size) for one in some)] for key in keys),
            ],
            left=range(len(some) + 1),
        )


def _print_one(stats: Stats, top: int) -> None:
    _print_histogram(stats)
    print_table(token_table(stats, top))
    print_table(source_table(stats.sources, _MOST_SOURCES))
    print_table(duplicate_table(stats, _MOST_GROUPS))


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
            ["tokens", "documents", ""],
            *(
                [
                    f"{one.begin:,}+",
                    f"{one.documents:,}",
                    percent(one.documents, stats.documents),
                ]
                for one in stats.histogram
            ),
        ],
        left=(),
        bars=[one.documents / highest for one in stats.histogram],
    )


def print_table(one: Table | None) -> None:
    """Print a table of a report, behind a blank line."""
    if one is None:
        return
    put()
    sentence(bold(one.title) + (f": {one.note}" if one.note else ""))
    limit = max(24, width() - 44) if one.texts == len(one.head) - 1 else 24
    rows = [
        [
            f"'{shown(cell, limit=limit)}'" if column == one.texts and cell else cell
            for column, cell in enumerate(row)
        ]
        for row in one.rows
    ]
    table([one.head, *rows], left=(0, one.texts or 0), bars=one.bars)
