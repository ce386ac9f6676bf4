"""A conversation as text, with the spans of its turns and of what is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from tokpack.errors import UsageError, option, worded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


# What a request says of conversations: how records are read, rendered and trained on.

Rewriting = Literal["refuse", "split", "as-is"]
Truncate = Literal["drop", "left", "right"]
ToolArguments = Literal["auto", "mapping", "text", "as-is"]
NO_VARIABLES = frozenset(["messages", "add_generation_prompt"])  # what a template is given anyway
# The preferred and the rejected answer, as TRL, axolotl, OpenAI and ms-swift call them.
PAIRS = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred_output", "non_preferred_output"),
    ("response", "rejected_response"),
    ("messages", "rejected_response"),
    ("messages", "rejected_messages"),
)
_CHOICES = {"rewriting": Rewriting, "truncate": Truncate, "tool_arguments": ToolArguments}


@dataclass(frozen=True)
class ChatOptions:
    """How conversations become tokens and a mask; all of it decides bytes.

    ``template`` is the text of a chat template, or the name of one of the tokenizer's; None: its
    own. ``variables`` are given to it beside the messages. ``loss`` is ``assistant``, ``all``,
    ``last`` (the last turn of an assistant), or roles with commas between. ``max_length`` is in
    tokens; ``truncate`` says what becomes of a longer conversation. ``pairs`` are the keys of the
    preferred and of the rejected answer, ``prompt_key`` that of what comes before both, "" where
    nothing does. ``tool_arguments`` says how the template is given those of calls. ``append_eot``:
    an answer at the end of a text gets the token that ends its turn where the template writes it
    with the next message.
    """

    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    messages_key: str | None = None
    prompt_key: str | None = None
    role_map: Mapping[str, str] = field(default_factory=dict)
    tool_arguments: ToolArguments = "auto"
    loss: str = "assistant"
    loss_on_eot: bool = True
    loss_on_tool_calls: bool = True
    loss_on_thinking: bool = True
    loss_on_empty_thinking: bool = False
    append_eot: bool = False
    rewriting: Rewriting = "refuse"
    max_length: int | None = None
    truncate: Truncate = "drop"
    pairs: tuple[str, str] | None = None
    weight_key: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a choice that there is not."""
        for name, kind in _CHOICES.items():
            choices = get_args(kind)
            if (value := getattr(self, name)) not in choices:
                raise UsageError(f"{option(name)} is {value!r}; it takes {', '.join(choices)}")
