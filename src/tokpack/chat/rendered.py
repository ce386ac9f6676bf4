"""A conversation as text, with the spans of its turns and of what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import worded

if TYPE_CHECKING:
    from collections.abc import Sequence


class Turn(NamedTuple):
    """A message in the rendered text: characters [begin, end), and who speaks."""

    begin: int
    end: int
    role: str


class Rendered(NamedTuple):
    """What a template makes of a conversation.

    ``trained`` are spans of characters [begin, end) in ``text``, ascending, apart and not empty.
    ``turns`` are as in Turn. ``weight`` is that of its trained tokens. ``begins`` are the
    characters at which trained answers begin. The template has not written the thinking of
    ``thoughts_unwritten`` of these, ``messages_unwritten``, and the texts of ``contents_unwritten``
    messages beside their calls. ``stops_untrained`` answers end without a trained token that ends
    a turn.
    """

    text: str
    trained: tuple[tuple[int, int], ...]
    turns: list[tuple[int, int, str]]
    weight: float = 1.0
    begins: Sequence[int] = ()
    thoughts_unwritten: int = 0
    messages_unwritten: int = 0
    contents_unwritten: int = 0
    stops_untrained: int = 0


UNSAFE = "the template is unsafe"  # a reason that says something of the template
NO_CONVERSATION = "no conversation"  # and of the record
UNKNOWN_ROLE = "unknown role"
MEDIA = "has images, audio or video"
TOO_LONG = "too many messages"
REWRITTEN = "a turn is rewritten"
OUTSIDE = "trained outside of an answer"
SURROGATE = "a lone surrogate"


class ConversationError(ValueError):
    """Why a record is no conversation that can be used; it is counted by ``reason``.

    ``reason`` is one of a few phrases; the message says what is wrong with this record.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason

    @property
    def text(self) -> str:
        """The message, with its options as `worded` takes them."""
        return str(self.args[0])

    def __str__(self) -> str:
        return worded(self.text)


def not_found(i: int) -> ConversationError:
    """The error of a message whose place in the text is unknown."""
    return ConversationError(
        "a turn is not found", f"the template does not show where message {i} begins and ends"
    )


def utf8(text: str) -> bytes:
    """A rendered text in UTF-8. ConversationError for one that no UTF-8 can have."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConversationError(
            SURROGATE, f"at character {error.start} of the rendered text"
        ) from None
