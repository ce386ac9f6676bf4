"""Which characters of a rendered conversation are trained: ends of turns, thinking, tool calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Span = tuple[int, int]

# What a model thinks before it answers, by the marks of several families.
_THINKING = re.compile(
    r"\s*(?:"
    r"<think>(?P<a>.*?)</think>"
    r"|\[THINK\](?P<b>.*?)\[/THINK\]"
    r"|<\|START_THINKING\|>(?P<c>.*?)<\|END_THINKING\|>"
    r"|<seed:think>(?P<d>.*?)</seed:think>"
    r"|<\|channel\|>analysis<\|message\|>(?P<e>.*?)<\|end\|>(?:<\|start\|>assistant)?"
    r")\s*",
    re.DOTALL,
)
_OPENED = re.compile(r"(?P<a>.*?)</think>\s*", re.DOTALL)
_PROMPTED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_LONGEST_TAIL = 200  # characters behind an answer, of which the end-of-turn token is one


class Ends:
    """The end-of-turn tokens of a template, as text; the longer ones first."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(sorted({token for token in tokens if token}, key=len, reverse=True))

    def trim(self, text: str, begin: int, end: int) -> Span:
        """Where the last turn in text[begin:end] ends without its end token, and with it.

        White space behind the token is not part of the turn; without a token nothing is cut off.
        """
        tail = text[max(begin, end - _LONGEST_TAIL) : end].rstrip()
        for token in self.tokens:
            if tail.endswith(token):
                last = max(begin, end - _LONGEST_TAIL) + len(tail)
                return max(last - len(token), begin), last
        return end, end

    def found(self, text: str, begin: int, end: int) -> bool:
        """Whether a turn ends with one of the tokens."""
        last, with_token = self.trim(text, begin, end)
        return last != with_token


class Rules(NamedTuple):
    """What of an assistant's turn is trained."""

    eot: bool
    thinking: bool
    empty_thinking: bool


def without_prompted_thinking(prompt: str) -> str:
    """A generation prompt without the beginning of thinking that some templates put there."""
    return _PROMPTED.sub("", prompt)


def trained(text: str, span: Span, ends: Ends, rules: Rules, *, opened: bool = False) -> list[Span]:
    """The trained part of an assistant's turn, whose own text is ``span``.

    ``opened``: the turn begins inside of a thinking that the prompt has begun.
    """
    begin, end = span
    last, with_token = ends.trim(text, begin, end)
    end = with_token if rules.eot else last
    pattern = _OPENED if opened else _THINKING
    found = pattern.match(text, begin, end)
    if found is not None:
        thought = next((part for part in found.groups() if part is not None), "")
        wanted = rules.thinking if thought.strip() else rules.empty_thinking
        if not wanted:
            begin = found.end()
    return [(begin, end)] if begin < end else []


def without(spans: Iterable[Span], hole: Span) -> list[Span]:
    """The spans without the characters of another one."""
    kept = []
    for begin, end in spans:
        for part in ((begin, min(end, hole[0])), (max(begin, hole[1]), end)):
            if part[0] < part[1]:
                kept.append(part)
    return kept


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif begin < end:
            found.append((begin, end))
    return tuple(found)
