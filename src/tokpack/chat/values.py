"""Values in records, as JSON alone has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tokpack.chat.rendered import ConversationError
from tokpack.display import brief

MALFORMED = "malformed message"  # a reason, see ConversationError


def parsed(text: str, what: str) -> Any:
    """What JSON in a text says. ConversationError, of ``what``, where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConversationError(MALFORMED, f"{what} are no JSON: {brief(text)}") from None


class NoJson(str):
    """What stands for a value that JSON does not have: the name of its type."""


def plain(value: Any, depth: int = 0) -> Any:
    """A value of JSON's types alone: nothing else may be given to a template.

    Any other one, such as a date, is a NoJson where it is the value itself or under one of its
    keys, as beside the content of a message, which no template reads. ConversationError for one
    deeper inside: of arguments of calls, of tools.
    """
    if value is None or value.__class__ in (str, int, float, bool):
        return value
    if depth > 100:
        raise ConversationError(MALFORMED, "its values are nested more than 100 deep")
    if isinstance(value, str):
        return value if isinstance(value, NoJson) else str.__str__(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ConversationError(
                MALFORMED, f"it has the key {brief(wrong[0])}, which is no text"
            )
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if hasattr(value, "tolist"):  # an array, or a number of numpy's
        return plain(value.tolist(), depth + 1)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [plain(one, depth + 1) for one in value]
    if depth > 1:
        kind = type(value).__name__
        raise ConversationError(MALFORMED, f"it has a value of the type {kind}, which is no JSON")
    return NoJson(f"<{type(value).__name__}>")
