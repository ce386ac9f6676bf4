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
    trained: Sequence[int] | None = None,
) -> Html:
    """Tokens, of which the first has the number ``first``.

    What follows one of ``silent`` is not learned; ``trained`` is 1 for each token that is. Whatever a page would obey, direction marks
    among it, is written as an escape.
    """
    return tag("div", *_spans(ids, spelling, first, with_ids, silent, trained), class_="text", dir="ltr")


def _spans(
    ids: Sequence[int],
    spelling: Spelling | None,
    first: int,
    with_ids: bool,
    silent: Collection[int],
    trained: Sequence[int] | None,
) -> Iterator[Html]:
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    at = first
    for number, some in enumerate(spelled):
        numbers = "+".join(map(str, some.ids))
        quiet = " silent" if any(at + i in silent for i in range(len(some.ids))) else ""
        about = f"token {at:,}, id {numbers}" + (", no loss behind it" if quiet else "")
        if trained is not None:
            is_trained = any(trained[at - first : at - first + len(some.ids)])
            quiet += " trained" if is_trained else " context"
            about += ", trained" if is_trained else ", not trained"
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
