"""Figures of datasets as one page of HTML that needs nothing else: to read, print and send."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from tokpack.files.outputs import Kind, begins_with
from tokpack.quantities import counted, percent
from tokpack.report.charts import length_plot, zipf_plot
from tokpack.report.facts import common_folder, facts, labels, source_rows, warnings
from tokpack.report.html import Html, html, legend, none, section, table, tag
from tokpack.report.plot import SERIES, bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.report.lengths import LengthStats
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
    body = html(tag("h1", title), figures(datasets), tag("footer", made) if made else "")
    return (
        f'{_HEAD}<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"{tag('title', title)}<style>{style()}</style></head>\n<body>{body}</body></html>\n"
    )


def style() -> str:
    """The style sheet of the pages."""
    return resources.files("tokpack.report").joinpath("page.css").read_text(encoding="utf-8")


def figures(datasets: Sequence[Stats]) -> Html:
    """The figures and plots of datasets, side by side."""
    parts = (_facts, _lengths, _tokens, _sources, _duplicates, _eods)
    return html(*(part(datasets) for part in parts))


def _is_page(path: str) -> bool:
    return begins_with(path, _HEAD.encode())


PAGE_KIND = Kind("a page of tokpack stats", _is_page, kept=False)


def _key(number: int, name: str) -> Html:
    return html(tag("i", class_=f"key s{number % SERIES}"), name)


def _named(number: int, datasets: Sequence[Stats]) -> Html:
    """The title of what is said about one of several datasets."""
    return tag("h3", _key(number, labels(datasets)[number])) if len(datasets) > 1 else html()


def _facts(datasets: Sequence[Stats]) -> Html:
    columns = [facts(stats) for stats in datasets]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    notes = [
        tag("li", f"{name}: {line}")
        for name, stats in zip(labels(datasets), datasets, strict=True)
        for line in warnings(stats)
    ]
    if len(datasets) > 1:
        rows.insert(0, ["prefix", *(stats.prefix for stats in datasets)])
    alarm = tag("ul", *notes, class_="warnings") if notes else ""
    return tag("section", alarm, table(["", *labels(datasets)], rows, "facts"))


def _lengths(datasets: Sequence[Stats]) -> Html:
    return length_figures(labels(datasets), datasets)


def length_figures(named: Sequence[str], datasets: Sequence[Stats | LengthStats]) -> Html:
    """How long the documents of datasets of these names are."""
    plot = length_plot(datasets)
    if not plot:
        return section("Lengths of documents", none("No documents."))
    names = named if len(datasets) > 1 else ["documents", "tokens"]
    keys = legend(_key(i, name) for i, name in enumerate(names))
    filled = [
        (name, stats.lengths.rows())
        for name, stats in zip(named, datasets, strict=True)
        if stats.lengths
    ]
    rows = [
        [name, *(f"{value:,.{1 if key == 'mean' else 0}f}" for key, value in values)]
        for name, values in filled
    ]
    head = ["tokens in a document", *(key for key, _ in filled[0][1])]
    return section("Lengths of documents", tag("figure", keys, plot), table(head, rows, "numbers"))


def _tokens(datasets: Sequence[Stats]) -> Html:
    plot = zipf_plot(datasets)
    if not plot:
        return section("Frequency of tokens", none("No tokens."))
    alone = len(datasets) == 1
    tables = [html(_named(i, datasets), _top(stats, i, alone)) for i, stats in enumerate(datasets)]
    keys = legend(_key(i, name) for i, name in enumerate(labels(datasets))) if not alone else ""
    return section("Frequency of tokens", tag("figure", keys, plot), *tables)


def _top(stats: Stats, number: int, is_open: bool) -> Html:
    top = stats.frequency.top
    if not top:
        return none("No tokens.")
    rows = [
        [
            token.id,
            tag("code", token.text) if token.text else "",
            f"{token.count:,}",
            html(bar(token.count / top[0].count, number), percent(token.count, stats.tokens)),
        ]
        for token in top
    ]
    coverage = stats.frequency.coverage.items()
    needed = ", ".join(f"{ids:,} of the ids make {share}%" for share, ids in coverage)
    summary = tag("summary", f"The {len(top)} most frequent")
    rest = table(["id", "token", "count", "share of all tokens"], rows, "numbers tokens")
    return html(tag("p", f"{needed} of all tokens."), tag("details", summary, rest, open=is_open))


def _sources(datasets: Sequence[Stats]) -> Html:
    parts = []
    for number, stats in enumerate(datasets):
        rows = source_rows(stats.sources)
        parts.append(_named(number, datasets))
        if not rows:
            parts.append(none("Not known: the dataset has no manifest."))
            continue
        most = max(row.share for row in rows) or 1.0
        densest = max(row.ratio for row in rows) or 1.0
        cells = [
            [
                row.name[-_NAME:],
                f"{row.documents:,}",
                f"{row.tokens:,}",
                html(bar(row.share / most, number), percent(row.share, 1)),
                html(bar(row.ratio / densest, number), f"{row.ratio:.2f}") if row.ratio else "",
            ]
            for row in rows
        ]
        head = [
            "source in " + (common_folder(stats.sources) or "."),
            "documents",
            "tokens",
            "share of tokens",
            "bytes a token",
        ]
        parts.append(table(head, cells, "numbers sources"))
    return section("Sources", *parts)


def _duplicates(datasets: Sequence[Stats]) -> Html:
    parts = []
    for number, stats in enumerate(datasets):
        found = stats.duplicates
        parts.append(_named(number, datasets))
        if not found.documents:
            parts.append(none("No document occurs twice."))
            continue
        about = (
            f"{counted(found.documents, 'document')} equal to an earlier one, with "
            f"{counted(found.tokens, 'token')} ({percent(found.tokens, stats.tokens)}), of "
            f"{counted(found.groups, 'different text')}. The costliest:"
        )
        cells = [
            [
                ", ".join(map(str, group.documents))
                + (", \N{HORIZONTAL ELLIPSIS}" if group.copies > len(group.documents) else ""),
                f"{group.copies:,}",
                f"{group.length:,}",
                tag("code", group.text) if group.text else "",
            ]
            for group in found.examples[:_MOST_GROUPS]
        ]
        head = ["documents", "copies", "tokens each", "text"]
        parts.append(html(tag("p", about), table(head, cells, "numbers texts")))
    return section("Duplicate documents", *parts)


def _eods(datasets: Sequence[Stats]) -> Html:
    parts = []
    for number, stats in enumerate(datasets):
        if stats.eods and stats.eods.inside:
            cells = [[document, at] for document, at in stats.eods.examples]
            parts.append(_named(number, datasets))
            parts.append(tag("p", f"{counted(stats.eods.inside, 'EOD token')}, the first of them:"))
            parts.append(table(["document", "first at token"], cells, "numbers narrow"))
    return section("EOD inside documents", *parts) if parts else html()
