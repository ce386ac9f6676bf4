"""Tool calls: arguments in the form that a template expects, and whether it writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokpack.chat.records import CALLS, MALFORMED
from tokpack.chat.rendered import ConversationError
from tokpack.display import brief
from tokpack.errors import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokpack.chat.marks import Span
    from tokpack.chat.records import Message

_KEY = "query"
_TOOL = {"name": "find", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": _TOOL}]  # to try how a template takes calls


def have_calls(message: Message) -> bool:
    """Whether a message has calls."""
    return "tool_calls" in message or "function_call" in message  # fast: called for each message


def calls_of(message: Message) -> list[Any]:
    """The calls of a message."""
    return [*message.get("tool_calls", ()), *(message[k] for k in CALLS[1:] if k in message)]


def tried(value: str, content: str | None = "") -> list[Message]:
    """Two messages with a call whose argument is ``value``: as a mapping, and as JSON text."""
    made = []
    for arguments in ({_KEY: value}, json.dumps({_KEY: value})):
        function = {"name": "find", "arguments": arguments}
        call = {"id": "c00000001", "type": "function", "function": function}
        made.append({"role": "assistant", "content": content, "tool_calls": [call]})
    return made


def arguments_taken(mapping: str, text: str) -> str:
    """The form of arguments that a template expects, by its texts for `tried`; "" for none."""
    if not (mapping and text):
        return "mapping" if mapping else "text" if text else "as-is"
    as_json = f'"{_KEY}"'
    if json.dumps(as_json)[1:-1] in text or (as_json in text and as_json not in mapping):
        return "text" if f"'{_KEY}'" in mapping else "mapping"
    return "as-is"


def with_calls(message: Message, made: Callable[[Any], Any]) -> Message:
    """The message with each of its calls replaced by ``made(call)``."""
    given = dict(message)
    for key in CALLS:
        if key in message:
            calls = message[key]
            given[key] = list(map(made, calls)) if isinstance(calls, list) else made(calls)
    return given


def with_arguments(call: Any, kind: str, i: int) -> Any:
    """A call of message i with arguments as a mapping, or as a text. ConversationError."""
    function = call.get("function", call)
    value = function.get("arguments")
    if value is None or isinstance(value, str) == (kind == "text"):
        return call
    if kind == "text":
        value = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, str):
        try:
            parsed = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise ConversationError(
                MALFORMED,
                f"the arguments of {brief(function['name'])} in message {i} are not a JSON object, "
                f"but the template expects a mapping: {brief(value)}; "
                f"{option('tool_arguments', 'as-is')} passes them as they are",
            )
        value = parsed
    made = {**function, "arguments": value}
    return made if function is call else {**call, "function": made}


def are_written(text: str, turn: Span, message: Message) -> bool:
    """Whether the calls and content of a message are certainly in its turn.

    They are if each name, and the content, is found there, and nothing else in the message has the
    same text: a text that occurs twice may belong to something else.
    """
    piece, content = text[slice(*turn)], message.get("content") or ""
    if not isinstance(content, str):
        return False
    functions = [call.get("function", call) for call in calls_of(message)]
    said = [one["name"] for one in functions]
    said += [content.strip()] if content.strip() else []
    beside = [*_texts([one.get("arguments") for one in functions])]
    beside.append(str(message.get("reasoning_content") or ""))
    return all(
        one in piece and not any(one in other for other in (*beside, *said[:i], *said[i + 1 :]))
        for i, one in enumerate(said)
    )


def _texts(value: Any) -> Iterator[str]:
    """The texts in arguments, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value:
            yield from _texts(one)
        for one in value.values() if isinstance(value, dict) else ():
            yield from _texts(one)
