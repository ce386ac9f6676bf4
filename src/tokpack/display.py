"""Text that is not ours (documents, names, messages of libraries), made safe to show.

Whatever goes to people on a terminal passes ``shown``, in ``tell`` or on the way to it; colours of
our own are added behind it.
"""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MOST_CHARACTERS = 4000  # of one message


def shown(text: str | bytes, *, limit: int = 0, keep: str = "") -> str:
    """Text on one line, with nothing in it that a terminal or a page would obey.

    Whatever is not printable (controls, escapes, direction marks, lone surrogates) and not in
    ``keep`` is written as Python writes it. With a ``limit`` the rest of a longer text becomes an
    ellipsis.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if limit and len(text) > limit:
        text = text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely meant to be, or None."""
    import difflib

    matches = difflib.get_close_matches(word, list(known), n=1)
    return matches[0] if matches else None


def in_flags(text: str, flags: Mapping[str, str], argv: Sequence[str]) -> str:
    """A message about settings by their names in Python, for somebody who typed ``argv``.

    ``flags`` has the flag of each name. With a file among the words, whose keys are the names,
    only what was typed itself becomes a flag. What stands in parentheses, ``(name=value)``, is said
    to users of Python, and stays.
    """
    if any(word.endswith((".yaml", ".yml", ".json")) and os.path.isfile(word) for word in argv):
        typed = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv}
        flags = {name: flag for name, flag in flags.items() if name in typed}
    if not flags:
        return text
    names = "|".join(sorted(flags, key=len, reverse=True))
    # A name of one word is a name at the start, before "is", or before "="; else it is a word.
    name = rf"(?<![\w./=\'\"-])({names})(?:=(?:'([^']*)'|([\w.]+))|(?![\w./=\'\"-]))"
    subject = re.compile(r"(^|: | and )$").search

    def flag(match: re.Match[str]) -> str:
        name, *values = match.groups()
        if name is None:
            return match[0]
        value = next((f" {one}" for one in values if one is not None), "")
        is_word = "_" not in name and not value
        if is_word and not (subject(text[: match.start()]) and text[match.end() :][:4] == " is "):
            return match[0]
        return flags[name] + (value if value != " True" else "")

    return re.sub(rf"\([^()]*\w=[^()]*\)|{name}", flag, text)


def _escape(char: str) -> str:
    return _NAMED.get(char) or repr(char)[1:-1]


def message(text: str) -> str:
    """A message as a line of bounded length."""
    return shown(text, limit=_MOST_CHARACTERS)


def tell(text: str, *, before: str = "") -> None:
    """Write a line to stderr; ``before`` goes out as it is. A closed stderr is not an error."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        print(before + shown(text), file=sys.stderr, flush=True)


def data_text(text: str) -> str:
    """Text that is asked for on stdout: as it is for a program, shown to a person.

    Lines stay lines.
    """
    return shown(text, keep="\n\t") if sys.stdout.isatty() else text


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlong, _BRIEF.maxstring, _BRIEF.maxother = 4, 50, 300, 300
_BRIEF.maxdict = _BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxset = 12


def brief(value: object) -> str:
    """A value of somebody's file as Python writes it, cut where it is long or deep."""
    text = _BRIEF.repr(value)
    return text if len(text) <= 600 else text[:599] + "\N{HORIZONTAL ELLIPSIS}"
