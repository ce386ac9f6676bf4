"""Which characters of a rendered conversation are trained: ends of turns, thinking, tool calls."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Span = tuple[int, int]

# What a model thinks before it answers stands between such marks, by families.
_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
HARMONY = "<|start|>assistant"  # it begins another message behind its thinking
_PAIRS = [(re.escape(begin), re.escape(end)) for begin, end in _MARKS]
_THINKING = re.compile(
    r"\s*(?:" + "|".join(f"{begin}(.*?){end}" for begin, end in _PAIRS) + r")"
    rf"(?:(?<=<\|end\|>){re.escape(HARMONY)})?\s*",
    re.DOTALL,
)
_PROMPTED = re.compile(
    r"(?:" + "|".join(rf"{begin}\s*(?:{end}\s*)?" for begin, end in _PAIRS) + r")\Z"
)
_MARK = re.compile(r"<[^<>\s]{1,60}>")  # as most special tokens are
_LONGEST_TAIL = 200  # characters behind an answer, of which the end-of-turn token is one


class Ends:
    """The tokens that end turns, as text; the longer ones first.

    ``header``, which begins an assistant's turn, is there where turns have none of their own: they
    end where the turn of somebody else begins, with its mark.
    """

    def __init__(self, tokens: Iterable[str], *, header: str | None = None) -> None:
        self.tokens = tuple(sorted({token for token in tokens if token}, key=len, reverse=True))
        self._header = header

    def trim(self, text: str, begin: int, end: int) -> Span:
        """Where a turn in text[begin:end] ends without its end token, and with it.

        White space behind the token is not part of the turn. A token that follows at once ends it,
        too; where there is none, both are the same.
        """
        tail = text[max(begin, end - _LONGEST_TAIL) : end]
        last = end - len(tail) + len(tail.rstrip())
        for token in self.tokens:
            if text.endswith(token, begin, last):
                return last - len(token), last
        for token in self.tokens:
            if text.startswith(token, end):
                return end, end + len(token)
        if self._header is None or (self._header and text.startswith(self._header, end)):
            return end, end
        return end, end + len(mark_at(text, end))

    def has(self, text: str, begin: int, end: int) -> bool:
        """Whether a token in text[begin:end] ends the turn, or one that follows."""
        last, with_token = self.trim(text, begin, end)
        return last < with_token

    def behind(self, text: str, begin: int) -> int:
        """The end of the token that stands at a place; that place where there is none."""
        return next(
            (begin + len(token) for token in self.tokens if text.startswith(token, begin)), begin
        )


class Answer(NamedTuple):
    """What an assistant's message adds to a text, behind its generation prompt: [begin, end).

    ``closing`` is the mark that ends a thinking which the prompt has begun, if it has.
    """

    begin: int
    end: int
    closing: str = ""


class Rules(NamedTuple):
    """What of an assistant's turn is trained."""

    eot: bool
    thinking: bool
    empty_thinking: bool


def last_mark(text: str) -> str:
    """The mark at the end of a text; "" where there is none."""
    marks = _MARK.findall(text)
    return marks[-1] if marks and text.endswith(marks[-1]) else ""


def prompts(prompt: str) -> list[tuple[str, str]]:
    """A generation prompt, with the mark that ends the thinking it begins; and it without that.

    Templates of models that always think begin that in the prompt, and some drop it from answers.
    """
    match = _PROMPTED.search(prompt)
    if match is None:
        return [(prompt, "")]
    tail = match[0].rstrip()
    closing = next((end for begin, end in _MARKS if tail == begin), "")
    return [(prompt, closing), (prompt[: match.start()], "")]


def mark_at(text: str, begin: int) -> str:
    """The mark at a place in a text; "" where there is none."""
    match = _MARK.match(text, begin)
    return match[0] if match else ""


def thinking(
    text: str, begin: int = 0, end: int = sys.maxsize, closing: str = ""
) -> tuple[str, int]:
    """What a text thinks before it answers, and where that ends; nothing, at its beginning.

    ``closing`` is the mark that ends a thinking which was begun before the text.
    """
    if closing:
        closed = text.find(closing, begin, end)
        if closed < 0:
            return "", begin
        rest = text[closed + len(closing) : end]
        return text[begin:closed], min(end, len(text)) - len(rest.lstrip())
    match = _THINKING.match(text, begin, end)
    return (match[match.lastindex or 0], match.end()) if match else ("", begin)


def trained(text: str, span: Span, rules: Rules, closing: str = "") -> Span:
    """The trained part of what an assistant says.

    ``closing`` is the mark that ends the thinking which the prompt has begun.
    """
    thinks, behind = thinking(text, *span, closing)
    wanted = rules.thinking if thinks.strip() else rules.empty_thinking
    return (span[0] if wanted else behind), span[1]


def without(spans: list[Span], holes: Iterable[Span]) -> list[Span]:
    """What is left of spans without the characters of others."""
    for first, last in holes:
        spans = [
            one
            for begin, end in spans
            for one in ((begin, min(end, first)), (max(begin, last), end))
            if one[0] < one[1]
        ]
    return spans


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch as one, and none that is empty."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif begin < end:
            merged.append((begin, end))
    return tuple(merged)
