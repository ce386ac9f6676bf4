"""Tokens as text in alternating colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokpack.display import shown
from tokpack.report.html import Html, tag
from tokpack.report.spelling import TokenText

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tokpack.report import Spelling

_BRIEF_TOKENS = 48
_BRIEF = 160  # characters


class _Marks(NamedTuple):
    """What is known of tokens beside their text; the first has the number ``first``."""

    first: int
    silent: Collection[int]
    trained: Sequence[int] | None

    def of(self, at: int, count: int) -> tuple[str, str]:
        """Classes and words for tokens ``at`` to ``at + count``."""
        classes, words = "", ""
        if any(at + i in self.silent for i in range(count)):
            classes, words = " silent", ", no loss behind it"
        if self.trained is not None:
            begin = at - self.first
            is_trained = any(self.trained[begin : begin + count])
            classes += " trained" if is_trained else " context"
            words += ", trained" if is_trained else ", not trained"
        return classes, words


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

    What follows one of ``silent`` is not learned; ``trained`` is 1 for each token that is. Whatever
    a page would obey, direction marks among it, is written as an escape.
    """
    marks = _Marks(first, silent, trained)
    return tag("div", *_spans(ids, spelling, marks, with_ids), class_="text", dir="ltr")


def _spans(
    ids: Sequence[int], spelling: Spelling | None, marks: _Marks, with_ids: bool
) -> Iterator[Html]:
    spelled = spelling.whole(ids) if spelling else [TokenText((token,), "") for token in ids]
    at = marks.first
    for number, some in enumerate(spelled):
        numbers = "+".join(map(str, some.ids))
        classes, words = marks.of(at, len(some.ids))
        label = tag("small", numbers) if with_ids and spelling else ""
        text = shown(some.text) if spelling else numbers
        title = f"token {at:,}, id {numbers}{words}"
        yield tag("span", text, label, class_=f"t{number % 2}{classes}", title=title)
        if some.text.endswith("\n"):
            yield tag("br")
        at += len(some.ids)


def brief(ids: Sequence[int], spelling: Spelling | None) -> str:
    """The beginning of some tokens in a line."""
    some = list(ids[:_BRIEF_TOKENS])
    if spelling is None:
        return shown(" ".join(map(str, some)), limit=_BRIEF)
    return shown(spelling.text(some).decode("utf-8", "replace"), limit=_BRIEF)
