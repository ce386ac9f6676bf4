"""Messages of other programs -> messages as templates take them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.chat.rendered import MEDIA, NO_CONVERSATION, UNKNOWN_ROLE, ConversationError
from tokpack.chat.spans import thinking
from tokpack.chat.values import MALFORMED, NoJson, parsed, plain
from tokpack.display import brief
from tokpack.errors import option

if TYPE_CHECKING:
    from tokpack.chat.marks import Part

Message = dict[str, Any]

# Flags of a message, or of a part of its content: 0 where it is not trained. Of OpenAI, axolotl,
# ms-swift, verl, and what axolotl's message_field_training is usually set to.
FLAGS = (
    "weight",
    "train",
    "loss",
    "loss_mask",
    "trainable",
    "training",
    "loss_scale",
    "loss_weight",
)
_FLAG_LIKE = re.compile("(?i)(^|_)(train|loss|mask|supervis)")  # in a key that may be another one
TOOLS = ("tools", "functions", "tool_defs")  # keys of a record, which a first message may have
CALLS = ("tool_calls", "function_call")
REASONING = ("reasoning_content", "thinking", "reasoning")  # as transformers knows it
_CALL = "tool_call"  # a role: the content is a call, as JSON
_OF_CALLS = frozenset(["name", "id", "type", "index"])
_SPEECH = ("content", *CALLS, *REASONING)
_KEYS = frozenset(["content", "value", "tool_calls"])  # of a message, beside who says it
_MEDIA = ("image", "audio", "video", "file")
_ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys((_CALL, "function_call"), _CALL),
}
_HH = re.compile(r"\n\n(Human|Assistant):")  # of Anthropic's hh-rlhf: a conversation as one text


class Note(NamedTuple):
    """What a message says of its training in parts.

    ``parts`` are those of its content and of its reasoning, by its keys. Where ``thinks`` is false
    its thinking is not trained.
    """

    message: Message
    parts: Mapping[str, list[Part]]
    thinks: bool


class MessageReader:
    """Reads messages. ``notes`` has what is known of some of them beside what templates are given.

    Of the roles of ``parts`` the template takes contents of parts, of those that are true there
    no others; a content may be ``none``.
    """

    def __init__(self, roles: Mapping[str, str], *, parts: Mapping[str, bool], none: bool) -> None:
        self._roles = {**_ROLES, **{name: _ROLES.get(role, role) for name, role in roles.items()}}
        others = {_CALL, *(role for role, is_only in parts.items() if is_only)}
        self._plain_roles = {k: v for k, v in self._roles.items() if v not in others}
        self._parts, self._none = parts, none
        self._has_calls = False
        self.notes: list[Note] = []

    def read(self, raw: Any) -> list[Message]:
        """The messages of a list, or of its JSON. Raises ConversationError."""
        if isinstance(raw, str):
            raw = parsed(raw, "the messages")
        if not isinstance(raw, Iterable) or isinstance(raw, Mapping):
            raise ConversationError(NO_CONVERSATION, f"{brief(raw)} is no list of messages")
        messages = [self._message(one, i) for i, one in enumerate(raw)]
        if self._has_calls:
            self._has_calls = False
            messages = _with_calls_in_turns(messages)
        return messages

    def turns(self, value: Any, role: str) -> list[Message]:
        """What a text of a role, or messages, say; nothing is no turn."""
        raw = as_messages(value, role)
        return self.read(raw) if raw else []

    def _message(self, raw: Any, i: int) -> Message:
        if raw.__class__ is dict and len(raw) == 2:  # nearly all messages
            role, content = raw.get("role"), raw.get("content")
            if role.__class__ is str and content.__class__ is str and role in self._plain_roles:
                return {"role": self._plain_roles[role], "content": content}
        if not isinstance(raw, Mapping):
            raise ConversationError(MALFORMED, f"message {i} is {brief(raw)}")
        message = {k: v for k, v in plain(raw).items() if v is not None}
        if "role" not in message and "from" in message:  # of ShareGPT
            message["role"] = message.pop("from")
            if "value" in message:
                message["content"] = message.pop("value")
        role = message.get("role")
        if role is None:
            keys = ", ".join(message) or "none"
            raise ConversationError(MALFORMED, f"message {i} has no role: its keys are {keys}")
        our_role = self._roles.get(role) if isinstance(role, str) else None
        if our_role is None:
            raise ConversationError(
                UNKNOWN_ROLE,
                f"message {i} is by {brief(role)}: say which role that is, "
                f"{option('role_map', f'{role}=user')}",
            )
        message["role"] = our_role
        if our_role == _CALL:
            self._has_calls = True
            _read_call(message, i)
        _read_calls(message, i)
        content = message.get("content")
        if content.__class__ is str and self._parts.get(message["role"]):
            content = [content]
        if content.__class__ is not str:
            self._content(message, content, i)
        if len(message) > 2 or content is None:
            self._rest(message, i)
        return message

    def _content(self, message: Message, content: Any, i: int) -> None:
        """A content of parts, or none."""
        if content is None:
            if not any(message.get(key) for key in _SPEECH):
                raise ConversationError(MALFORMED, f"message {i} has no content")
            if self._none:
                message["content"] = None
        elif isinstance(content, list):
            parts = [_part(part, i) for part in content]
            message["content"] = (
                [{"type": "text", "text": text} for text, _ in parts]
                if message["role"] in self._parts
                else "".join(text for text, _ in parts)
            )
            self._note(message, "content", parts)
        else:
            raise ConversationError(MALFORMED, f"message {i} has the content {brief(content)}")

    def _rest(self, message: Message, i: int) -> None:
        """What a message has beside role and content."""
        for key, value in message.items():
            if key.startswith(_MEDIA) and value:
                raise ConversationError(MEDIA, f"message {i} has {key}")
        misplaced = [key for key in TOOLS if message.get(key)]
        if misplaced and (i or message["role"] not in ("system", "developer")):
            raise ConversationError(
                MALFORMED,
                f"message {i} has {misplaced[0]}: put them beside the messages, under tools",
            )
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if isinstance(reasoning, NoJson):
            raise ConversationError(MALFORMED, f"message {i} thinks {brief(reasoning)}")
        if isinstance(reasoning, list):
            parts = [_part(part, i) for part in reasoning]
            reasoning = "".join(text for text, _ in parts)
            self._note(message, "reasoning_content", parts)
        if reasoning is not None:
            message.setdefault("thinking", reasoning)
            message["reasoning_content"] = reasoning
        if message.get("tool_responses") and message["role"] == "assistant":
            raise ConversationError(
                MALFORMED,
                f"message {i} has tool_responses, which no assistant writes: make them messages of "
                "the role tool",
            )

    def _note(self, message: Message, key: str, parts: list[Part]) -> None:
        """Note which parts are not trained; a thinking that none of them trains, as such."""
        if all(is_trained for _, is_trained in parts):
            return
        first = next((i for i, part in enumerate(parts) if part[1]), len(parts))
        head = "".join(text for text, _ in parts[:first])
        is_thinking = thinking(head)[1] == len(head) if key == "content" else first == len(parts)
        if first and is_thinking:
            parts = [*((text, True) for text, _ in parts[:first]), *parts[first:]]
        self.notes.append(Note(message, {key: parts}, not (first and is_thinking)))


def as_messages(value: Any, role: str) -> list[Any]:
    """A text as the message of a role, or those of Human and Assistant; messages as they are.

    A text may also be the JSON of messages, as in a table of texts.
    """
    if isinstance(value, str) and _HH.match(value):
        parts = _HH.split(value)[1:]
        turns = zip(parts[::2], map(str.strip, parts[1::2]), strict=True)
        messages = [{"role": _ROLES[who.lower()], "content": text} for who, text in turns]
        is_prompt = messages[-1] == {"role": "assistant", "content": ""}  # for an answer
        return messages[:-1] if is_prompt else messages
    if isinstance(value, str):
        return _in_json(value) or [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return as_messages(value["messages"], role) if "messages" in value else [value]
    if isinstance(value, Iterable):
        return list(value)
    raise ConversationError(MALFORMED, f"{brief(value)} is neither text nor messages")


def _in_json(text: str) -> list[Any]:
    """The messages that a text is the JSON of; nothing where it is another text."""
    if not text.startswith(('[{"', '{"')) or not text.endswith(("}]", "}")):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    many = found if isinstance(found, list) else [found]
    are_messages = all(isinstance(one, dict) and not _KEYS.isdisjoint(one) for one in many)
    return many if are_messages and all("role" in one or "from" in one for one in many) else []


def ends_with_answer(raw: Any, roles: Mapping[str, str]) -> bool:
    """Whether messages, as a record has them, end with an assistant's."""
    raw = parsed(raw, "the messages") if isinstance(raw, str) else raw
    last = list(raw)[-1:] if isinstance(raw, Iterable) else []
    who = [str(one.get("role", one.get("from"))) for one in last if isinstance(one, Mapping)]
    return any(roles.get(one, _ROLES.get(one)) in ("assistant", _CALL) for one in who)


