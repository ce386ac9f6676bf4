"""Tables and histograms on a terminal, or in a pipe."""

from __future__ import annotations

import shutil
import textwrap
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from tokpack.cli.terminal import is_coloured, put
from tokpack.display import shown
from tokpack.look.facts import (
    duplicate_table,
    facts,
    labels,
    role_table,
    source_table,
    token_table,
    warnings,
)
from tokpack.quantities import count_text, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tokpack.look import CrossDuplicates, Stats
    from tokpack.look.facts import Table
    from tokpack.samples.blend import BlendPlan, Mixture

_MOST_BAR, _LEAST_BAR = 40, 6  # columns
_LEAST_TEXT, _FACT = 8, 18  # columns
_MOST_GROUPS = 5
_MOST_SOURCES = 15


def width() -> int:
    """Columns to fill."""
    return max(60, min(shutil.get_terminal_size().columns, 120))


def _styled(code: int, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if is_coloured() else text


bold = partial(_styled, 1)  # a title
dim = partial(_styled, 2)  # less important text
green = partial(_styled, 32)  # trained tokens


def rendered(what: Any, columns: int) -> list[str]:
    """The lines that rich makes of an object, no wider than ``columns`` if possible."""
    from rich.console import Console

    colours: Any = "256" if is_coloured() else None
    console = Console(width=columns, height=100, color_system=colours, force_terminal=is_coloured())
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]


def wrapped(line: str, columns: int) -> list[str]:
    """A line, which may have colours, as lines that are no longer than ``columns``."""
    from rich.text import Text

    return rendered(Text.from_ansi(line, overflow="fold"), columns)


def table(
    rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), bars: Iterable[float] = ()
) -> None:
    """Print columns; those numbered in ``left`` are aligned to the left, others to the right.

    ``bars`` are shares, drawn in the space that is left after the rows below the first. If there is
    too little space, columns on the left are wrapped.
    """
    from rich.bar import Bar
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[shown(cell) for cell in row] for row in rows]
    grid, least, room = Table(box=None, show_header=False, padding=(0, 0, 0, 2)), 0, width() - 2
    for number, column in enumerate(zip(*cells, strict=True)):
        is_left, size = number in left, max(map(cell_len, column))
        grid.add_column(justify="left" if is_left else "right", no_wrap=not is_left)
        least += 2 + (min(size, _LEAST_TEXT) if is_left else size)
        room -= 2 + size
    bars = [0.0, *bars]
    if bars[1:] and room >= _LEAST_BAR:
        grid.add_column(width=min(room, _MOST_BAR))
    for row, share in zip(cells, chain(bars, repeat(0.0)), strict=False):
        drawn = [Bar(1, 0, share) if share else ""] if grid.columns[len(row) :] else []
        grid.add_row(*(Text(cell, overflow="fold") for cell in row), *drawn)
    for line in rendered(grid, max(width(), least)):
        put(line)


def sentence(text: str) -> None:
    """Print words, on several lines if they do not fit on one."""
    for line in textwrap.wrap(text, width(), subsequent_indent="  ", break_on_hyphens=False):
        put(line)


def name(prefix: str, columns: int) -> str:
    """The path, or its end if it is too long."""
    text = shown(prefix)
    return text if len(text) <= columns else "…" + text[1 - columns :]


def print_stats(datasets: Sequence[Stats], *, top: int) -> None:
    """Print the figures of datasets: side by side, then long ones one after the other."""
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
        _print_histogram(stats)
        print_table(token_table(stats, top))
        print_table(source_table(stats.sources, _MOST_SOURCES))
        print_table(role_table(stats))
        print_table(duplicate_table(stats, _MOST_GROUPS))


