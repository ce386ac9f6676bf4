"""Tokens as text in alternating colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.display import shown
from tokpack.report.html import Html, tag
from tokpack.report.spelling import TokenText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tokpack.report import Spelling

_BRIEF_TOKENS = 48
_BRIEF = 160  # characters


def token_text(
    ids: Sequence[int],
    spelling: Spelling | None,
    first: int,
    *,
    with_ids: bool,
    silent: Collection[int] = (),
) -> Html:
    """Tokens, of which the first has the number ``first``.

    What follows one of ``silent`` is not learned. Whatever a page would obey, direction marks
    among it, is written as an escape.
    """
    return tag("div", *_spans(ids, spelling, first, with_ids, silent), class_="text", dir="ltr")


def _spans(
    ids: Sequence[int],
    spelling: Spelling | None,
    first: int,
    with_ids: bool,
    silent: Collection[int],
) -> Iterator[Html]:
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    at = first
    for number, some in enumerate(spelled):
        numbers = "+".join(map(str, some.ids))
        quiet = " silent" if any(at + i in silent for i in range(len(some.ids))) else ""
        about = f"token {at:,}, id {numbers}" + (", no loss behind it" if quiet else "")
        label = tag("small", numbers) if with_ids and spelling else ""
        text = shown(some.text) if spelling else numbers
        yield tag("span", text, label, class_=f"t{number % 2}{quiet}", title=about)
        if some.text.endswith("\n"):
            yield tag("br")
        at += len(some.ids)


def brief(ids: Sequence[int], spelling: Spelling | None) -> str:
    """The beginning of some tokens in a line."""
    some = list(ids[:_BRIEF_TOKENS])
    if spelling is None:
        return shown(" ".join(map(str, some)), limit=_BRIEF)
    return shown(spelling.text(some).decode("utf-8", "replace"), limit=_BRIEF)
