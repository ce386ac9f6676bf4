"""Text of documents and names of files, made safe to show."""

from __future__ import annotations

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


def _escape(char: str) -> str:
    return _NAMED.get(char) or repr(char)[1:-1]