def is_untrained(one: Mapping[str, Any], what: str) -> bool:
    """Whether a message, or a part of one, says that it is not trained. ConversationError."""
    says = []
    for key, value in one.items():
        if key in FLAGS:
            if value not in (0, 1):
                raise ConversationError(
                    MALFORMED,
                    f"{what} has the {key} {brief(value)}: 0 and 1 say whether it is trained, and "
                    f"{option('weight_key', 'KEY')} names a conversation's weight",
                )
            says.append(value)
        elif _FLAG_LIKE.search(key) and not isinstance(value, str) and value not in ([], {}):
            raise ConversationError(
                MALFORMED,
                f"{what} has {key}, which may say that it is not trained: say that with train, "
                "which is 0 or 1, of a message or of a part of its content, or leave it out",
            )
    return 0 in says


def _part(part: Any, i: int) -> Part:
    """One part of a content: its text, and whether that is trained."""
    if isinstance(part, str):
        return part, True
    if not isinstance(part, Mapping):
        raise ConversationError(MALFORMED, f"message {i} has the part {brief(part)}")
    kind = str(part.get("type") or "text")
    if kind.startswith(("image", "audio", "input_audio", "video", "file")):
        raise ConversationError(MEDIA, f"message {i} has {kind}")
    if not isinstance(part.get("text"), str):
        raise ConversationError(MALFORMED, f"message {i} has a part of the type {brief(kind)}")
    said = {key: value for key, value in part.items() if value is not None}
    return part["text"], not is_untrained(said, f"a part of message {i}")


