"""Records of other programs -> conversations: messages with what goes with them to a template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

from tokpack.chat.messages import (
    FLAGS,
    TOOLS,
    Message,
    MessageReader,
    ends_with_answer,
    is_untrained,
    read_json,
)
from tokpack.chat.options import NO_VARIABLES, PAIRS
from tokpack.chat.rendered import MEDIA, NO_CONVERSATION, TOO_LONG, ConversationError
from tokpack.chat.values import MALFORMED, plain
from tokpack.display import brief
from tokpack.errors import option
from tokpack.sources.records import value_at

if TYPE_CHECKING:
    from tokpack.chat.marks import Part
    from tokpack.chat.options import ChatOptions

EMPTY = "empty conversation"  # reasons, see ConversationError
NO_NUMBER = "no number"

MOST_MESSAGES = 100_000
OWN = "chat_template_kwargs of this record"  # among variables, as text: no template can name it
_FORMS = {
    "prompt and completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
}
_REJECTED = frozenset(rejected for _, rejected in PAIRS)
_LISTS = ("messages", "conversations", "conversation")
# What comes before both answers of a pair; the first that is there. ``input`` and ``history`` may
# belong to an instruction.
_PROMPTS = ("prompt", *_LISTS, "instruction", "question", "query", "input", "context", "history")
_SEEN = frozenset(["image", "images", "video", "videos", "audio", "audios", *FLAGS])
_TOOLS = frozenset(TOOLS)
_FOR_TEMPLATES = frozenset(["chat_template_kwargs", "documents", "input", *TOOLS])
_SHOWN = 8  # keys in a message
_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-24, 65504.0  # that float16 has


@dataclass(slots=True)
class Conversation:
    """Messages with what goes with them to a template.

    ``first_trained``: earlier messages are a prompt, of which nothing is trained; nor are those of
    ``untrained``, nor the thinking of ``thoughtless`` ones. ``parts`` has for a message those of
    its texts of which some are not trained, by their keys. ``special`` messages have more than a
    role and a content that is trained as a whole. ``variables`` are for the template, beside those
    of the request.
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
    """Reads records as a request says; what it does not say is found in each record.

    Of the roles of ``parts`` the template takes contents of parts, of those that are true there
    no others; a content may be ``none``.
    """

    def __init__(self, options: ChatOptions, *, parts: Mapping[str, bool], none: bool) -> None:
        self._reader = MessageReader(options.role_map, parts=parts, none=none)
        self._options = options

    def read(self, record: Mapping[str, Any]) -> list[Conversation]:
        """The conversation of a record; of a pair the preferred and the rejected one.

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
        """Add to a conversation what its record says of it as a whole."""
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
        if special or not _FOR_TEMPLATES.isdisjoint(record):  # of few records
            one.variables = _variables(record, messages)
        if self._options.weight_key is not None:
            one.weight = _weight(record, self._options.weight_key)

    def _talk(self, turns: Iterable[tuple[Any, Any]]) -> list[Message]:
        """Questions with their answers as messages."""
        said = list(chain.from_iterable(turns))
        if wrong := [one for one in said if not isinstance(one, str)]:
            # Also of two answers, as LLaMA-Factory once had pairs under output.
            raise ConversationError(
                MALFORMED, f"it has {brief(wrong[0])} where a question or an answer is a text"
            )
        roles = cycle(("user", "assistant"))
        return self._reader.read([{"role": next(roles), "content": one} for one in said])

    def _pair(self, record: Mapping[str, Any], keys: Sequence[str]) -> list[Conversation]:
        answers = []
        for key in keys:
            value = value_at(record, key)
            if value is None:
                raise ConversationError(NO_CONVERSATION, f"it has no {key}: {_keys(record)}")
            answers.append(self._reader.turns(value, "assistant"))
        before = self._before(record, keys, answers)
        both = [one if _begins_with(one, before) else [*before, *one] for one in answers]
        same = 0
        while same < min(map(len, both)) and both[0][same] == both[1][same]:
            same += 1
        return [Conversation(messages, same) for messages in both]

    def _before(
        self, record: Mapping[str, Any], keys: Sequence[str], answers: list[list[Message]]
    ) -> list[Message]:
        """The messages before the answers of a pair, which may have them in them, too."""
        key = self._options.prompt_key
        if key is not None:
            value = value_at(record, key) if key else ""
            if value is None:
                raise ConversationError(NO_CONVERSATION, f"it has no {key}: {_keys(record)}")
            return self._reader.turns(value, "user") if key else []
        names = [name for name in _PROMPTS if name not in keys and _is_prompt(record.get(name))]
        whole = [one for one in answers if _is_whole(one)]
        if not names and not whole:
            raise ConversationError(
                NO_CONVERSATION,
                f"nothing is before its answers: {_keys(record)}; name that of the prompt with "
                f"{option('prompt_key', 'KEY')}",
            )
        before: list[Message] = []
        if not whole or names[:1] == ["prompt"]:
            name = names.pop(0)
            before = self._prompt(record, name)
            if before[-1:] in (one[:1] for one in answers if not _is_whole(one)):
                before = before[:-1]  # without the answer itself
            last = before[-1]["role"] if before else ""
            asks, is_in = last in ("user", "tool", "function"), True
            if asks:
                is_in = all(_begins_with(one, before) for one in whole)
            if not is_in or (not asks and len(whole) < len(answers)):
                said = brief(before[-1].get("content") if before else "")
                raise _unclear(name, f"has {said} last, which its answers do not answer")
        elif len(whole) == 1:  # the other one answers the same, as ms-swift's rejected_response
            users = [i for i, message in enumerate(whole[0]) if message["role"] == "user"]
            before = whole[0][: users[-1] + 1] if users else []
        said = "\n".join(_texts([before, answers])) if names else ""
        for name in names:
            if lost := next((text for text in _texts(record[name]) if text not in said), None):
                raise _unclear(name, f"has {brief(lost)}, which is nowhere else in it")
        return before

    def _prompt(self, record: Mapping[str, Any], name: str) -> list[Message]:
        """What a record asks under a key, behind what it says was before."""
        value = _instruction(record) if name == "instruction" else record[name]
        is_text = isinstance(value, str) and name != "history"
        earlier = self._talk(_history(record)) if is_text else []
        return [*earlier, *self._reader.turns(value, "user")]


def pair_of(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """The keys of a preferred and a rejected answer in a record; None where it has none."""
    if _REJECTED.isdisjoint(record):
        return None
    return next((keys for keys in PAIRS if all(record.get(k) is not None for k in keys)), None)


def detect(records: Iterable[Mapping[str, Any]], options: ChatOptions) -> str:
    """In which form records have conversations, in a phrase; "" where none has one."""
    forms = []
    for record in records:
        try:
            forms.append(_form(record, options))
        except ConversationError:
            continue
    return " or ".join(dict.fromkeys(forms))


def pairs_in(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The keys of preferred and rejected answers that records have, each once."""
    return [keys for keys in dict.fromkeys(map(pair_of, records)) if keys is not None]


