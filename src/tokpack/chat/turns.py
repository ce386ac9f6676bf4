"""Where the turns of a conversation are in its text: by one render, or by those of its beginnings.

The definition is by beginnings. Let P(n) be the text of the first n messages, and G(n) the same
with a generation prompt. The turn of assistant message i is what P(i + 1) has behind G(i). Where
the whole text does not begin with P(i + 1), the template *rewrites* the turn once other messages
follow it.

One render says the same for a template that did not look ahead (`instrument`): then P(i + 1) is its
text up to the end of message i, and a generation prompt that depends on no message is rendered
once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.chat.rendered import ConversationError
from tokpack.chat.spans import without_prompted_thinking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.chat.program import Program
    from tokpack.chat.spans import Span

REWRITTEN = "a turn is rewritten"

Messages = list[dict[str, Any]]


class Text(NamedTuple):
    """A rendered conversation.

    ``turns`` has a span for every message that the template's loop came by, None for any other;
    nothing where there is no such loop. ``plain``: the text of each beginning of the messages is
    the beginning of the text. ``generations`` are the spans of ``{% generation %}``.
    """

    text: str
    turns: Sequence[Span | None] | None
    plain: bool
    generations: list[Span]


class Own(NamedTuple):
    """What an assistant's message adds to a text, behind its generation prompt."""

    text: str
    span: Span
    opened: bool = False  # the prompt ends inside of a thinking


class Turns:
    """Finds turns with a program; counts on its budget being reset for each conversation."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._prompts: dict[tuple[bool, bool, str], str] = {}

    def render(self, messages: Messages, variables: Mapping[str, Any]) -> Text:
        """The text of messages, with what one render says about it."""
        program = self._program
        text = program.run(messages, variables)
        ends = [0, *accumulate(map(len, program.chunks))]
        turns = self._turns(messages, ends) if program.has_turns else None
        plain = turns is not None and not program.ahead and ends[program.turns_end] == len(text)
        generations = [(ends[begin], ends[end]) for begin, end in program.generations]
        return Text(text, turns, plain, generations)

    def _turns(self, messages: Messages, ends: Sequence[int]) -> list[Span | None] | None:
        """The spans of messages by the marks of the last run; None where they are in disorder."""
        program = self._program
        turns: list[Span | None] = [None] * len(messages)
        last = len(program.turns) - 1
        i = 0
        for k, (chunk, message) in enumerate(program.turns):
            while i < len(messages) and messages[i] is not message:
                i += 1
            if i == len(messages):
                return None
            end = program.turns[k + 1][0] if k < last else program.turns_end
            turns[i] = (ends[chunk], ends[end])
            i += 1
        if program.turns:
            preamble = ends[program.turns[0][0]]
            first = turns[0]
            if preamble and len(turns) > 1 and (first is None or first[0] == first[1]):
                turns[0] = (0, preamble)  # a system message, written before the loop
        return turns

    def by_marks(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Own | None:
        """What message i adds, by one render; None where that render cannot say."""
        turn = whole.turns[i] if whole.turns else None
        if turn is None or not self._program.fixed_prompt or not i:
            return None
        key = (
            bool(variables.get("tools")),
            bool(variables.get("documents")),
            repr(variables.get("chat_template_kwargs")),
        )
        prompt = self._prompts.get(key)
        if prompt is None:
            before = self._program.run(messages[:i], variables)
            asked = self._program.run(messages[:i], variables, prompt=True)
            if not asked.startswith(before):
                return None
            prompt = self._prompts[key] = asked[len(before) :]
        return _behind(whole.text, turn, prompt)

    def by_beginnings(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Own:
        """What message i adds, by definition; its text is P(i + 1). ConversationError."""
        asked = self._program.run(messages[:i], variables, prompt=True)
        text = self.beginning(whole, messages, i, variables)
        own = _behind(text, (0, len(text)), asked)
        if own is None:
            raise ConversationError(
                "the generation prompt does not fit",
                f"the text up to message {i} does not begin with its generation prompt",
            )
        return own

    def beginning(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> str:
        """P(i + 1)."""
        last = i == len(messages) - 1
        return whole.text if last else self._program.run(messages[: i + 1], variables)

    def as_written(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Own | None:
        """What message i adds to the whole text, even if it is rewritten there; None: not found."""
        own = self.by_marks(whole, messages, i, variables)
        if own is not None or whole.turns is None or whole.turns[i] is None or not i:
            return own
        before = self._program.run(messages[:i], variables)
        asked = self._program.run(messages[:i], variables, prompt=True)
        prompt = asked[len(before) :] if asked.startswith(before) else ""
        return _behind(whole.text, whole.turns[i], prompt)


def _behind(text: str, turn: Span | None, prompt: str) -> Own | None:
    """The part of a turn behind the generation prompt."""
    assert turn is not None
    begin, end = turn
    if text.startswith(prompt, begin):
        return Own(text, (begin + len(prompt), end), prompt.rstrip().endswith("<think>"))
    # Templates of models that always think begin that in the prompt, and drop it from answers.
    shorter = without_prompted_thinking(prompt)
    if shorter != prompt and text.startswith(shorter, begin):
        return Own(text, (begin + len(shorter), end))
    return None
