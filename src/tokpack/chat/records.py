"""Records of other programs -> conversations: lists of messages, as templates take them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokpack.chat.rendered import ConversationError
from tokpack.chat.values import MALFORMED, parsed, plain
from tokpack.display import brief
from tokpack.errors import option

if TYPE_CHECKING:
    from tokpack.chat.options import ChatOptions

# Reasons, see ConversationError.
NO_CONVERSATION = "no conversation"
EMPTY = "empty conversation"
UNKNOWN_ROLE = "unknown role"
MEDIA = "has images, audio or video"
TOO_LONG = "too many messages"
NO_NUMBER = "no number"

MOST_MESSAGES = 100_000
NO_VARIABLES = frozenset(["messages", "add_generation_prompt"])  # what a template is given anyway
OWN = "chat_template_kwargs of this record"  # among variables, as text: no template can name it
_ROLES = {
    "function_call": "assistant",
    **{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response", "ipython"), "tool"),
}
_CALL = "function_call"  # a role of ShareGPT: the value is a call, as JSON
_REASONING = ("reasoning_content", "thinking", "reasoning")  # as transformers knows it
_SPEECH = ("content", "tool_calls", "function_call", *_REASONING)
_FORMS = {
    "pairs": ("chosen", "rejected"),
    "prompt and completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
_MEDIA = ("image", "audio", "video", "file")
_LISTS = ("messages", "conversations", "conversation")
_SEEN = frozenset(["image", "images", "video", "videos", "audio", "audios"])  # beside messages
_HALF_TRAINED = "train_detail"  # of axolotl: parts of a message
_HH = re.compile(r"\n\n(Human|Assistant):")  # of Anthropic's hh-rlhf: a conversation as one text
_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-24, 65504.0  # that float16 has


@dataclass(slots=True)
class Conversation:
    """Messages with what goes with them to a template.

    ``first_trained``: earlier messages are a prompt, of which nothing is trained; nor are those of
    ``untrained``. ``variables`` are for the template, beside those of the request.
    """

    messages: list[dict[str, Any]]
    first_trained: int = 0
    untrained: Sequence[int] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0


class RecordReader:
    """Reads records as a request says; what it does not say is found in each record.

    The template takes contents of several ``parts``; it asks for contents that are ``none``.
    """

    def __init__(self, options: ChatOptions, *, parts: bool, none: bool) -> None:
        self._roles = {**_ROLES, **options.role_map}
        self._key = options.messages_key
        self._pairs = options.pairs
        self._weight = options.weight_key
        self._parts, self._none = parts, none

    def read(self, record: Mapping[str, Any]) -> list[Conversation]:
        """The conversation of a record; of a pair the preferred and the rejected one.

        Raises ConversationError.
        """
        form = _form(record, self._key, self._pairs)
        if not _SEEN.isdisjoint(record):
            _refuse_media(record)
        if form == "pairs":
            conversations = self._pair(record, *(self._pairs or ("chosen", "rejected")))
        elif form == "prompt and completion":
            conversations = [self._completion(record["prompt"], record["completion"])]
        elif form == "alpaca":
            conversations = [Conversation(self._alpaca(record))]
        else:
            key = self._key or next(one for one in _LISTS if record.get(one) is not None)
            conversations = [Conversation(self._messages(record[key]))]
        extra = _variables(record)
        system = record.get("system")
        for one in conversations:
            if not one.messages:
                raise ConversationError(EMPTY)
            if len(one.messages) > MOST_MESSAGES:
                raise ConversationError(TOO_LONG, f"more than {MOST_MESSAGES:,}")
            if isinstance(system, str) and system and one.messages[0]["role"] != "system":
                one.messages.insert(0, {"role": "system", "content": system})
                one.first_trained += one.first_trained > 0
            one.untrained = [
                i for i, each in enumerate(one.messages) if len(each) > 2 and _is_untrained(each, i)
            ]
            one.variables = extra
            if self._weight is not None:
                one.weight = _weight(record, self._weight)
        return conversations

    def _messages(self, raw: Any) -> list[dict[str, Any]]:
        if isinstance(raw, str):
            raw = parsed(raw, "the messages")
        if not isinstance(raw, Iterable) or isinstance(raw, Mapping):
            raise ConversationError(NO_CONVERSATION, f"{brief(raw)} is no list of messages")
        messages = [self._message(one, i) for i, one in enumerate(raw)]
        if not messages:
            raise ConversationError(EMPTY)
        return messages

    def _message(self, raw: Any, i: int) -> dict[str, Any]:
        if raw.__class__ is dict and len(raw) == 2:  # nearly all messages
            role, content = raw.get("role"), raw.get("content")
            if role.__class__ is str and content.__class__ is str and role in self._roles:
                return {"role": self._roles[role], "content": content}
        if not isinstance(raw, Mapping):
            raise ConversationError(MALFORMED, f"message {i} is {brief(raw)}")
        message = {k: v for k, v in raw.items() if v is not None}
        if "role" not in message and "from" in message:
            message = _sharegpt(message, i)
        role = message.get("role")
        if role is None:
            keys = ", ".join(map(str, message)) or "none"
            raise ConversationError(MALFORMED, f"message {i} has no role: its keys are {keys}")
        our_role = self._roles.get(role) if isinstance(role, str) else None
        if our_role is None:
            raise ConversationError(
                UNKNOWN_ROLE,
                f"message {i} is by {brief(role)}: say which role that is, "
                f"{option('role_map', f'{role}=user')}",
            )
        message["role"] = our_role
        content = message.get("content")
        if content.__class__ is not str:
            self._content(message, content, i)
        if len(message) > 2 or content is None:
            self._rest(message, i)
        return message

    def _content(self, message: dict[str, Any], content: Any, i: int) -> None:
        """A content of parts, or none."""
        if content is None:
            if not any(message.get(key) for key in _SPEECH):
                raise ConversationError(MALFORMED, f"message {i} has no content")
            if self._none:
                message["content"] = None
        elif isinstance(content, str):
            message["content"] = str(content)
        elif isinstance(content, Iterable) and not isinstance(content, Mapping):
            parts = [_part(part, i) for part in content]
            message["content"] = parts if self._parts else "".join(p["text"] for p in parts)
        else:
            raise ConversationError(MALFORMED, f"message {i} has the content {brief(content)}")

    def _rest(self, message: dict[str, Any], i: int) -> None:
        """What a message has beside role and content."""
        for key, value in message.items():
            if key.startswith(_MEDIA) and value:
                raise ConversationError(MEDIA, f"message {i} has {key}")
            if value.__class__ is not str:
                message[key] = plain(value)
        reasoning = next((message[key] for key in _REASONING if key in message), None)
        if reasoning is not None:
            message.setdefault("thinking", reasoning)
            message["reasoning_content"] = reasoning
        calls = message.get("tool_calls")
        if isinstance(calls, str):
            message["tool_calls"] = parsed(calls, f"the tool calls of message {i}")
        if message.get(_HALF_TRAINED):
            raise ConversationError(
                MALFORMED,
                f"message {i} has {_HALF_TRAINED}: only whole messages are trained or not",
            )
        if message.get("tool_responses") and message["role"] == "assistant":
            raise ConversationError(
                MALFORMED,
                f"message {i} has tool_responses, which no assistant writes: make them messages of "
                "the role tool",
            )

    def _completion(self, prompt: Any, answer: Any) -> Conversation:
        """A prompt and its answer, either as text or as messages."""
        before = _as_messages(prompt, "user")
        messages = self._messages([*before, *_as_messages(answer, "assistant")])
        return Conversation(messages, len(before))

    def _alpaca(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        questions = [one for one in (record["instruction"], record.get("input")) if one]
        if wrong := [one for one in questions if not isinstance(one, str)]:
            raise ConversationError(MALFORMED, f"its instruction or input is {brief(wrong[0])}")
        turns = [("\n".join(questions), record["output"])]
        history = plain(record.get("history")) or []
        if not isinstance(history, list) or any(
            not isinstance(turn, list) or len(turn) != 2 for turn in history
        ):
            raise ConversationError(
                MALFORMED, f"its history is no list of questions with answers: {brief(history)}"
            )
        return self._messages(
            [
                {"role": role, "content": content}
                for turn in [*history, *turns]
                for role, content in zip(("user", "assistant"), turn, strict=True)
            ]
        )

    def _turns(self, value: Any, role: str) -> list[dict[str, Any]]:
        """What a text of a role, or messages, say; nothing is no turn."""
        raw = _as_messages(value, role)
        return self._messages(raw) if raw else []

    def _pair(self, record: Mapping[str, Any], *keys: str) -> list[Conversation]:
        prompt = record.get("prompt")
        answers = []
        for key in keys:
            if record.get(key) is None:
                raise ConversationError(NO_CONVERSATION, f"it has no {key}")
            answers.append(self._turns(record[key], "assistant"))
        before = [] if prompt is None else self._turns(prompt, "user")
        if all(one[: len(before)] == before for one in answers) or (
            len(before) == 1 and all(before[0] in one[:-1] for one in answers)
        ):
            before = []  # the answers have the prompt in them
        both = [[*before, *answer] for answer in answers]
        same = 0
        while same < min(map(len, both)) and both[0][same] == both[1][same]:
            same += 1
        if same == max(map(len, both)):
            raise ConversationError(NO_CONVERSATION, "both answers of the pair are the same")
        return [Conversation(messages, same) for messages in both]


def detect(records: Iterable[Mapping[str, Any]], options: ChatOptions) -> str:
    """In which form records have conversations, in a phrase; "" where none has one."""
    forms = []
    for record in records:
        try:
            forms.append(_form(record, options.messages_key, options.pairs))
        except ConversationError:
            continue
    return " or ".join(dict.fromkeys(forms))


def _form(record: Mapping[str, Any], key: str | None, pairs: tuple[str, str] | None) -> str:
    """The form of a record. ConversationError where it has no conversation."""
    if pairs is not None:
        return "pairs"
    if key is not None and record.get(key) is None:
        raise ConversationError(NO_CONVERSATION, f"it has no {key}")
    if key is not None or record.get("messages") is not None:
        return "messages"
    if any(record.get(one) is not None for one in _LISTS):
        return "conversations"
    for form, needed in _FORMS.items():
        if all(record.get(one) is not None for one in needed):
            return form
    keys = ", ".join(map(str, list(record)[:8])) or "nothing"
    raise ConversationError(NO_CONVERSATION, f"it has {keys}")


def _as_messages(value: Any, role: str) -> list[Any]:
    """A text as the message of a role, or those of Human and Assistant; messages as they are."""
    if isinstance(value, str) and _HH.match(value):
        parts = _HH.split(value)[1:]
        turns = zip(parts[::2], map(str.strip, parts[1::2]), strict=True)
        messages = [{"role": _ROLES[who.lower()], "content": text} for who, text in turns]
        is_prompt = messages[-1] == {"role": "assistant", "content": ""}  # for an answer
        return messages[:-1] if is_prompt else messages
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, Iterable):
        return list(value)
    raise ConversationError(MALFORMED, f"{brief(value)} is neither text nor messages")


def _sharegpt(message: dict[str, Any], i: int) -> dict[str, Any]:
    """``from`` and ``value`` as ``role`` and ``content``."""
    role, value = message.pop("from"), message.pop("value", None)
    if role == _CALL and isinstance(value, str):
        call = parsed(value, f"the call of message {i}")
        calls = call if isinstance(call, list) else [call]
        if wrong := [one for one in calls if not isinstance(one, dict)]:
            raise ConversationError(MALFORMED, f"message {i} calls {brief(wrong[0])}")
        return {
            **message,
            "role": role,
            "tool_calls": [{"type": "function", "function": one} for one in calls],
        }
    return {**message, "role": role, **({} if value is None else {"content": value})}


def _part(part: Any, i: int) -> dict[str, Any]:
    """One part of a content: text, or what cannot be rendered as text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise ConversationError(MALFORMED, f"message {i} has the part {brief(part)}")
    kind = str(part.get("type") or "text")
    if kind.startswith(("image", "audio", "input_audio", "video", "file")):
        raise ConversationError(MEDIA, f"message {i} has {kind}")
    if not isinstance(part.get("text"), str):
        raise ConversationError(MALFORMED, f"message {i} has a part of the type {brief(kind)}")
    return {"type": "text", "text": part["text"]}


