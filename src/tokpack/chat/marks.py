"""Marks in messages, which show where in a rendered text their contents, thoughts and calls are.

A mark is a number between two private characters, which no text has. Messages with marks are
rendered once more. Where that text without its marks is the one that was rendered before, the marks
say exactly where something is, whatever a template trims, moves or leaves out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tokpack.chat.spans import Span

_MARK = re.compile("\U000f0000(\\d+)\U000f0001")

Part = tuple[str, bool]  # a text in a content, and whether it is trained


class Marks:
    """Marks for some messages, put in under keys, by which their places are asked for."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, list[int]] = {}
        self._spaces: list[tuple[str, str]] = []  # what is before and behind a text with marks
        self._places: dict[int, list[int]] = {}
        self._text = ""

    def around(self, text: str, key: Hashable) -> str:
        """A text with two marks, inside of its outer white space, which templates trim."""
        core = text.strip()
        if not core:
            return text
        at = text.index(core)
        before, behind = text[:at], text[at + len(core) :]
        first = self._new(key, before, behind)
        return f"{before}{_mark(first)}{core}{_mark(first + 1)}{behind}"

    def content(self, content: Any, key: Hashable, parts: Sequence[Part] = ()) -> Any:
        """A content with marks around it; ``parts``, if it has some, say which are not trained."""
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
        """A call of a tool with a mark behind its name, and the same in its arguments."""
        mark = _mark(self._new(key))
        function = call.get("function", call)
        marked = {**function, "name": f"{function.get('name', '')}{mark}"}
        if "arguments" in function:
            given = function["arguments"]
            marked["arguments"] = _with_mark(given, mark)
            if isinstance(given, dict) and given and marked["arguments"] is given:
                first, *others = given.items()  # no text in it, but keys
                marked["arguments"] = {f"{first[0]}{mark}": first[1], **dict(others)}
        return marked if function is call else {**call, "function": marked}

    def read(self, text: str) -> str:
        """A rendered text without its marks, whose places are known from then on."""
        pieces, at, size = [], 0, 0
        for one in _MARK.finditer(text):
            pieces.append(text[at : one.start()])
            size += one.start() - at
            at = one.end()
            self._places.setdefault(int(one[1]), []).append(size)
        self._text = "".join([*pieces, text[at:]])
        return self._text

    def spans(self, key: Hashable) -> list[Span]:
        """Where the texts of a key are; of one whose beginning is not written its end alone."""
        spans = []
        for number in self._numbers.get(key, ()):
            if number + 1 not in self._places:
                continue
            before, behind = self._spaces[number // 2]
            end = self._places[number + 1][0]
            begin = self._places.get(number, [end])[0]
            if self._text.endswith(before, 0, begin):
                begin -= len(before)  # the template has not trimmed it
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
    """A value with a mark behind the first text in it; itself where it has none."""
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