def _read_call(message: Message, i: int) -> None:
    """Make a message whose content is a call one with tool calls; what it thinks before stays."""
    message["role"] = _CALL
    said = message.pop("content", None)
    if isinstance(said, str):
        end = thinking(said)[1]
        if end:
            message["content"] = said[:end]
        said = parsed(said[end:], f"the call of message {i}")
    calls = said if isinstance(said, list) else [said] * (said is not None)
    if wrong := [one for one in calls if not _are_calls([one])]:
        raise ConversationError(MALFORMED, f"message {i} calls {brief(wrong[0])}")
    made = [one if "function" in one else {"type": "function", "function": one} for one in calls]
    message["tool_calls"] = [*(message.get("tool_calls") or ()), *made]


def _read_calls(message: Message, i: int) -> None:
    """Read what a message calls under the keys of calls; nothing is no call."""
    for key in CALLS:
        if key not in message:
            continue
        calls = read_json(message.pop(key), f"the {key} of message {i}")
        if calls:
            many = calls if isinstance(calls, list) else [calls]
            if isinstance(calls, list) != (key == "tool_calls") or not _are_calls(many):
                raise ConversationError(
                    MALFORMED, f"message {i} has {key} that are none: {brief(calls)}"
                )
            message[key] = calls


def _are_calls(calls: list[Any]) -> bool:
    """Whether all are calls of a function by its name, and what else they have are arguments."""
    functions = [one.get("function", one) if isinstance(one, dict) else None for one in calls]
    return all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and ("arguments" in one or not {*one} - _OF_CALLS)
        for one in functions
    )


def _with_calls_in_turns(messages: list[Message]) -> list[Message]:
    """Messages of which those that are calls by their role are in the turn before, if it is one."""
    turns: list[Message] = []
    for i, one in enumerate(messages):
        if one["role"] != _CALL:
            turns.append(one)
            continue
        one["role"] = "assistant"
        if not turns or turns[-1]["role"] != "assistant":
            turns.append(one)
            continue
        turn = turns[-1]
        if is_untrained(turn, f"message {i - 1}") != is_untrained(one, f"message {i}"):
            raise ConversationError(
                MALFORMED,
                f"message {i} is a call in the turn of the message before, and only one of them "
                "is trained",
            )
        if one.get("content") and turn.get("content"):
            raise ConversationError(MALFORMED, f"message {i} has a text between two calls")
        calls = [*(turn.get("tool_calls") or ()), *one["tool_calls"]]
        turn |= {**one, **{k: v for k, v in turn.items() if v}, "tool_calls": calls}
    return turns


def read_json(value: Any, what: str) -> Any:
    """A value, or what its JSON says; of a list, of each of its texts."""
    if isinstance(value, str):
        value = parsed(value, what) if value.strip() else None
    if isinstance(value, list):
        return [parsed(one, what) if isinstance(one, str) else one for one in value]
    return value
