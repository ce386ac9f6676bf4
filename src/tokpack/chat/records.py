"""Records of other programs -> conversations: messages, and other input of a template."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.chat.marks import thinking
from tokpack.chat.rendered import (
    LISTS,
    MEDIA,
    NO_CONVERSATION,
    NO_VARIABLES,
    PAIRS,
    TOO_LONG,
    UNKNOWN_ROLE,
    ConversationError,
)
from tokpack.display import brief
from tokpack.errors import option
from tokpack.sources import value_at

if TYPE_CHECKING:
    from tokpack.chat.marks import Part
    from tokpack.chat.rendered import ChatOptions


MALFORMED = "malformed message"  # a reason of ConversationError


def parsed(text: str, what: str) -> Any:
    """The value of a JSON text. ConversationError, with ``what``, if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConversationError(MALFORMED, f"{what} are not JSON: {brief(text)}") from None


class NoJson(str):
    """Stands for a value that JSON cannot have: the name of its type."""


def plain(value: Any, depth: int = 0) -> Any:
    """The value with JSON types only: templates must not get anything else.

    Another type, such as a date, becomes a NoJson at the top or directly under a key, where
    templates do not read it. ConversationError for one deeper inside: in arguments of calls, in
    tools.
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
                MALFORMED, f"it has the key {brief(wrong[0])}, which is not text"
            )
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return plain(value.tolist(), depth + 1)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return [plain(one, depth + 1) for one in value]
    if depth > 1:
        kind = type(value).__name__
        raise ConversationError(
            MALFORMED, f"it has a value of the type {kind}, which JSON does not have"
        )
    return NoJson(f"<{type(value).__name__}>")


Message = dict[str, Any]

# Flags of a message, or of a part of its content, that are 0 if it is not trained: in OpenAI,
# axolotl, ms-swift, verl, and usual values of axolotl's message_field_training.
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
_FLAG_LIKE = re.compile("(?i)(^|_)(train|loss|mask|supervis)")  # keys that may be unknown flags
TOOLS = ("tools", "functions", "tool_defs")  # keys of a record, or of its first message
CALLS = ("tool_calls", "function_call")
REASONING = ("reasoning_content", "thinking", "reasoning")  # the keys that transformers knows
_CALL = "tool_call"  # the role of a message whose content is a call, as JSON
_OF_CALLS = frozenset(["name", "id", "type", "index"])
_SPEECH = ("content", *CALLS, *REASONING)
_KEYS = frozenset(["content", "value", "tool_calls"])  # of a message, besides its role
_MEDIA = ("image", "audio", "video", "file")
_ROLES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys((_CALL, "function_call"), _CALL),
}
_HH = re.compile(r"\n\n(Human|Assistant):")  # Anthropic's hh-rlhf has a conversation in one text


class Note(NamedTuple):
    """Which parts of a message are trained.

    ``parts`` are those of its content and reasoning, by key. If ``thinks`` is false, its thinking
    is not trained.
    """

    message: Message
    parts: Mapping[str, list[Part]]
    thinks: bool


class MessageReader:
    """Reads messages. ``notes`` are facts about some of them that templates do not get.

    ``parts`` are the roles whose content may be a list of parts, true if it must be. With ``none``
    a content may be none.
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
            raise ConversationError(NO_CONVERSATION, f"{brief(raw)} is not a list of messages")
        messages = [self._message(one, i) for i, one in enumerate(raw)]
        if self._has_calls:
            self._has_calls = False
            messages = _with_calls_in_turns(messages)
        return messages

    def turns(self, value: Any, role: str) -> list[Message]:
        """The messages in a list, or one of ``role`` for a text; none for an empty value."""
        raw = as_messages(value, role)
        return self.read(raw) if raw else []

    def _message(self, raw: Any, i: int) -> Message:
        if raw.__class__ is dict and len(raw) == 2:  # fast path for nearly all messages
            role, content = raw.get("role"), raw.get("content")
            if role.__class__ is str and content.__class__ is str and role in self._plain_roles:
                return {"role": self._plain_roles[role], "content": content}
        if not isinstance(raw, Mapping):
            raise ConversationError(MALFORMED, f"message {i} is {brief(raw)}")
        message = {k: v for k, v in plain(raw).items() if v is not None}
        if "role" not in message and "from" in message:  # the form of ShareGPT
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
                f"message {i} has the role {brief(role)}: map it to a known role, "
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
        """Check and convert a content that is a list of parts, or none."""
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
        """Convert the keys of a message besides role and content."""
        for key, value in message.items():
            if key.startswith(_MEDIA) and value:
                raise ConversationError(MEDIA, f"message {i} has {key}")
        misplaced = [key for key in TOOLS if message.get(key)]
        if misplaced and (i or message["role"] not in ("system", "developer")):
            raise ConversationError(
                MALFORMED,
                f"message {i} has {misplaced[0]}: put them into the record, under tools",
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
                f"message {i} of the assistant has tool_responses: make them messages of the role "
                "tool",
            )

    def _note(self, message: Message, key: str, parts: list[Part]) -> None:
        """Note untrained parts, and a thinking without trained parts."""
        if all(is_trained for _, is_trained in parts):
            return
        first = next((i for i, part in enumerate(parts) if part[1]), len(parts))
        head = "".join(text for text, _ in parts[:first])
        is_thinking = thinking(head)[1] == len(head) if key == "content" else first == len(parts)
        if first and is_thinking:
            parts = [*((text, True) for text, _ in parts[:first]), *parts[first:]]
        self.notes.append(Note(message, {key: parts}, not (first and is_thinking)))


