"""A conversation in the making: its text, and what of its messages is in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tokpack.chat.calls import are_written, calls_of, have_calls
from tokpack.chat.marks import Marks
from tokpack.chat.messages import CALLS, REASONING
from tokpack.chat.rendered import OUTSIDE, ConversationError
from tokpack.chat.spans import thinking
from tokpack.chat.values import MALFORMED
from tokpack.display import brief
from tokpack.errors import option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokpack.chat.marks import Part
    from tokpack.chat.messages import Message
    from tokpack.chat.records import Conversation
    from tokpack.chat.spans import Span
    from tokpack.chat.watched import Text

    Messages = list[Message]


class Document:
    """A conversation as text, and where in it its messages are.

    ``again`` renders other messages in the place of these, with some variables. ``answers`` are the
    messages of an assistant that are to be trained, ``others`` those of others. From message
    ``first`` on those that are not written are counted; earlier ones are in another document, too.
    """

    __slots__ = (
        *("_again", "_first_text", "_marks", "answers", "begins", "conversation", "first"),
        *("messages", "others", "unstopped", "whole"),
    )

    def __init__(
        self,
        whole: Text,
        messages: Messages,
        conversation: Conversation,
        chosen: tuple[Sequence[int], Sequence[int]],
        again: tuple[Callable[[Messages, Mapping[str, Any]], Text], Mapping[str, Any]],
    ) -> None:
        self.whole, self.messages, self.conversation = whole, messages, conversation
        self._again, self._first_text = again, whole.text
        self.answers, self.others = chosen
        self.first = 0
        self.begins: list[int] = []  # of answers that are trained
        self.unstopped = 0

    @property
    def marks(self) -> Marks | None:
        """Where contents, thoughts and calls are; None where the template does not show it.

        Of messages that are nothing but a text that is trained as a whole, nothing is marked.
        """
        if not hasattr(self, "_marks"):
            self._marks = self._marked()
        return self._marks

    def _marked(self) -> Marks | None:
        marks, parts = Marks(), self.conversation.parts
        marked = [
            _marked(marks, i, message, parts.get(i, {}))
            if i in self.conversation.special or i in self.others
            else message
            for i, message in enumerate(self.messages)
        ]
        try:
            render, variables = self._again
            text = marks.read(render(marked, variables).text)
        except ConversationError:
            return None
        return marks if text == self._first_text else None

    def turn(self, i: int) -> Span | None:
        """Where the turn of a message is; None where that is not known, or it has none."""
        return self.whole.turns[i] if self.whole.turns else None

    def calls(self, i: int) -> list[list[int]]:
        """The places of each call of a message: its marks, or its id, where that stands alone."""
        calls, text, turn = calls_of(self.messages[i]), self.whole.text, self.turn(i)
        ids = [call.get("id") for call in calls]
        places = []
        for n, id_ in enumerate(ids):
            found = [] if self.marks is None else self.marks.places(("call", i, n))
            if not found and isinstance(id_, str) and id_:
                begin, end = turn or (0, len(text))
                of_id = [one.start() for one in re.finditer(re.escape(id_), text[begin:end])]
                found = [begin + at for at in of_id] if len(of_id) >= ids.count(id_) else []
            places.append(found)
        return places

    def untrained(self, i: int) -> list[Span]:
        """Where the parts of a message are that are not trained. ConversationError."""
        spans: list[Span] = []
        for key, parts in self.conversation.parts[i].items():
            found = [] if self.marks is None else self.marks.spans(("untrained", (key, i)))
            wanted = sum(not is_trained and text.strip() != "" for text, is_trained in parts)
            if len(found) != wanted or any(begin == end for begin, end in found):
                raise ConversationError(
                    MALFORMED,
                    f"message {i} has a part of its {key} that is not trained, and where that is "
                    "in what the template writes is not known: leave out the whole message, with "
                    "train, or its thinking, with an own part",
                )
            spans += found
        return spans

    def check_thoughtless(self, i: int, spans: list[Span]) -> None:
        """Raise ConversationError where what message i thinks is trained all the same."""
        thought = str(self.messages[i].get("reasoning_content") or "").strip()
        if not any(thought and self.whole.text.find(thought, *one) >= 0 for one in spans):
            return
        found = spans if self.marks is None else self.marks.spans(("reasoning_content", i))
        if any(b < last and first < e for b, e in found for first, last in spans):
            raise ConversationError(
                OUTSIDE,
                f"what message {i} thinks, {brief(thought)}, is not to be trained, and the "
                "template writes it between marks that are not known: put {% generation %} and "
                "{% endgeneration %} around what is, in a copy of the template",
            )

    def drops_thinking(self, i: int) -> bool:
        """Whether the thinking of an answer is not in its turn.

        ConversationError where its calls are not: what is left of it would be learned.
        """
        message, text = self.messages[i], self.whole.text
        if have_calls(message) and (name := self._missing_call(i)):
            raise ConversationError(
                "tool calls are not written",
                f"the template leaves out the call of {brief(name)} in message {i}: the rest "
                "would be learned as its answer: give a template for tools, "
                f"{option('chat_template', 'FILE')}, or leave such records out",
            )
        content = message.get("content") or ""
        thought = message.get("reasoning_content") if len(message) > 2 else None
        if thought is None and isinstance(content, str) and "</think>" in content:
            thought = thinking(content)[0]
        turn = self.turn(i) or (0, len(text))
        return isinstance(thought, str) and text.find(thought.strip(), *turn) < 0

    def _missing_call(self, i: int) -> str | None:
        """The name of a call of a message that is not written."""
        message, text, turn = self.messages[i], self.whole.text, self.turn(i)
        if turn is not None and are_written(text, turn, message):
            return None
        names = [call.get("function", call)["name"] for call in calls_of(message)]
        for name, places in zip(names, self.calls(i), strict=True):
            is_there = bool(places)
            if self.marks is None and not is_there:
                is_there = text.count(name, *(turn or (0, len(text)))) >= names.count(name)
            if not is_there:
                return str(name)
        return None

    def drops_content(self, i: int) -> bool:
        """Whether the text of a message beside its calls is not written."""
        text, turn, message = self.whole.text, self.turn(i), self.messages[i]
        said = [one for one in texts_of(message) if one.strip()] if have_calls(message) else []
        if not said or (turn is not None and are_written(text, turn, message)):
            return False
        if self.marks is None:
            return any(text.find(one.strip(), *(turn or (0, len(text)))) < 0 for one in said)
        return len(self.marks.spans(("content", i))) < len(said)

    def drops_message(self, i: int) -> bool:
        """Whether a message has no turn, and what it says is nowhere in the text."""
        turn, content = (self.whole.turns or {i: None})[i], self.messages[i].get("content")
        has_none = turn is None or turn[0] == turn[1]
        return has_none and isinstance(content, str) and content.strip() not in self.whole.text


def texts_of(message: Message) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _marked(marks: Marks, i: int, message: Message, parts: Mapping[str, list[Part]]) -> Message:
    """A message with marks in what it says, thinks and calls."""
    marked = dict(message)
    for key in ("content", "reasoning_content"):
        if key in message:
            marked[key] = marks.content(message[key], (key, i), parts.get(key, ()))
    for key in REASONING[1:]:
        if key in message:
            marked[key] = marked["reasoning_content"]
    number = 0
    for key in CALLS:
        calls = message.get(key, [])
        made = []
        for call in calls if isinstance(calls, list) else [calls]:
            made.append(marks.call(call, ("call", i, number)))
            number += 1
        if made:
            marked[key] = made if isinstance(calls, list) else made[0]
    return marked
