"""HTML that is safe as it is made: all text is escaped, and nothing in it is obeyed."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tokpack.display import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EMPTY = ("br", "input", "link", "meta")  # elements without an end
SERIES = 10  # colours in the page's style


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def html(*parts: object) -> Html:
    """Parts one behind the other; what is not Html is text, and becomes it."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(shown(str(part))) for part in parts)
    )


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None or False are left out; ``class_`` is class."""
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            named = key.rstrip("_").replace("_", "-")
            words.append(named if value is True else f'{named}="{escape(shown(str(value)))}"')
    end = "" if name in _EMPTY else f"</{name}>"
    return Html(f"<{' '.join(words)}>{html(*children)}{end}")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Html:
    """A table, scrolled by itself where it is too wide; the first column names the row.

    Where there is no room for columns, the style shows the head of a cell before it.
    """
    top = html(*(tag("th", cell, scope="col") for cell in head))
    body = []
    for first, *others in rows:
        cells = (
            tag("td", cell, data_head=name) for cell, name in zip(others, head[1:], strict=True)
        )
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    inner = tag("table", tag("thead", tag("tr", top)), tag("tbody", *body), class_=kind)
    return tag("div", inner, class_="scroll")


def section(title: str, *parts: object) -> Html:
    """A part of a page with a title."""
    return tag("section", tag("h2", title), *parts)


def tiles(facts: Iterable[tuple[str, object]]) -> Html:
    """Figures with their names, as many side by side as there is room for."""
    return tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts), class_="tiles")


def none(text: str) -> Html:
    """What stands where there is nothing to show."""
    return tag("p", text, class_="none")


def key(number: int, name: object) -> Html:
    """The colour of series ``number``, and its name."""
    return html(tag("i", class_=f"key s{number % SERIES}"), name)


def legend(names: Iterable[tuple[int, object]]) -> Html:
    """What the colours of series mean."""
    return tag("p", *(tag("span", key(*named)) for named in names), class_="legend")