def _form(record: Mapping[str, Any], options: ChatOptions) -> str:
    """The form of a record. ConversationError where it has no conversation."""
    if options.pairs is not None:
        return "pairs"
    key = options.messages_key
    if key is not None:
        if value_at(record, key) is None:
            raise ConversationError(NO_CONVERSATION, f"it has no {key}: {_keys(record)}")
        return "messages"
    pair = pair_of(record)
    for one in _LISTS:
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


def _keys(record: Mapping[str, Any]) -> str:
    """Which keys a record has, for messages."""
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
    """Whether an answer begins with what it answers."""
    others = (one["role"] for one in messages if one["role"] not in ("system", "developer"))
    return next(others, "assistant") != "assistant"


def _begins_with(answer: list[Message], before: list[Message]) -> bool:
    return answer[: len(before)] == before or (len(before) == 1 and before[0] in answer[:-1])


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, but roles."""
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
    """The question of Alpaca: an instruction, with its input."""
    questions = [one for one in (record["instruction"], record.get("input")) if one]
    if wrong := [one for one in questions if not isinstance(one, str)]:
        raise ConversationError(MALFORMED, f"its instruction or input is {brief(wrong[0])}")
    return "\n".join(questions)


def _history(record: Mapping[str, Any]) -> list[Any]:
    """Questions with their answers, of which a record says that they came before."""
    history = plain(record.get("history")) or []
    if not isinstance(history, list) or any(
        not isinstance(turn, list) or len(turn) != 2 for turn in history
    ):
        raise ConversationError(
            MALFORMED, f"its history is no list of questions with answers: {brief(history)}"
        )
    return history


def _refuse_beside(record: Mapping[str, Any]) -> None:
    """Raise ConversationError for media beside the messages, and for flags of their training."""
    for key in sorted(_SEEN.intersection(record)):
        value = plain(record[key])
        if key not in FLAGS and value not in (None, "", [], {}):
            raise ConversationError(MEDIA, f"it has {key}")
        if key in FLAGS and (value is False or isinstance(value, list)):
            raise ConversationError(
                MALFORMED,
                f"its {key} is {brief(value)}: say in each message whether that is trained, or "
                f"leave such records out with {option('where', key)}",
            )


def _variables(record: Mapping[str, Any], messages: list[Message]) -> dict[str, Any]:
    """What a record has for the template: tools, documents, and chat_template_kwargs.

    Tools that a first message has are no longer in it.
    """
    variables: dict[str, Any] = {}
    extra = record.get("chat_template_kwargs")
    if isinstance(extra, Mapping):
        variables |= plain(extra)
        if wrong := sorted(NO_VARIABLES.intersection(variables)):
            raise ConversationError(MALFORMED, f"its chat_template_kwargs have {wrong[0]}")
        variables[OWN] = repr(variables)
    if documents := _list(record.get("documents"), "its documents"):
        variables["documents"] = documents
    given = record.get("input")  # of OpenAI's preferences
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
    """A list, or what its JSON says, or that of each of its texts."""
    value = read_json(plain(value), what)
    if value is not None and not isinstance(value, list):
        raise ConversationError(MALFORMED, f"{what} are no list: {brief(value)}")
    return value or []


def _wrapped(functions: list[Any]) -> list[Any]:
    """Functions as tools."""
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
            f"{key} is {weight}: float16 has 0 and {_LEAST_WEIGHT} to {_MOST_WEIGHT:.0f}",
        )
    return weight


def number_of(value: Any, name: str) -> float:
    """A number that is one. ConversationError."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConversationError(NO_NUMBER, f"{name} is {brief(value)}")
    return number
