"""A conversation as text, with the spans of its turns and of trained text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from tokpack.errors import UsageError, option, worded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Turn(NamedTuple):
    """A message in the rendered text: characters [begin, end), and the role that speaks."""

    begin: int
    end: int
    role: str


class Rendered(NamedTuple):
    """The text of a conversation, as a template renders it.

    ``trained`` are spans of characters [begin, end) in ``text``, ascending, disjoint and not empty.
    ``weight`` is that of trained tokens. ``begins`` are the characters at which trained answers
    begin. The other fields count what the template left out: the thinking of ``thoughts_unwritten``
    answers, ``messages_unwritten``, and the texts beside calls of ``contents_unwritten`` messages;
    and ``stops_untrained`` answers, which end without a trained end-of-turn token.
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


UNSAFE = "the template is unsafe"  # a reason that is about the template
NO_CONVERSATION = "no conversation"  # a reason that is about the record
UNKNOWN_ROLE = "unknown role"
MEDIA = "has images, audio or video"
TOO_LONG = "too many messages"
REWRITTEN = "a turn is rewritten"
OUTSIDE = "trained outside of an answer"
SURROGATE = "a lone surrogate"


class ConversationError(ValueError):
    """Why a record is not a usable conversation.

    ``reason`` is one of a few phrases by which these are counted; the message is about this record.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason

    @property
    def text(self) -> str:
        """The message, with options in the form for `worded`."""
        return str(self.args[0])

    def __str__(self) -> str:
        return worded(self.text)


def not_found(i: int) -> ConversationError:
    """The error for a message with an unknown place in the text."""
    return ConversationError(
        "a turn is not found", f"the template does not show where message {i} begins and ends"
    )


def utf8(text: str) -> bytes:
    """A rendered text in UTF-8. ConversationError if it has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConversationError(
            SURROGATE, f"at character {error.start} of the rendered text"
        ) from None


Rewriting = Literal["refuse", "split", "as-is"]
Truncate = Literal["drop", "left", "right"]
ToolArguments = Literal["auto", "mapping", "text", "as-is"]
NO_VARIABLES = frozenset(["messages", "add_generation_prompt"])  # every template is given these
LISTS = ("messages", "conversations", "conversation")  # the usual keys of a conversation
# The keys of the preferred and the rejected answer in TRL, axolotl, OpenAI and ms-swift.
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
    """How conversations become tokens and a mask; every option here affects bytes.

    ``template`` is the text of a chat template, or the name of one of the tokenizer's; None: its
    own. ``variables`` are given to it besides the messages. ``loss`` is ``assistant``, ``all``,
    ``last`` (the last turn of an assistant), or roles separated by commas. ``max_length`` is in
    tokens; ``truncate`` says what happens to longer conversations. ``pairs`` are the keys of the
    preferred and the rejected answer, ``prompt_key`` is the key of their prompt, "" for none.
    ``tool_arguments`` is the form of calls' arguments for the template. With ``append_eot`` an
    answer at the end of a text gets its end-of-turn token, if the template writes that only with
    the next message.
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
        """Raise UsageError for a value that is no choice."""
        for name, kind in _CHOICES.items():
            choices = get_args(kind)
            if (value := getattr(self, name)) not in choices:
                raise UsageError(f"{option(name)} is {value!r}; it takes {', '.join(choices)}")