def _is_untrained(message: Mapping[str, Any], i: int) -> bool:
    """Whether a message says that it is not to be trained: OpenAI's weight, axolotl's train."""
    says = {key: message[key] for key in ("weight", "train") if key in message}
    for key, value in says.items():
        if value not in (0, 1):
            raise ConversationError(
                MALFORMED,
                f"message {i} has the {key} {brief(value)}: 0 and 1 say whether a message is "
                f"trained, and {option('weight_key', 'KEY')} names a conversation's weight",
            )
    return 0 in says.values()


def _refuse_media(record: Mapping[str, Any]) -> None:
    """Raise ConversationError for pictures and the like beside the messages."""
    for key in sorted(_SEEN.intersection(record)):
        value = plain(record[key])
        if value not in (None, "", [], {}):
            raise ConversationError(MEDIA, f"it has {key}")


def _variables(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record has for the template: tools, documents, and chat_template_kwargs."""
    variables: dict[str, Any] = {}
    extra = record.get("chat_template_kwargs")
    if isinstance(extra, Mapping):
        variables |= {str(name): plain(value) for name, value in extra.items()}
        if wrong := sorted(NO_VARIABLES.intersection(variables)):
            raise ConversationError(MALFORMED, f"its chat_template_kwargs have {wrong[0]}")
        variables[OWN] = repr(variables)
    for name in ("tools", "documents"):
        value = record.get(name)
        if isinstance(value, str):
            value = parsed(value, f"its {name}") if value.strip() else None
        value = plain(value)
        if value is not None and not isinstance(value, list):
            raise ConversationError(MALFORMED, f"its {name} are no list: {brief(value)}")
        if value:
            variables[name] = value
    return variables


def _weight(record: Mapping[str, Any], key: str) -> float:
    if record.get(key) is None:
        raise ConversationError("no weight", f"it has no {key}")
    weight = _number(record[key], key)
    if weight < 0 or weight > _MOST_WEIGHT or 0 < weight < _LEAST_WEIGHT:
        raise ConversationError(
            "no weight",
            f"{key} is {weight}: float16 has 0 and {_LEAST_WEIGHT} to {_MOST_WEIGHT:.0f}",
        )
    return weight


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # of an integer of 400 digits
        number = math.nan
    if not math.isfinite(number):
        raise ConversationError(NO_NUMBER, f"{name} is {brief(value)}")
    return number