def as_messages(value: Any, role: str) -> list[Any]:
    """A text as one message of a role, or as messages of Human and Assistant; messages as they are.

    A text may also be messages in JSON, as in a table of texts.
    """
    if isinstance(value, str) and _HH.match(value):
        parts = _HH.split(value)[1:]
        turns = zip(parts[::2], map(str.strip, parts[1::2]), strict=True)
        messages = [{"role": _ROLES[who.lower()], "content": text} for who, text in turns]
        is_prompt = messages[-1] == {"role": "assistant", "content": ""}  # an answer is to follow
        return messages[:-1] if is_prompt else messages
    if isinstance(value, str):
        return _in_json(value) or [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return as_messages(value["messages"], role) if "messages" in value else [value]
    if isinstance(value, Iterable):
        return list(value)
    raise ConversationError(MALFORMED, f"{brief(value)} is neither text nor messages")


def _in_json(text: str) -> list[Any]:
    """The messages whose JSON a text is; [] if it is any other text."""
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
    """Whether messages, in the form of a record, end with an assistant's."""
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
                    f"{what} has the {key} {brief(value)}: expected 0 or 1, for whether it is "
                    f"trained; for the weight of a conversation use {option('weight_key', 'KEY')}",
                )
            says.append(value)
        elif _FLAG_LIKE.search(key) and not isinstance(value, str) and value not in ([], {}):
            raise ConversationError(
                MALFORMED,
                f"{what} has {key}, which may mean that it is not trained: set train to 0 or 1 in "
                "the message, or in a part of its content, or leave it out",
            )
    return 0 in says


def _part(part: Any, i: int) -> Part:
    """A part of a content: its text, and whether that is trained."""
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
    """Convert a message with a call as its content to one with tool calls; thinking stays."""
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
    message["tool_calls"] = [*(message.get("tool_calls") or ()), *_wrapped(calls)]


def _read_calls(message: Message, i: int) -> None:
    """Convert the calls of a message, under all keys for calls; empty values are dropped."""
    for key in CALLS:
        if key not in message:
            continue
        calls = read_json(message.pop(key), f"the {key} of message {i}")
        if calls:
            many = calls if isinstance(calls, list) else [calls]
            if isinstance(calls, list) != (key == "tool_calls") or not _are_calls(many):
                raise ConversationError(
                    MALFORMED, f"message {i} has {key} that are not tool calls: {brief(calls)}"
                )
            message[key] = calls


