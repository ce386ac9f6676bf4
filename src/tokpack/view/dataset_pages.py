"""Pages of a dataset: what it is, its documents, one of them, and those that hold a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.quantities import counted
from tokpack.report import grep
from tokpack.report.html import Html, none, table, tag
from tokpack.report.page import figures, length_figures
from tokpack.view.site import field, pager, steps_around
from tokpack.view.tokens import brief, token_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.view.items import DatasetItem
    from tokpack.view.site import Pages, Query

LISTED = 20  # documents of a page
SHOWN = 1000  # tokens of a page
CHEAP_TOKENS = 5_000_000  # that are counted without being asked
CHEAP_SEQUENCES = 2_000_000  # whose lengths are read without being asked
SEARCHED = 1 << 24  # tokens that a search looks at, where each id has bytes of its own
SEARCHED_SLOWLY = 1 << 18  # and elsewhere
MATCHES = 20
_AROUND = 12  # tokens before a match
_CHUNK = 1 << 16  # documents whose lengths are looked at together


def dataset_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """What a dataset is: facts, figures as far as they are cheap or asked for, ways into it."""
    data, figures_of = item.dataset, query.text("figures")
    notes = [tag("li", note) for note in item.notes]
    parts = [tag("ul", *notes, class_="warnings") if notes else "", _ways(site, number, item)]
    if figures_of == "all" or data.token_count <= CHEAP_TOKENS:
        return site.page(f"Dataset {item.name}", *parts, figures([item.stats]), item=number)
    rows = [
        ["documents", f"{data.documents:,}"],
        ["sequences", f"{len(data):,}"],
        ["tokens", f"{data.token_count:,}"],
        ["ids as", np.dtype(data.dtype).name],
        ["tokenizer", data.tokenizer.get("name", "not known") if data.tokenizer else "not known"],
    ]
    more = []
    if figures_of == "lengths" or len(data) <= CHEAP_SEQUENCES:
        more.append(length_figures([item.name], [item.measures]))
    else:
        words = f"read the lengths of all {len(data):,} sequences"
        more.append(tag("p", site.link(words, number, figures="lengths")))
    words = f"count all {data.token_count:,} tokens, which reads the whole dataset"
    more.append(tag("p", site.link(words, number, figures="all")))
    return site.page(
        f"Dataset {item.name}", *parts, table(["", ""], rows, "facts"), *more, item=number
    )


def _ways(site: Pages, number: int, item: DatasetItem) -> Html:
    jump = site.form(number, "document", "go", field("document", "number", "", kind="number"), " ")
    return tag(
        "div",
        site.link("documents", number, "documents"),
        jump,
        _search_form(site, number, "") if item.spelling else "",
        class_="ask",
    )


def _search_form(site: Pages, number: int, text: str) -> Html:
    return site.form(number, "search", "search", field("text", "text", text), " ")


def documents_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """Documents one after the other, a line each."""
    data = item.dataset
    first = query.number("from", 0)
    rows = [
        [
            site.link(f"{document:,}", number, "document", number=document),
            f"{len(ids):,}",
            _source(item, document),
            brief(ids[:64].tolist(), item.spelling),
        ]
        for document in range(first, min(first + LISTED, data.documents))
        for ids in (data.document(document),)
    ]
    listed = table(["document", "tokens", "source", "text"], rows, "numbers texts")
    return site.page(
        f"Documents of {item.name}",
        tag("p", f"{counted(data.documents, 'document')} in all"),
        _ways(site, number, item),
        listed if rows else none("No documents here."),
        pager(first, LISTED, data.documents, site.way(number, "documents")),
        item=number,
    )


def _source(item: DatasetItem, document: int) -> str:
    source, line = item.sources.find(document)
    return source if line is None else f"{source}:{line}"


def document_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """The tokens of a document, some of them at a time."""
    data, document = item.dataset, query.number("number")
    if document >= data.documents:
        raise UsageError(f"there is no document {document:,}: there are {data.documents:,}")
    tokens, first = data.document(document), query.number("from", 0)
    ids, with_ids = tokens[first : first + SHOWN].tolist(), min(query.number("ids", 1), 1)
    way = site.way(number, "document", number=document, ids=with_ids)
    source = _source(item, document)
    begin, end = data.doc_idx[document : document + 2].tolist()
    mask = None if data.mask is None else data.mask.document(document)
    trained = None if mask is None else mask[first : first + SHOWN].tolist()
    about = [
        counted(len(tokens), "token"),
        "" if mask is None else counted(int(mask.sum()), "trained token"),
        f"sequences {begin:,} to {end - 1:,}" if end - begin > 1 else "",
    ]
    more = len(tokens) - first - len(ids)
    return site.page(
        f"Document {document:,} of {item.name}",
        tag("p", ", ".join(filter(None, about)), f", from {source}" if source else ""),
        steps_around(
            way("document before", number=document - 1) if document else None,
            way("next document", number=document + 1) if document + 1 < data.documents else None,
            way("without ids" if with_ids else "with ids", **{"ids": 1 - with_ids, "from": first}),
            *_seen(site, number, document),
        ),
        tag("p", f"tokens {first:,} to {first + len(ids) - 1:,}, and {more:,} more")
        if first or more > 0
        else "",
        token_text(ids, item.spelling, first, with_ids=bool(with_ids), trained=trained)
        if ids
        else none("No tokens here."),
        pager(first, SHOWN, len(tokens), way),
        item=number,
    )


def _seen(site: Pages, number: int, document: int) -> Iterator[Html]:
    """Links to the steps of each run that sees the document."""
    for run, item in enumerate(site.items):
        if item.kind == "run":
            parameters = {"dataset": number, "document": document}
            yield site.link(f"seen by {item.name}", run, "seen", **parameters)


def search_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """Documents that hold a text, in as many as can be searched in a moment."""
    text, first = query.text("text"), query.number("from", 0)
    if item.spelling is None:
        raise UsageError(f"the tokenizer of {item.name} is not known, so there is no text")
    if not text:
        raise UsageError("no text to look for")
    most = SEARCHED_SLOWLY if item.spelling.table is None else SEARCHED
    stop, skipped = _reach(item, first, most)
    rows = []
    for match in grep(item.dataset, item.spelling, text, within=range(first, stop)):
        at = max(match.token - _AROUND, 0)
        ids = item.dataset.document(match.document)[at : at + 4 * _AROUND].tolist()
        link = {"number": match.document, "from": at}
        rows.append(
            [
                site.link(f"{match.document:,}", number, "document", **link),
                f"{match.token:,}",
                _source(item, match.document),
                brief(ids, item.spelling),
            ]
        )
        if len(rows) == MATCHES:
            stop, skipped = match.document + 1, False
            break
    end = item.dataset.documents
    behind = stop + skipped
    return site.page(
        f"{shown(text, limit=80)} in {item.name}",
        _search_form(site, number, text),
        table(["document", "token", "source", "text"], rows, "numbers texts")
        if rows
        else none("Not found here."),
        tag("p", f"documents {first:,} to {stop - 1:,} of {end:,} were searched")
        if stop > first
        else "",
        tag("p", f"document {stop:,} was not: it has more than {most:,} tokens") if skipped else "",
        steps_around(
            site.link("search on", number, "search", **{"text": text, "from": behind})
            if behind < end
            else None
        ),
        item=number,
    )


def _reach(item: DatasetItem, first: int, most: int) -> tuple[int, bool]:
    """Where a search from ``first`` on ends, and whether the next document is too long for any."""
    data, tokens = item.dataset, 0
    for document in range(first, data.documents):
        begin, end = data.doc_idx[document : document + 2].tolist()
        size = int(np.sum(data.sizes[begin:end], dtype=np.int64))
        if tokens + size > most:
            return document, size > most
        tokens += size
        if document - first >= _CHUNK:
            return document + 1, False
    return data.documents, False
