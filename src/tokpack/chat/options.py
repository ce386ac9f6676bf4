"""What a request says of conversations: how records are read, rendered and trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Mapping

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
