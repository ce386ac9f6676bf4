"""The frame of all pages: addresses, queries, titles, forms and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tokpack.errors import UsageError
from tokpack.look.plots import Html, html, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.datastructures import QueryParams

    from tokpack.look.pages.items import Item

SCRIPTS = ("plotly.js", "view.js")  # of pages with curves
TABLES = "tables.js"  # of all
# The id of the style sheet to which plotly adds its rules; the policy forbids one of its own.
PLOTLY_SHEET = "plotly.js-style-global"
_MOST = 2**62  # of a number in an address


class Query:
    """The values that an address ends with."""

    def __init__(self, values: QueryParams) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """A text; "" if there is none."""
        return str(self._values.get(name, ""))

    def numbers(self, name: str) -> list[int]:
        """The whole numbers of a name, which may occur any number of times."""
        return [int(one) for one in self._values.getlist(name) if re.fullmatch(r"\d{1,9}", one)]

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 0. UsageError for anything else."""
        text = self.text(name).replace(",", "").strip()
        if not text and default is not None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _MOST):
            raise UsageError(f"{name} is {self.text(name)!r}, expected a whole number of 0 or more")
        return int(text)


@dataclass(frozen=True)
class Pages:
    """The items, and the address below which all pages are."""

    items: list[Item]
    base: str

    def address(self, item: int | None = None, page: str = "", /, **query: object) -> str:
        """The address of a page of an item, with its query."""
        parameters = {name: value for name, value in query.items() if value is not None}
        ending = f"?{urlencode(parameters, errors='replace')}" if parameters else ""
        return self.base + ("" if item is None else f"{item}/{page}") + ending

    def link(
        self, text: object, item: int | None = None, page: str = "", /, **query: object
    ) -> Html:
        """A link to a page."""
        return tag("a", text, href=self.address(item, page, **query))

    def way(self, item: int, page: str, /, **query: object) -> Callable[..., Html]:
        """A function that makes links to a page with a query, or with some of it changed."""
        return lambda text, /, **more: self.link(text, item, page, **{**query, **more})

    def form(
        self, item: int, page: str, button: str, *fields: object, name: str | None = None
    ) -> Html:
        """A form that requests a page of an item."""
        action = self.address(item, page)
        return tag("form", *fields, tag("button", button), action=action, method="get", id=name)

    def number_of(self, prefix: str) -> int | None:
        """The number of the item that is the dataset ``prefix``, or None."""
        return next(
            (i for i, one in enumerate(self.items) if (one.kind, one.name) == ("dataset", prefix)),
            None,
        )

    def named(self, prefix: str) -> object:
        """The name of a dataset, a link to its page if it has one."""
        number = self.number_of(prefix)
        return prefix if number is None else self.link(prefix, number)

    def add(self, item: Item) -> int:
        """Add an item, unless it is there already. Returns its number."""
        number = self.number_of(item.name)
        if number is None:
            self.items.append(item)
            number = len(self.items) - 1
        return number

    def page(
        self,
        title: str,
        *parts: object,
        item: int | None = None,
        refresh: int | None = None,
        drawn: bool = False,
    ) -> Html:
        """A whole page. With ``refresh`` the browser loads it again after so many seconds.

        ``drawn`` are plots by the scripts of the pages.
        """
        ways = [self.link("tokpack view")]
        if item is not None:
            ways.append(self.link(f"{self.items[item].kind} {self.items[item].name}", item))
        scripts = [*(SCRIPTS if drawn else ()), TABLES]
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", title),
            tag("meta", http_equiv="refresh", content=refresh) if refresh else "",
            tag("link", id=PLOTLY_SHEET, rel="stylesheet", href=f"{self.base}style.css"),
            *(tag("script", src=self.base + name, defer=True) for name in scripts),
        )
        body = tag("body", tag("nav", *ways), tag("main", tag("h1", title), *parts))
        return html(Html("<!doctype html>\n"), tag("html", head, body, lang="en"))


def field(label: str, name: str, value: object = "", kind: str = "text") -> Html:
    """A field of a form with its label."""
    number = {"inputmode": "numeric", "size": "8"} if kind == "number" else {"size": "24"}
    return tag("label", label, " ", tag("input", name=name, value=value, **number))


def choose(label: str, name: str, values: Mapping[str, str], chosen: str) -> Html:
    """A field of a form with its label, for a choice among values with names."""
    options = (tag("option", v, value=k, selected=k == chosen) for k, v in values.items())
    return tag("label", label, " ", tag("select", *options, name=name))


def pager(first: int, step: int, end: int, way: Callable[..., Html]) -> Html:
    """Links to the numbers before and after ``first`` to ``first + step - 1`` of ``end``.

    ``way`` makes a link from a text and a query, in which ``from`` is the first number to show.
    """
    before = way("before", **{"from": max(min(first, end) - step, 0)}) if first else None
    behind = way("next", **{"from": first + step}) if first + step < end else None
    return steps_around(before, behind)


def steps_around(*ways: Html | None) -> Html:
    """Links to what comes before and after."""
    there = [html(way, " ") for way in ways if way is not None]
    return tag("p", *there, class_="ways") if there else html()
