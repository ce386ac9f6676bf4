"""Pages of a dataset: its facts, its documents, one of them, and those with a text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.overview import grep, random_documents
from tokpack.dataset.spelling import TokenText, turns_of
from tokpack.dataset.table import OWN
from tokpack.display import brief as value_text
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.look.facts import bases, dataset_facts, few, size_text
from tokpack.look.page import figures, length_figures
from tokpack.look.pages.items import TOKENS
from tokpack.look.pages.site import choose, field, pager, steps_around
from tokpack.look.plots import SERIES, Html, html, none, table, tag, tiles
from tokpack.quantities import counted
from tokpack.sources.sql import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from tokpack.dataset import MMapIndexedDataset
    from tokpack.dataset.spelling import Spelling
    from tokpack.look.pages.items import DatasetItem
    from tokpack.look.pages.site import Pages, Query


# Tokens as text in alternating colours.

_BRIEF_TOKENS = 48
_BRIEF = 160  # characters


def token_text(
    ids: Sequence[int],
    spelling: Spelling | None,
    first: int,
    *,
    with_ids: bool,
    silent: AbstractSet[int] = frozenset(),
    trained: Sequence[int] | None = None,
    marked: AbstractSet[int] = frozenset(),
    series: int | None = None,
) -> Html:
    """Tokens in two alternating colours, or in one of a series; the first has the number ``first``.

    The label after one of ``silent`` is not learned; ``trained`` is 1 for each token that is;
    ``marked`` tokens were searched for. Characters with an effect, such as direction marks, are
    escaped.
    """
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    parts, at = [], first
    for number, some in enumerate(spelled):
        behind, numbers = at + len(some.ids), "+".join(map(str, some.ids))
        kinds, notes = [f"t{number % 2}"], [f"token {at:,}", f"id {numbers}"]
        if not silent.isdisjoint(range(at, behind)):
            kinds, notes = [*kinds, "silent"], [*notes, "no loss for the next token"]
        if trained is not None:
            is_trained = any(trained[at - first : behind - first])
            kinds.append("trained" if is_trained else "context")
            notes.append("trained" if is_trained else "not trained")
        label = tag("small", numbers) if with_ids and spelling else ""
        text = shown(some.text) if spelling else numbers
        name = "span" if marked.isdisjoint(range(at, behind)) else "mark"
        parts.append(tag(name, text, label, class_=" ".join(kinds), title=", ".join(notes)))
        if some.text.endswith("\n"):
            parts.append(tag("br"))
        at = behind
    kind = "text" if series is None else f"text s{series % SERIES}"
    return tag("div", *parts, class_=kind, dir="ltr")


def tokens_with(ids: Sequence[int], spelling: Spelling | None, first: int, needle: str) -> set[int]:
    """The tokens, counted from ``first``, that overlap a found text."""
    if spelling is None or not needle:
        return set()
    spelled = spelling.whole(ids)
    text, ends = "".join(one.text for one in spelled), [*accumulate(len(s.text) for s in spelled)]
    numbers = [*accumulate((len(one.ids) for one in spelled), initial=first)]
    hits: set[int] = set()
    at = text.find(needle)
    while at >= 0:
        behind = at + len(needle)
        begin, end = bisect_right(ends, at), bisect_left(ends, behind)
        hits.update(range(numbers[begin], numbers[end + 1]))
        at = text.find(needle, behind)
    return hits


def brief(ids: Sequence[int], spelling: Spelling | None, needle: str = "") -> Html:
    """The beginning of some tokens on one line, with the text that was found in it marked."""
    some = list(ids[:_BRIEF_TOKENS])
    if spelling is None:
        return html(shown(" ".join(map(str, some)), limit=_BRIEF))
    text = shown(spelling.text(some).decode("utf-8", "replace"), limit=_BRIEF)
    before, *others = text.split(shown(needle)) if needle else [text]
    return html(before, *(html(tag("mark", needle), other) for other in others))


LISTED = 20  # documents of a page
SHOWN = 1000  # tokens of a page
CHEAP_TOKENS = 5_000_000  # up to this many are counted without a request
CHEAP_SEQUENCES = 2_000_000  # up to this many lengths are read without a request
SEARCHED = 1 << 24  # tokens that a search reads if each id has its own bytes
SEARCHED_SLOWLY = 1 << 18  # and for other tokenizers
MATCHES = 20
RANDOM = "random"  # beside the columns by which documents are sorted
_AROUND = 12  # tokens before a match
_CHUNK = 1 << 16  # documents whose lengths are looked at together
_DIGESTS = ("text_xxh3", "tokens_xxh3")  # columns for programs
_SHOWN = ("source", "line", TOKENS)  # columns that lists have anyway
_OWN_SOURCE = f"{OWN}source"


def dataset_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """A dataset: facts, figures that are cheap or requested, and links to its documents."""
    data, figures_of = item.dataset, query.text("figures")
    notes = [tag("li", note) for note in item.notes]
    alarm = tag("ul", *notes, class_="warnings") if notes else ""
    parts = [alarm, _ways(site, number, item), _view(site, data)]
    if figures_of == "all" or data.token_count <= CHEAP_TOKENS:
        return site.page(f"Dataset {item.name}", *parts, figures([item.stats]), item=number)
    facts = dataset_facts(data, item.tokenizer)
    lengths, words = Html(), f"count all {data.token_count:,} tokens, which reads the whole dataset"
    more = [site.link(words, number, figures="all")]
    if figures_of == "lengths" or len(data) <= CHEAP_SEQUENCES:
        lengths = length_figures([item.name], [item.measures])
    else:
        words = f"read the lengths of all {len(data):,} sequences"
        more.append(site.link(words, number, figures="lengths"))
    parts += [tag("section", tiles(facts.items())), lengths, steps_around(*more)]
    return site.page(f"Dataset {item.name}", *parts, item=number)


def _view(site: Pages, data: MMapIndexedDataset) -> Html:
    """The datasets that a view selects from, and its own size; nothing for other datasets."""
    if data.view is None:
        return html()
    names = few([site.named(one) for one in bases(data)])
    links = [html(", " if n else "", name) for n, name in enumerate(names)]
    count = counted(int(data.view.document_starts[-1]), "document")
    end = f": {data.documents:,} of {count}, a list of {size_text(data)}"
    return tag("p", "A view of ", *links, end)


def _ways(site: Pages, number: int, item: DatasetItem, text: str = "") -> Html:
    """Links to documents, one of them by its number, and a search."""
    find = field("text", "text", text)
    return tag(
        "div",
        site.link("all documents", number, "documents"),
        site.link("random ones", number, "documents", sort=RANDOM),
        site.form(number, "document", "go", field("document", "number", "", kind="number")),
        site.form(number, "search", "search", find) if item.spelling else "",
        class_="ask",
    )


def documents_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """The documents of a choice in an order, each on a line."""
    where, sort, first = query.text("where"), query.text("sort"), query.number("from", 0)
    seed, fault, chosen = query.number("seed", 0), Html(), item.listing.numbers("", "")[:0]
    try:
        chosen = item.listing.numbers(where, "" if sort == RANDOM else sort)
    except UsageError as error:
        fault = tag("p", str(error), class_="warnings")
    way = site.way(number, "documents", where=where or None, sort=sort or None)
    places = list(range(first, min(first + LISTED, len(chosen))))
    around = pager(first, LISTED, len(chosen), way)
    if sort == RANDOM:
        places = random_documents(len(chosen), LISTED, seed)
        around = steps_around(way("others", seed=seed + 1))
    numbers = [(int(chosen[place]), 0) for place in places]
    named = [*columns_of(where), sort.removeprefix("-")] if numbers else []
    count, all_of = counted(len(chosen), "document"), item.dataset.documents
    return site.page(
        f"Documents of {item.name}",
        _ways(site, number, item),
        _filter(site, number, item, where, sort),
        fault,
        tag("p", f"{count} of {all_of:,}" if where else f"{count} in all") if not fault else "",
        _listed(site, number, item, numbers, named),
        around,
        item=number,
    )


def _filter(site: Pages, number: int, item: DatasetItem, where: str, sort: str) -> Html:
    """A form for a choice of documents and their order."""
    columns = _columns(item)
    orders = {"": "number", RANDOM: "random"}
    for name in (TOKENS, *columns):
        orders |= {name: f"{name}, lowest first", f"-{name}": f"{name}, highest first"}
    where_field = field("where", "where", where) if item.sources.columns else ""
    form = site.form(number, "documents", "show", where_field, choose("sort", "sort", orders, sort))
    named = ", ".join(f"{k} ({v})" for k, v in item.sources.columns.items() if k not in _DIGESTS)
    words = f"An SQL expression, as for tokpack select --where, on {named}."
    return tag("div", form, tag("small", words) if named else "", class_="ask")


def _columns(item: DatasetItem) -> list[str]:
    """The columns of its table for people that lists do not have anyway."""
    there, left = item.sources.columns, {*_SHOWN, *_DIGESTS}
    left = {name for name in left if OWN + name not in there}
    return [name for name in there if name not in left and not name.startswith(OWN)]


def _listed(
    site: Pages,
    number: int,
    item: DatasetItem,
    places: Sequence[tuple[int, int]],
    named: Sequence[str] = (),
    *,
    needle: str = "",
) -> Html:
    """Some documents, each from one of its tokens on, with existing columns."""
    if not places:
        return none("No documents here.")
    columns = {name.lower(): name for name in (*_columns(item), *_DIGESTS)}
    roots = dict.fromkeys(name.lower().partition(".")[0] for name in named)
    names = [columns[name] for name in roots if name in columns]
    rows = []
    table_rows = item.sources.rows([document for document, _ in places], names)
    for (document, at), row in zip(places, table_rows, strict=True):
        ids = item.dataset.document(document)
        query = {"number": document, "from": at or None, "text": needle or None}
        link = site.link(f"{document:,}", number, "document", **query)
        values = (_value(row.get(name)) for name in names)
        text = brief(ids[at : at + 64].tolist(), item.spelling, needle)
        rows.append([link, f"{len(ids):,}", source_of(site, number, item, document), *values, text])
    head = ["document", "tokens", "source", *names, "text"]
    return tag("section", table(head, rows, "numbers texts"))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return shown(value, limit=80) if isinstance(value, str) else value_text(value)


def source_of(site: Pages, number: int, item: DatasetItem, document: int) -> Html:
    """The input of a document, with a link to all documents of it if there is a table."""
    place = item.sources.find(document)
    if not {"source", _OWN_SOURCE} & {*item.sources.columns}:
        return html(place)
    column = "source" if _OWN_SOURCE not in item.sources.columns else _OWN_SOURCE
    same = f"{column} = '" + place.source.replace("'", "''") + "'"
    address = site.address(number, "documents", where=same)
    short = "/".join(str(place).split("/")[-2:])
    return tag("a", short, href=address, title=str(place))


def document_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """The tokens of a document, some of them at a time."""
    data, document = item.dataset, query.number("number")
    if document >= data.documents:
        raise UsageError(f"there is no document {document:,}: the dataset has {data.documents:,}")
    tokens, first = data.document(document), query.number("from", 0)
    ids, with_ids = tokens[first : first + SHOWN].tolist(), min(query.number("ids", 1), 1)
    needle = query.text("text")
    way = site.way(number, "document", number=document, ids=with_ids, text=needle or None)
    mask = None if data.mask is None else data.mask.document(document)
    trained = None if mask is None else mask[first : first + SHOWN].tolist()
    marked = tokens_with(ids, item.spelling, first, needle)
    more = len(tokens) - first - len(ids)
    parts: list[object] = []
    for turn in turns_of(data, document, first, first + len(ids)):
        parts += [tag("h3", turn.role)] if turn.role else []
        here = slice(turn.begin, turn.end)
        parts.append(
            token_text(
                ids[here],
                item.spelling,
                first + turn.begin,
                with_ids=bool(with_ids),
                trained=None if trained is None else trained[here],
                marked=marked,
            )
        )
    return site.page(
        f"Document {document:,} of {item.name}",
        steps_around(
            way("previous document", number=document - 1) if document else None,
            way("next document", number=document + 1) if document + 1 < data.documents else None,
            way("without ids" if with_ids else "with ids", **{"ids": 1 - with_ids, "from": first}),
            *(
                site.link(f"seen by {run.name}", n, "seen", dataset=number, document=document)
                for n, run in enumerate(site.items)
                if run.kind == "run"
            ),
        ),
        tag("section", tiles(_about(site, number, item, document, mask))),
        tag("p", f"tokens {first:,} to {first + len(ids) - 1:,}, and {more:,} more")
        if first or more > 0
        else "",
        tag("section", *parts) if ids else none("No tokens here."),
        pager(first, SHOWN, len(tokens), way),
        item=number,
    )


def _about(
    site: Pages, number: int, item: DatasetItem, document: int, mask: Any
) -> Iterator[tuple[str, object]]:
    """The facts about a document: its size, its source, and its row in the table."""
    begin, end = item.dataset.doc_idx[document : document + 2].tolist()
    yield "size", counted(len(item.dataset.document(document)), "token")
    if mask is not None:
        yield "trained", counted(int(mask.sum()), "token")
    if end - begin > 1:
        yield "sequences", f"{begin:,} to {end - 1:,}"
    if source := source_of(site, number, item, document):
        yield "source", source
    columns = _columns(item)
    [row] = item.sources.rows([document], columns)
    yield from ((name, _value(value)) for name, value in row.items())


def search_page(site: Pages, number: int, item: DatasetItem, query: Query) -> Html:
    """Documents that contain a text, among as many as can be searched in a moment."""
    text, first = query.text("text"), query.number("from", 0)
    if item.spelling is None:
        raise UsageError(f"the tokenizer of {item.name} is not known, so there is no text")
    if not text:
        raise UsageError("no text to search for")
    most = SEARCHED_SLOWLY if item.spelling.table is None else SEARCHED
    stop, skipped = _reach(item, first, most)
    places: list[tuple[int, int]] = []
    for match in grep(item.dataset, item.spelling, text, within=range(first, stop)):
        places.append((match.document, max(match.token - _AROUND, 0)))
        if len(places) == MATCHES:
            stop, skipped = match.document + 1, False
            break
    end = item.dataset.documents
    behind = stop + skipped
    return site.page(
        f"{shown(text, limit=80)} in {item.name}",
        _ways(site, number, item, text),
        _listed(site, number, item, places, needle=text) if places else none("Not found here."),
        tag("p", f"documents {first:,} to {stop - 1:,} of {end:,} were searched")
        if stop > first
        else "",
        tag("p", f"document {stop:,} was skipped: it has over {most:,} tokens") if skipped else "",
        steps_around(
            site.link("continue the search", number, "search", **{"text": text, "from": behind})
            if behind < end
            else None
        ),
        item=number,
    )


def _reach(item: DatasetItem, first: int, most: int) -> tuple[int, bool]:
    """The end of a search from ``first`` on, and whether the next document is too long."""
    data = item.dataset
    bounds = np.array(data.doc_idx[first : first + _CHUNK + 1])
    if len(bounds) < 2:
        return data.documents, False
    ends = np.cumsum(data.sizes[bounds[0] : bounds[-1]], dtype=np.int64)
    lengths = np.diff(np.concatenate([[0], ends])[bounds - bounds[0]])
    fitting = int(np.searchsorted(np.cumsum(lengths), most, side="right"))
    return first + fitting, bool((lengths[fitting : fitting + 1] > most).any())
