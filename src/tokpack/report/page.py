"""Figures of datasets as one page of HTML that needs nothing else: to read, print and send."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from tokpack.display import shown
from tokpack.files.outputs import Kind, begins_with
from tokpack.report.charts import length_plot, zipf_plot
from tokpack.report.facts import common_folder, count, facts, labels, percent, source_rows, warnings
from tokpack.report.plot import SERIES, bar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokpack.report.stats import Stats

_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="generator" content="tokpack stats">'
)
_MOST_GROUPS = 10
_NAME = 120  # characters of a name


def page(datasets: Sequence[Stats], *, made: str = "") -> str:
    """The report as HTML; ``made`` says when and by what, for its foot.

    Nothing in it comes from elsewhere: no script, no link, no font. All text is escaped, and the
    page itself forbids a browser to load or run anything.
    """
    names = labels(datasets)
    title = ("Datasets " if names[1:] else "Dataset ") + ", ".join(names)
    style = resources.files("tokpack.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "".join(
        [
            f"<h1>{_text(title)}</h1>",
            _facts(datasets),
            _lengths(datasets),
            _tokens(datasets),
            _sources(datasets),
            _duplicates(datasets),
            _eods(datasets),
            f"<footer>{_text(made)}</footer>" if made else "",
        ]
    )
    return (
        f'{_HEAD}<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{style}</style></head>\n<body>{body}</body></html>\n"
    )


def _is_page(path: str) -> bool:
    return begins_with(path, _HEAD.encode())


PAGE_KIND = Kind("a page of tokpack stats", _is_page, kept=False)


def _text(text: str) -> str:
    return escape(shown(text))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; the first column names the row."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _key(number: int, name: str) -> str:
    return f'<i class="key s{number % SERIES}"></i>{_text(name)}'


def _named(number: int, datasets: Sequence[Stats]) -> str:
    """The title of what is said about one of several datasets."""
    return f"<h3>{_key(number, labels(datasets)[number])}</h3>" if len(datasets) > 1 else ""


def _legend(entries: Iterable[str]) -> str:
    return '<p class="legend">' + "".join(f"<span>{entry}</span>" for entry in entries) + "</p>"


def _colours(datasets: Sequence[Stats]) -> str:
    if len(datasets) == 1:
        return ""
    return _legend(_key(i, name) for i, name in enumerate(labels(datasets)))


def _facts(datasets: Sequence[Stats]) -> str:
    columns = [facts(stats) for stats in datasets]
    rows = [[name, *(_text(column[name]) for column in columns)] for name in columns[0]]
    notes = [
        f"<li>{_text(name)}: {_text(line)}</li>"
        for name, stats in zip(labels(datasets), datasets, strict=True)
        for line in warnings(stats)
    ]
    head = ["", *map(_text, labels(datasets))]
    if len(datasets) > 1:
        rows.insert(0, ["prefix", *(_text(stats.prefix) for stats in datasets)])
    alarm = f'<ul class="warnings">{"".join(notes)}</ul>' if notes else ""
    return f"<section>{alarm}{_table(head, rows, 'facts')}</section>"


def _lengths(datasets: Sequence[Stats]) -> str:
    plot = length_plot(datasets)
    if not plot:
        return _section("Lengths of documents", '<p class="none">No documents.</p>')
    legend = _colours(datasets) or _legend(
        ['<i class="key s0"></i>documents', '<i class="key s1"></i>tokens']
    )
    filled = [
        (name, stats.lengths.rows())
        for name, stats in zip(labels(datasets), datasets, strict=True)
        if stats.lengths
    ]
    rows = [
        [_text(name), *(f"{value:,.{1 if key == 'mean' else 0}f}" for key, value in values)]
        for name, values in filled
    ]
    head = ["tokens in a document", *(key for key, _ in filled[0][1])]
    table = _table(head, rows, "numbers")
    return _section("Lengths of documents", f"<figure>{legend}{plot}</figure>", table)


def _tokens(datasets: Sequence[Stats]) -> str:
    plot = zipf_plot(datasets)
    if not plot:
        return _section("Frequency of tokens", '<p class="none">No tokens.</p>')
    alone = len(datasets) == 1
    tables = [_named(i, datasets) + _top(stats, i, alone) for i, stats in enumerate(datasets)]
    return _section("Frequency of tokens", f"<figure>{_colours(datasets)}{plot}</figure>", *tables)


def _top(stats: Stats, number: int, is_open: bool) -> str:
    top = stats.frequency.top
    if not top:
        return '<p class="none">No tokens.</p>'
    rows = [
        [
            f"{token.id}",
            f"<code>{escape(token.text)}</code>" if token.text else "",
            f"{token.count:,}",
            f"{bar(token.count / top[0].count, number)}{percent(token.count, stats.tokens)}",
        ]
        for token in top
    ]
    table = _table(["id", "token", "count", "share of all tokens"], rows, "numbers tokens")
    coverage = stats.frequency.coverage.items()
    needed = ", ".join(f"{ids:,} of the ids make {share}%" for share, ids in coverage)
    opened = " open" if is_open else ""
    summary = f"<summary>The {len(top)} most frequent</summary>"
    return f"<p>{needed} of all tokens.</p><details{opened}>{summary}{table}</details>"


def _sources(datasets: Sequence[Stats]) -> str:
    parts = []
    for number, stats in enumerate(datasets):
        rows = source_rows(stats.sources)
        parts.append(_named(number, datasets))
        if not rows:
            parts.append('<p class="none">Not known: the dataset has no manifest.</p>')
            continue
        most = max(row.share for row in rows) or 1.0
        densest = max(row.ratio for row in rows) or 1.0
        cells = [
            [
                _text(row.name[-_NAME:]),
                f"{row.documents:,}",
                f"{row.tokens:,}",
                f"{bar(row.share / most, number)}{percent(row.share, 1)}",
                f"{bar(row.ratio / densest, number)}{row.ratio:.2f}" if row.ratio else "",
            ]
            for row in rows
        ]
        head = [
            _text("source in " + (common_folder(stats.sources) or ".")),
            "documents",
            "tokens",
            "share of tokens",
            "bytes a token",
        ]
        parts.append(_table(head, cells, "numbers sources"))
    return _section("Sources", *parts)


def _duplicates(datasets: Sequence[Stats]) -> str:
    parts = []
    for number, stats in enumerate(datasets):
        found = stats.duplicates
        parts.append(_named(number, datasets))
        if not found.documents:
            parts.append('<p class="none">No document occurs twice.</p>')
            continue
        parts.append(
            f"<p>{count(found.documents, 'document')} equal to an earlier one, with "
            f"{count(found.tokens, 'token')} ({percent(found.tokens, stats.tokens)}), of "
            f"{count(found.groups, 'different text')}. The costliest:</p>"
        )
        cells = [
            [
                ", ".join(map(str, group.documents))
                + (", \N{HORIZONTAL ELLIPSIS}" if group.copies > len(group.documents) else ""),
                f"{group.copies:,}",
                f"{group.length:,}",
                f"<code>{escape(group.text)}</code>" if group.text else "",
            ]
            for group in found.examples[:_MOST_GROUPS]
        ]
        parts.append(_table(["documents", "copies", "tokens each", "text"], cells, "numbers texts"))
    return _section("Duplicate documents", *parts)


def _eods(datasets: Sequence[Stats]) -> str:
    parts = []
    for number, stats in enumerate(datasets):
        if stats.eods and stats.eods.inside:
            cells = [[str(document), str(at)] for document, at in stats.eods.examples]
            parts.append(_named(number, datasets))
            parts.append(f"<p>{count(stats.eods.inside, 'EOD token')}, the first of them:</p>")
            parts.append(_table(["document", "first at token"], cells, "numbers narrow"))
    return _section("EOD inside documents", *parts) if parts else ""
