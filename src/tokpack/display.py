"""Text of documents and names of files, made safe to show; and what a word was meant to be."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str | bytes, *, limit: int = 0) -> str:
    """Text on one line, with nothing in it that a terminal or a page would obey.

    Whatever is not printable (controls, escapes, direction marks, lone surrogates) is written as
    Python writes it. With a ``limit`` the rest of a longer text becomes an ellipsis.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if limit and len(text) > limit:
        text = text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely meant to be, or None."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    return matches[0] if matches else None


def _escape(char: str) -> str:
    return _NAMED.get(char) or repr(char)[1:-1]