def _print_facts(names: Sequence[str], datasets: Sequence[dict[str, str]]) -> None:
    """Print the facts of datasets side by side, as many at a time as fit."""
    keys = list(dict.fromkeys(key for one in datasets for key in one))
    many = max(1, (width() - max(map(len, keys)) - 2) // (_FACT + 2))
    for begin in range(0, len(datasets), many):
        some = datasets[begin : begin + many]
        if begin:
            put()
        head = ["", *names[begin : begin + many]]
        rows = [[key, *(one.get(key, "") for one in some)] for key in keys]
        table([head, *rows], left=range(len(head)))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _print_histogram(stats: Stats) -> None:
    if not stats.histogram:
        return
    counts = [one.documents for one in stats.histogram]
    rows = [
        [f"{one.begin:,}+", f"{one.documents:,}", percent(one.documents, stats.documents)]
        for one in stats.histogram
    ]
    put()
    bars = [count / max(counts) for count in counts]
    table([["tokens", "documents", ""], *rows], left=(), bars=bars)


def print_table(one: Table | None) -> None:
    """Print a table of a report, after a blank line."""
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


_MOST_SHARES = 8


def print_plan(plan: BlendPlan) -> None:
    """Print what each dataset gives, how weights change, and what each split has."""
    train, length = plan.train, plan.spec.seq_length
    _print_datasets(train)
    tokens = count_text(train.samples * length)
    padded = "" if train.filled == 1 else f", {1 - train.filled:.0%} of them padding"
    put(f"{train.samples:,} samples of {length:,} tokens: {tokens} tokens{padded}")
    if train.changes:
        put()
        for phase in train.phases:
            sentence(f"from sample {phase.first:,}: {_shares(train, phase.shares)}")
    if len(plan.mixtures) > 1:
        put()
        _print_splits(plan)


def print_shared(plan: BlendPlan, shared: Mapping[str, CrossDuplicates]) -> None:
    """Print how many documents of each dataset are in another one as well."""
    sizes = {dataset.path_prefix: dataset.token_count for dataset in plan.datasets}
    put()
    rows = [["documents shared", "documents", "tokens", ""]]
    rows += [
        [shown(prefix), f"{one.documents:,}", f"{one.tokens:,}", percent(one.tokens, sizes[prefix])]
        for prefix, one in shared.items()
    ]
    table(rows)


def _print_datasets(mixture: Mixture) -> None:
    usage = mixture.usage
    share = "share" if mixture.spec.by == "tokens" else "share of samples"
    rows = [["dataset", "documents", "tokens", "weight", share, "samples", "epochs"]]
    rows += [
        [
            shown(portion.prefix),
            f"{portion.documents:,}",
            count_text(portion.tokens),
            "by size" if portion.weight is None else f"{portion.weight:.6g}",
            f"{share:.2%}",
            f"{samples:,.0f}",
            f"{epochs:.2f}",
        ]
        for portion, share, samples, epochs in usage
    ]
    total = f"{mixture.documents:,}", count_text(mixture.tokens), "", "100.00%"
    rows.append(["together", *total, f"{mixture.samples:,}", ""])
    if mixture.spec.by == "trained":
        trained = [one.portion.trained for one in usage]
        cells = ["trained", *map(count_text, trained), count_text(sum(trained))]
        for row, cell in zip(rows, cells, strict=True):
            row.insert(3, cell)
    table(rows, bars=[one.share for one in usage])


def _shares(mixture: Mixture, shares: tuple[float, ...]) -> str:
    pairs = [
        (portion.prefix, share)
        for portion, share in zip(mixture.portions, shares, strict=True)
        if share
    ]
    words = [f"{shown(prefix)} {share:.2%}" for prefix, share in pairs[:_MOST_SHARES]]
    more = len(pairs) - _MOST_SHARES
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def _print_splits(plan: BlendPlan) -> None:
    rows = [["split", "datasets", "documents", "tokens", "samples", ""]]
    rows += [
        [
            shown(mixture.name),
            f"{len(mixture.portions):,}",
            f"{mixture.documents:,}",
            count_text(mixture.tokens),
            f"{mixture.samples:,}",
            f"nothing from {', '.join(shown(p.prefix) for p in mixture.missing)}"
            if mixture.missing
            else "",
        ]
        for mixture in plan.mixtures
    ]
    table(rows, left=(0, 5))
