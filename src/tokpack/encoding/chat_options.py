"""The options of encode for conversations: how they become text, and which of it is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from tokpack.chat import ChatOptions
from tokpack.chat.options import NO_VARIABLES, Rewriting, ToolArguments, Truncate
from tokpack.encoding.option import in_group
from tokpack.errors import UsageError, option

(_chat,) = map(in_group, ("chat",))
_REWRITING, _TRUNCATE, _ARGUMENTS = map(get_args, (Rewriting, Truncate, ToolArguments))
# Options that say something of plain documents alone, and what they are without being asked for.
_OF_TEXT = {"split_sentences": False, "ftfy": False, "map": None, "empty": "skip"}


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """What is asked for of conversations; the part of EncodeOptions that is about them."""

    chat: bool = _chat(
        False,
        "records are conversations: rendered by a chat template, with PREFIX.mask beside the .bin, "
        "a byte for each token: 1 where it is trained",
    )
    chat_template: str | None = _chat(
        None,
        "a file with the template, or the name of one of the tokenizer's",
        "FILE|NAME",
        otherwise="the tokenizer's own",
    )
    template_var: Mapping[str, Any] | None = _chat(
        None, "give the template a variable: enable_thinking=false", "NAME=VALUE"
    )
    messages_key: str | None = _chat(
        None,
        "the key of a record's messages",
        "KEY",
        otherwise="found by content: messages, conversations, prompt and completion, ...",
    )
    prompt_key: str | None = _chat(
        None,
        "the key of what comes before both answers of a pair, or a completion; '' if nothing does",
        "KEY",
        otherwise="found by content: prompt, messages, question, instruction and input, ...",
    )
    role_map: Mapping[str, str] | None = _chat(
        None, "take one role for another: human=user", "ROLE=ROLE"
    )
    tool_arguments: ToolArguments = _chat(  # noqa: RUF009
        "auto",
        "arguments of calls go to the template as a mapping, as JSON text, or as the record has "
        "them (as-is); auto: as the template takes them",
        choices=_ARGUMENTS,
    )
    loss: str = _chat(
        "assistant",
        "what is trained: assistant, all, last (the assistant's last turn), or ROLE,ROLE",
        "WHAT",
    )
    loss_on_eot: bool = _chat(True, "train the token that ends a turn", otherwise="yes")
    loss_on_tool_calls: bool = _chat(True, "train calls of tools", otherwise="yes")
    loss_on_thinking: bool = _chat(True, "train thinking", otherwise="yes")
    loss_on_empty_thinking: bool = _chat(False, "train an empty <think></think>, too")
    append_eot: bool = _chat(
        False,
        "write and train the token that ends the last turn, where the template writes it with the "
        "next message, as GLM's <|user|>",
    )
    rewriting: Rewriting = _chat(  # noqa: RUF009
        "refuse",
        "where a template rewrites earlier turns: refuse it, make a document for each turn of the "
        "assistant (split), or one of the final text (as-is)",
        choices=_REWRITING,
    )
    max_length: int | None = _chat(None, "the most tokens of a conversation", "N", least=1)
    truncate: Truncate = _chat(  # noqa: RUF009
        "drop",
        "leave a longer one out (drop), or cut its first (left) or last (right) tokens off",
        choices=_TRUNCATE,
    )
    pairs: Sequence[str] | None = _chat(
        None,
        "keys of a preferred and a rejected answer: two documents of a record, one after the other",
        "KEY",
    )
    weight_key: str | None = _chat(
        None, "the key of a record's weight, for PREFIX.weights: float16 for each token", "KEY"
    )

    @property
    def conversations(self) -> ChatOptions:
        """The request as the room of conversations takes it."""
        names = {one.name for one in fields(ChatOptions)}
        same = {name: getattr(self, name) for name in names if hasattr(self, name)}
        same |= {"role_map": self.role_map or {}, "variables": self.template_var or {}}
        return ChatOptions(template=self.chat_template, **same)

    @property
    def token_tracks(self) -> tuple[str, ...]:
        """The tracks that each dataset has beside its tokens, in the order of TRACK_DTYPES."""
        if not self.chat:
            return ()
        return ("mask", *(("weights",) if self.weight_key is not None else ()), "roles")

    def check_chat(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.chat:
            self._check_together()
            self._check_values()
            return
        for one in fields(ChatRequest):
            if getattr(self, one.name) != one.default and one.name != "chat":
                raise UsageError(f"{option(one.name)} needs {option('chat', True)}")

    def _check_together(self) -> None:
        everything = vars(self)
        for name, default in _OF_TEXT.items():
            if everything[name] != default:
                raise UsageError(f"{option(name)} is for documents, not for {option('chat', True)}")
        if tuple(everything["keys"]) != ("text",):
            raise UsageError(
                f"{option('keys')} names texts; of conversations name the key of the messages with "
                f"{option('messages_key')}"
            )
        if everything["special_tokens"] not in ("auto", "encode"):
            raise UsageError(
                f"{option('special_tokens')} is {everything['special_tokens']!r}: special tokens "
                "in rendered conversations are encoded as their ids"
            )
        object.__setattr__(self, "special_tokens", "encode")

    def _check_values(self) -> None:
        if self.truncate != "drop" and self.max_length is None:
            raise UsageError(
                f"{option('truncate', self.truncate)} says how to shorten conversations of more "
                f"than {option('max_length')} tokens: add that"
            )
        pairs = self.pairs
        if pairs is not None:
            if isinstance(pairs, str) or len(pairs) != 2 or len({*pairs}) != len(pairs):
                raise UsageError(f"{option('pairs')} is {pairs!r}; it takes two different keys")
            object.__setattr__(self, "pairs", tuple(pairs))
        for name in ("template_var", "role_map"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, Mapping)):
                raise UsageError(f"{option(name)} is {value!r}; it takes a mapping of names")
        if named := sorted(NO_VARIABLES.intersection(self.template_var or ())):
            raise UsageError(
                f"{option('template_var', named[0])}: a template is given its {named[0]} by each "
                "conversation"
            )
        try:
            json.dumps(dict(self.template_var or {}))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{option('template_var')}: {error}") from None
