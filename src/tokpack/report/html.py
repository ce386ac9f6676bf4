"""HTML that is safe as it is made: all text is escaped, and nothing in it is obeyed."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tokpack.display import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EMPTY = ("br", "input", "link", "meta")  # elements without an end


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
    """A table, scrolled by itself where it is too wide; the first column names the row."""
    top = html(*(tag("th", cell, scope="col") for cell in head))
    body = html(
        *(
            tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
            for row in rows
        )
    )
    inner = tag("table", tag("thead", tag("tr", top)), tag("tbody", body), class_=kind)
    return tag("div", inner, class_="scroll")


def section(title: str, *parts: object) -> Html:
    """A part of a page with a title."""
    return tag("section", tag("h2", title), *parts)


def none(text: str) -> Html:
    """What stands where there is nothing to show."""
    return tag("p", text, class_="none")


def legend(entries: Iterable[object]) -> Html:
    """What the colours of a plot mean."""
    return tag("p", *(tag("span", entry) for entry in entries), class_="legend")