def _are_calls(calls: list[Any]) -> bool:
    """Whether each is a call of a function by its name, with nothing else but arguments."""
    functions = [one.get("function", one) if isinstance(one, dict) else None for one in calls]
    return all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and ("arguments" in one or not {*one} - _OF_CALLS)
        for one in functions
    )


def _with_calls_in_turns(messages: list[Message]) -> list[Message]:
    """The messages, with calls that are messages of their own joined to the turn before."""
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
    """The value, or that of its JSON; for a list of texts, the value of each."""
    if isinstance(value, str):
        value = parsed(value, what) if value.strip() else None
    if isinstance(value, list):
        return [parsed(one, what) if isinstance(one, str) else one for one in value]
    return value


EMPTY = "empty conversation"  # reasons of ConversationError
NO_NUMBER = "no number"

MOST_MESSAGES = 100_000
OWN = "chat_template_kwargs of this record"  # a variable that no template can name
_FORMS = {
    "prompt and completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
_REJECTED = frozenset(rejected for _, rejected in PAIRS)
# Keys of the prompt of a pair; the first existing one is used. ``input`` and ``history`` may belong
# to an instruction.
_PROMPTS = ("prompt", *LISTS, "instruction", "question", "query", "input", "context", "history")
_SEEN = frozenset(["image", "images", "video", "videos", "audio", "audios", *FLAGS])
_TOOLS = frozenset(TOOLS)
_FOR_TEMPLATES = frozenset(["chat_template_kwargs", "documents", "input", *TOOLS])
_SHOWN = 8  # keys in a message
_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-24, 65504.0  # the limits of float16


@dataclass(slots=True)
class Conversation:
    """Messages, and other input of a template.

    Not trained are messages before ``first_trained``, a prompt, messages in ``untrained``, and the
    thinking of messages in ``thoughtless``. ``parts`` has, by message number and key, the parts of
    texts that are trained only in part. ``special`` are messages with more than a role and a
    content that is trained as a whole. ``variables`` go to the template, in addition to the
    request's.
    """

    messages: list[Message]
    first_trained: int = 0
    untrained: Sequence[int] = ()
    thoughtless: list[int] = field(default_factory=list)
    parts: dict[int, dict[str, list[Part]]] = field(default_factory=dict)
    special: Sequence[int] = ()
    variables: dict[str, Any] = field(default_factory=dict)
    weight: float = 1.0


class RecordReader:
    """Reads records as a request says; what it leaves open is detected in each record.

    ``parts`` and ``none`` are as for MessageReader.
    """

    def __init__(self, options: ChatOptions, *, parts: Mapping[str, bool], none: bool) -> None:
        self._reader = MessageReader(options.role_map, parts=parts, none=none)
        self._options = options

    def read(self, record: Mapping[str, Any]) -> list[Conversation]:
        """The conversation of a record; for a pair the preferred and the rejected one.

        Raises ConversationError.
        """
        options, reader = self._options, self._reader
        form = _form(record, options)
        if not _SEEN.isdisjoint(record):
            _refuse_beside(record)
        if form == "pairs":
            conversations = self._pair(record, options.pairs or pair_of(record) or ())
        elif form == "prompt and completion":
            prompt = value_at(record, options.prompt_key or "prompt")
            before = reader.turns(prompt, "user")
            answer = reader.turns(record["completion"], "assistant")
            conversations = [Conversation([*before, *answer], len(before))]
        elif form == "alpaca":
            turns = [*_history(record), (_instruction(record), record["output"])]
            conversations = [Conversation(self._talk(turns))]
        else:
            key = options.messages_key or form
            raw = record[key] if key in record else value_at(record, key)
            conversations = [Conversation(reader.read(raw))]
        for one in conversations:
            self._complete(one, record)
        reader.notes.clear()
        return conversations

    def _complete(self, one: Conversation, record: Mapping[str, Any]) -> None:
        """Add to a conversation what its record says about the whole of it."""
        messages, notes = one.messages, self._reader.notes
        if not messages:
            raise ConversationError(EMPTY)
        if len(messages) > MOST_MESSAGES:
            raise ConversationError(TOO_LONG, f"more than {MOST_MESSAGES:,}")
        system = record.get("system") or record.get("system_prompt")
        if isinstance(system, str) and system and messages[0]["role"] != "system":
            messages[:0] = self._reader.turns(system, "system")
            one.first_trained += one.first_trained > 0
        for i, each in enumerate(messages) if notes else ():
            for note in notes:
                if note.message is each:
                    one.parts[i] = {**one.parts.get(i, {}), **note.parts}
                    one.thoughtless += [] if note.thinks else [i]
        special = [i for i, each in enumerate(messages) if len(each) != 2 or "content" not in each]
        if special or notes:
            one.special = sorted({*special, *one.parts})
            one.untrained = [i for i in special if is_untrained(messages[i], f"message {i}")]
        if special or not _FOR_TEMPLATES.isdisjoint(record):  # in few records
            one.variables = _variables(record, messages)
        if self._options.weight_key is not None:
            one.weight = _weight(record, self._options.weight_key)

    def _talk(self, turns: Iterable[tuple[Any, Any]]) -> list[Message]:
        """Questions with their answers as messages."""
        said = list(chain.from_iterable(turns))
        if wrong := [one for one in said if not isinstance(one, str)]:
            # There may be two answers: LLaMA-Factory once stored pairs under output.
            raise ConversationError(
                MALFORMED,
                f"it has {brief(wrong[0])} instead of the text of a question or an answer",
            )
        roles = cycle(("user", "assistant"))
        return self._reader.read([{"role": next(roles), "content": one} for one in said])

    def _pair(self, record: Mapping[str, Any], keys: Sequence[str]) -> list[Conversation]:
        answers = [self._reader.turns(_asked(record, key), "assistant") for key in keys]
        before = self._before(record, keys, answers)
        both = [one if _begins_with(one, before) else [*before, *one] for one in answers]
        same = 0
        while same < min(map(len, both)) and both[0][same] == both[1][same]:
            same += 1
        return [Conversation(messages, same) for messages in both]

    def _before(
        self, record: Mapping[str, Any], keys: Sequence[str], answers: list[list[Message]]
    ) -> list[Message]:
        """The messages before the answers of a pair; the answers may contain them as well."""
        key = self._options.prompt_key
        if key is not None:
            return self._reader.turns(_asked(record, key), "user") if key else []
        names = [name for name in _PROMPTS if name not in keys and _is_prompt(record.get(name))]
        whole = [one for one in answers if _is_whole(one)]
        if not names and not whole:
            raise ConversationError(
                NO_CONVERSATION,
                f"it has no prompt before its answers: {_keys(record)}; name the prompt's key with "
                f"{option('prompt_key', 'KEY')}",
            )
        before: list[Message] = []
        if not whole or names[:1] == ["prompt"]:
            name = names.pop(0)
            before = self._prompt(record, name)
            if before[-1:] in (one[:1] for one in answers if not _is_whole(one)):
                before = before[:-1]  # the last message is the answer itself
            last = before[-1]["role"] if before else ""
            asks, is_in = last in ("user", "tool", "function"), True
            if asks:
                is_in = all(_begins_with(one, before) for one in whole)
            if not is_in or (not asks and len(whole) < len(answers)):
                said = brief(before[-1].get("content") if before else "")
                raise _unclear(name, f"ends with {said}, which its answers do not answer")
        elif len(whole) == 1:  # the other is just an answer: ms-swift's rejected_response
            users = [i for i, message in enumerate(whole[0]) if message["role"] == "user"]
            before = whole[0][: users[-1] + 1] if users else []
        said = "\n".join(_texts([before, answers])) if names else ""
        for name in names:
            if lost := next((text for text in _texts(record[name]) if text not in said), None):
                raise _unclear(
                    name,
                    f"has {brief(lost)}, which would be lost: it is nowhere else in the record",
                )
        return before

    def _prompt(self, record: Mapping[str, Any], name: str) -> list[Message]:
        """The question under a key of a record, after the earlier messages in the record."""
        value = _instruction(record) if name == "instruction" else record[name]
        is_text = isinstance(value, str) and name != "history"
        earlier = self._talk(_history(record)) if is_text else []
        return [*earlier, *self._reader.turns(value, "user")]


def pair_of(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """The keys of a preferred and a rejected answer in a record, or None if it has none."""
    if _REJECTED.isdisjoint(record):
        return None
    return next((keys for keys in PAIRS if all(record.get(k) is not None for k in keys)), None)


def detect(records: Iterable[Mapping[str, Any]], options: ChatOptions) -> str:
    """The form of conversations in records, in a phrase; "" if there are none."""
    forms = []
    for record in records:
        try:
            forms.append(_form(record, options))
        except ConversationError:
            continue
    return " or ".join(dict.fromkeys(forms))


def pairs_in(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The keys of preferred and rejected answers that records have, each pair once."""
    return [keys for keys in dict.fromkeys(map(pair_of, records)) if keys is not None]


def _form(record: Mapping[str, Any], options: ChatOptions) -> str:
    """The form of a record. ConversationError if it has no conversation."""
    if options.pairs is not None:
        return "pairs"
    key = options.messages_key
    if key is not None:
        _asked(record, key)
        return "messages"
    pair = pair_of(record)
    for one in LISTS:
        if record.get(one) is not None:
            is_prompt = pair is not None and one not in pair
            if is_prompt and not ends_with_answer(record[one], options.role_map):
                return "pairs"
            return "pairs" if pair is not None and one in pair else one
    if pair is not None:
        return "pairs"
    for form, (prompt, answer) in _FORMS.items():
        key = options.prompt_key if prompt == "prompt" else None
        if record.get(answer) is not None and value_at(record, key or prompt) is not None:
            return form
    raise ConversationError(NO_CONVERSATION, _keys(record))


def _asked(record: Mapping[str, Any], key: str) -> Any:
    """The value under a requested key. ConversationError if a record has none."""
    value = value_at(record, key)
    if value is None:
        raise ConversationError(NO_CONVERSATION, f"it has no {key}: {_keys(record)}")
    return value


def _keys(record: Mapping[str, Any]) -> str:
    """The keys of a record, for messages."""
    return f"its keys are {', '.join(map(str, list(record)[:_SHOWN])) or 'none'}"


def _unclear(name: str, what: str) -> ConversationError:
    return ConversationError(
        NO_CONVERSATION,
        f"under {name} it {what}: name what comes before the answers with "
        f"{option('prompt_key', name)}, or with '' if nothing does",
    )


def _is_prompt(value: Any) -> bool:
    return hasattr(value, "__len__") and len(value) > 0


def _is_whole(messages: list[Message]) -> bool:
    """Whether an answer includes the messages that it answers."""
    others = (one["role"] for one in messages if one["role"] not in ("system", "developer"))
    return next(others, "assistant") != "assistant"


def _begins_with(answer: list[Message], before: list[Message]) -> bool:
    return answer[: len(before)] == before or (len(before) == 1 and before[0] in answer[:-1])


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, except roles."""
    if isinstance(value, str):
        if value.strip():
            yield value.strip()
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one) if key not in ("role", "from") else ()
    elif isinstance(value, Iterable):
        for one in value:
            yield from _texts(one)


def _instruction(record: Mapping[str, Any]) -> str:
    """A question in Alpaca's form: an instruction, with its input."""
    questions = [one for one in (record["instruction"], record.get("input")) if one]
    if wrong := [one for one in questions if not isinstance(one, str)]:
        raise ConversationError(MALFORMED, f"its instruction or input is {brief(wrong[0])}")
    return "\n".join(questions)


def _history(record: Mapping[str, Any]) -> list[Any]:
    """The earlier questions and answers that a record has."""
    history = plain(record.get("history")) or []
    if not isinstance(history, list) or any(
        not isinstance(turn, list) or len(turn) != 2 for turn in history
    ):
        raise ConversationError(
            MALFORMED, f"its history is not a list of questions and answers: {brief(history)}"
        )
    return history


def _refuse_beside(record: Mapping[str, Any]) -> None:
    """Raise ConversationError for media beside the messages, and for flags about their training."""
    for key in sorted(_SEEN.intersection(record)):
        value = plain(record[key])
        if key not in FLAGS and value not in (None, "", [], {}):
            raise ConversationError(MEDIA, f"it has {key}")
        # In CSV a flag is a text.
        if key in FLAGS and (str(value).lower() == "false" or isinstance(value, list)):
            raise ConversationError(
                MALFORMED,
                f"its {key} is {brief(value)}: mark each message as trained or not, or "
                f"leave such records out with {option('where', f'{key}::bool')}",
            )


def _variables(record: Mapping[str, Any], messages: list[Message]) -> dict[str, Any]:
    """The template's variables in a record: tools, documents, chat_template_kwargs.

    Tools in the first message are removed from it.
    """
    variables: dict[str, Any] = {}
    what = "its chat_template_kwargs"
    if extra := read_json(plain(record.get("chat_template_kwargs")), what):
        if not isinstance(extra, Mapping):
            raise ConversationError(MALFORMED, f"{what} are no mapping: {brief(extra)}")
        variables |= extra
        if wrong := sorted(NO_VARIABLES.intersection(variables)):
            raise ConversationError(MALFORMED, f"{what} have {wrong[0]}")
        variables[OWN] = repr(variables)
    if documents := _list(record.get("documents"), "its documents"):
        variables["documents"] = documents
    given = record.get("input")  # the form of OpenAI's preferences
    places: list[tuple[Mapping[str, Any], str]] = [(record, "its")]
    places += [(given, "its input's")] if isinstance(given, Mapping) else []
    for i, one in enumerate(messages[:2]):
        if not _TOOLS.isdisjoint(one):
            places.append((one, f"message {i}'s"))
            messages[i] = {key: value for key, value in one.items() if key not in TOOLS}
    found: list[tuple[str, list[Any]]] = []
    for place, whose in places:
        for name in TOOLS:
            value = place.get(name)
            if value is not None and (tools := _list(value, f"{whose} {name}")):
                found.append((f"{whose} {name}", tools if name == "tools" else _wrapped(tools)))
    if found:
        variables["tools"] = found[0][1]
    if other := next((what for what, tools in found if tools != found[0][1]), None):
        raise ConversationError(MALFORMED, f"{found[0][0]} and {other} are different tools")
    return variables


def _list(value: Any, what: str) -> list[Any]:
    """A list, also one in JSON, with its texts parsed as JSON."""
    value = read_json(plain(value), what)
    if value is not None and not isinstance(value, list):
        raise ConversationError(MALFORMED, f"{what} are not a list: {brief(value)}")
    return value or []


def _wrapped(functions: list[Any]) -> list[Any]:
    """Functions in the form of tools, or of their calls."""
    return [
        one
        if isinstance(one, dict) and "function" in one
        else {"type": "function", "function": one}
        for one in functions
    ]


def _weight(record: Mapping[str, Any], key: str) -> float:
    if record.get(key) is None:
        raise ConversationError("no weight", f"it has no {key}")
    weight = number_of(record[key], key)
    if weight < 0 or weight > _MOST_WEIGHT or 0 < weight < _LEAST_WEIGHT:
        raise ConversationError(
            "no weight",
            f"{key} is {weight}: expected 0, or {_LEAST_WEIGHT} to {_MOST_WEIGHT:.0f} (float16)",
        )
    return weight


def number_of(value: Any, name: str) -> float:
    """A number as float. ConversationError for any other value."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConversationError(NO_NUMBER, f"{name} is {brief(value)}")
    return number
