"""Tokens as text in alternating colours."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from tokpack.display import shown
from tokpack.report.html import SERIES, Html, html, tag
from tokpack.report.spelling import TokenText

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from tokpack.report import Spelling

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
    """Tokens, of which the first has the number ``first``, in two colours or in one of a series.

    What follows one of ``silent`` is not learned; ``trained`` is 1 for each token that is;
    ``marked`` are what somebody looks for. Whatever a page would obey, direction marks among it, is
    written as an escape.
    """
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    parts, at = [], first
    for number, some in enumerate(spelled):
        behind, numbers = at + len(some.ids), "+".join(map(str, some.ids))
        kinds, notes = [f"t{number % 2}"], [f"token {at:,}", f"id {numbers}"]
        if not silent.isdisjoint(range(at, behind)):
            kinds, notes = [*kinds, "silent"], [*notes, "no loss behind it"]
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
    """The numbers of tokens, counted from ``first``, with a part of a text that is found."""
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
    """The beginning of some tokens in a line, with a text that was found in it marked."""
    some = list(ids[:_BRIEF_TOKENS])
    if spelling is None:
        return html(shown(" ".join(map(str, some)), limit=_BRIEF))
    text = shown(spelling.text(some).decode("utf-8", "replace"), limit=_BRIEF)
    before, *others = text.split(shown(needle)) if needle else [text]
    return html(before, *(html(tag("mark", needle), other) for other in others))
