"""Marks in messages, which show where in a rendered text their contents, thoughts and calls are.

A mark is a number between two private characters that occur in no text. Messages are rendered once
more with marks. If the result without marks equals the earlier text, the marks show exactly where
everything is, whatever a template trims, moves or drops.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


_MARK = re.compile("\U000f0000(\\d+)\U000f0001")

Part = tuple[str, bool]  # a text in a content, and whether it is trained


class Marks:
    """Puts marks into messages under keys, and finds the places of a key in the rendered text."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, list[int]] = {}
        self._spaces: list[tuple[str, str]] = []  # the white space around each text with marks
        self._places: dict[int, list[int]] = {}
        self._text = ""

    def around(self, text: str, key: Hashable) -> str:
        """The text with two marks inside its outer white space, which templates may trim."""
        core = text.strip()
        if not core:
            return text
        at = text.index(core)
        before, behind = text[:at], text[at + len(core) :]
        first = self._new(key, before, behind)
        return f"{before}{_mark(first)}{core}{_mark(first + 1)}{behind}"

    def content(self, content: Any, key: Hashable, parts: Sequence[Part] = ()) -> Any:
        """The content with marks around it; ``parts``, if there are any, tell which are not
        trained.
        """
        if isinstance(content, str):
            texts = parts or [(content, True)]
            return self.around("".join(self._part(*one, key) for one in texts), key)
        if not isinstance(content, list):
            return content
        texts = parts or [(one["text"], True) for one in content]
        return [
            {**one, "text": self.around(self._part(*part, key), key)}
            for one, part in zip(content, texts, strict=True)
        ]

    def _part(self, text: str, is_trained: bool, key: Hashable) -> str:
        return text if is_trained else self.around(text, ("untrained", key))

    def call(self, call: Any, key: Hashable) -> Any:
        """The tool call with a mark after its name, and the same mark in its arguments."""
        mark = _mark(self._new(key))
        function = call.get("function", call)
        marked = {**function, "name": f"{function.get('name', '')}{mark}"}
        if "arguments" in function:
            given = function["arguments"]
            marked["arguments"] = _with_mark(given, mark)
            if isinstance(given, dict) and given and marked["arguments"] is given:
                first, *others = given.items()  # its only texts are keys
                marked["arguments"] = {f"{first[0]}{mark}": first[1], **dict(others)}
        return marked if function is call else {**call, "function": marked}

    def read(self, text: str) -> str:
        """The rendered text without its marks, whose places are noted."""
        pieces, at, size = [], 0, 0
        for one in _MARK.finditer(text):
            pieces.append(text[at : one.start()])
            size += one.start() - at
            at = one.end()
            self._places.setdefault(int(one[1]), []).append(size)
        self._text = "".join([*pieces, text[at:]])
        return self._text

    def spans(self, key: Hashable) -> list[Span]:
        """The spans of the texts of a key, empty if only the end of a text was written."""
        spans = []
        for number in self._numbers.get(key, ()):
            if number + 1 not in self._places:
                continue
            before, behind = self._spaces[number // 2]
            end = self._places[number + 1][0]
            begin = self._places.get(number, [end])[0]
            if self._text.endswith(before, 0, begin):
                begin -= len(before)  # the template has kept the white space
            spans.append((begin, end + len(behind) * self._text.startswith(behind, end)))
        return spans

    def places(self, key: Hashable) -> list[int]:
        """The places of a call; none if it is not written."""
        numbers = self._numbers.get(key, ())
        return [place for number in numbers for place in self._places.get(number, ())]

    def _new(self, key: Hashable, before: str = "", behind: str = "") -> int:
        number = 2 * len(self._spaces)
        self._spaces.append((before, behind))
        self._numbers.setdefault(key, []).append(number)
        return number


def _mark(number: int) -> str:
    return f"\U000f0000{number}\U000f0001"


def _with_mark(value: Any, mark: str) -> Any:
    """The value with a mark after the first text in it; the value itself if it has no text."""
    if isinstance(value, str):
        return value + mark
    places: Any = ()
    if isinstance(value, dict | list):
        places = value if isinstance(value, dict) else range(len(value))
    for place in places:
        marked = _with_mark(value[place], mark)
        if marked is not value[place]:
            copied = value.copy()
            copied[place] = marked
            return copied
    return value


Span = tuple[int, int]

# The marks around the thinking of models, by families.
_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
HARMONY = "<|start|>assistant"  # begins another message after the thinking
_PAIRS = [(re.escape(begin), re.escape(end)) for begin, end in _MARKS]
_THINKING = re.compile(
    r"\s*(?:" + "|".join(f"{begin}(.*?){end}" for begin, end in _PAIRS) + r")"
    rf"(?:(?<=<\|end\|>){re.escape(HARMONY)})?\s*",
    re.DOTALL,
)
_PROMPTED = re.compile(
    r"(?:" + "|".join(rf"{begin}\s*(?:{end}\s*)?" for begin, end in _PAIRS) + r")\Z"
)
_TAG = re.compile(r"<[^<>\s]{1,60}>")  # the form of most special tokens
_LONGEST_TAIL = 200  # characters after an answer that may be its end-of-turn token


class Ends:
    """The tokens that end turns, as text; the longer ones first.

    ``header`` is the beginning of an assistant's turn, if turns have no end tokens: then a turn
    ends where the next one begins, with its mark.
    """

    def __init__(self, tokens: Iterable[str], *, header: str | None = None) -> None:
        self.tokens = tuple(sorted({token for token in tokens if token}, key=len, reverse=True))
        self._header = header

    def trim(self, text: str, begin: int, end: int) -> Span:
        """The end of a turn in text[begin:end] without its end token, and with it.

        White space after the token is not part of the turn. A token directly after text[begin:end]
        counts too. Without a token both ends are equal.
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
        """Whether a token in or directly after text[begin:end] ends the turn."""
        last, with_token = self.trim(text, begin, end)
        return last < with_token

    def behind(self, text: str, begin: int) -> int:
        """The end of the token at a place, or the place itself if there is none."""
        return next(
            (begin + len(token) for token in self.tokens if text.startswith(token, begin)), begin
        )


class Answer(NamedTuple):
    """The text of an assistant's message after its generation prompt: [begin, end).

    ``closing`` is the mark that ends the thinking, if the prompt began one.
    """

    begin: int
    end: int
    closing: str = ""


class Rules(NamedTuple):
    """Which parts of an assistant's turn are trained."""

    eot: bool
    thinking: bool
    empty_thinking: bool


def last_mark(text: str) -> str:
    """The mark at the end of a text; "" if there is none."""
    marks = _TAG.findall(text)
    return marks[-1] if marks and text.endswith(marks[-1]) else ""


def prompts(prompt: str) -> list[tuple[str, str]]:
    """The prefixes of a prompt after which an answer may begin, each with its closing mark.

    Templates of models that always think begin the thinking in the prompt, and some drop it from
    answers. So an answer may begin after the whole prompt, or before the thinking in it.
    """
    match = _PROMPTED.search(prompt)
    if match is None:
        return [(prompt, "")]
    tail = match[0].rstrip()
    closing = next((end for begin, end in _MARKS if tail == begin), "")
    return [(prompt, closing), (prompt[: match.start()], "")]


def mark_at(text: str, begin: int) -> str:
    """The mark at a place in a text; "" if there is none."""
    match = _TAG.match(text, begin)
    return match[0] if match else ""


def thinking(
    text: str, begin: int = 0, end: int = sys.maxsize, closing: str = ""
) -> tuple[str, int]:
    """The thinking at the beginning of a text, and where it ends; ("", 0) if there is none.

    ``closing`` is the mark that ends a thinking begun before the text.
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
    """The trained part of an assistant's text.

    ``closing`` is the mark that ends a thinking begun in the prompt.
    """
    thinks, behind = thinking(text, *span, closing)
    wanted = rules.thinking if thinks.strip() else rules.empty_thinking
    return (span[0] if wanted else behind), span[1]


def without(spans: list[Span], holes: Iterable[Span]) -> list[Span]:
    """The spans without the characters of ``holes``."""
    for first, last in holes:
        spans = [
            one
            for begin, end in spans
            for one in ((begin, min(end, first)), (max(begin, last), end))
            if one[0] < one[1]
        ]
    return spans


def joined(spans: list[Span]) -> tuple[Span, ...]:
    """The spans in order; those that touch are joined, and empty ones left out."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif begin < end:
            merged.append((begin, end))
    return tuple(merged)
