"""Where the turns of a conversation are in its text: by one render, or by those of its beginnings.

The definition is by beginnings. Let P(n) be the text of the first n messages, up to what follows
the loop over them, and G(n) the text with a generation prompt. The turn of assistant message i is
what P(i + 1) has behind G(i). Where the whole text does not begin with P(i + 1), or this not with
P(i), the template *rewrites* turns once other messages follow them.

One render says the same for a template that did not look ahead (`instrument`): then P(i + 1) is its
text up to the end of message i, and a generation prompt that depends on no message is rendered
once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.chat.rendered import ConversationError
from tokpack.chat.spans import without_prompted_thinking
from tokpack.errors import option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.chat.program import Program
    from tokpack.chat.spans import Span

REWRITTEN = "a turn is rewritten"

Messages = list[dict[str, Any]]


class Text(NamedTuple):
    """A rendered conversation.

    ``turns`` has a span for every message that the template's loop came by, None for any other;
    nothing where there is no such loop. ``end`` is where they end: some templates write a last
    token behind. ``plain``: the text of each beginning of the messages is
    the beginning of the text. ``generations`` are the spans of ``{% generation %}``.
    """

    text: str
    turns: Sequence[Span | None] | None
    end: int
    plain: bool
    generations: list[Span]


class Own(NamedTuple):
    """What an assistant's message adds to a text, behind its generation prompt.

    ``end`` is that of all turns in the text.
    """

    text: str
    span: Span
    end: int
    opened: bool = False  # the prompt ends inside of a thinking


class Turns:
    """Finds turns with a program; counts on its budget being reset for each conversation."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._prompts: dict[tuple[bool, bool, str], str] = {}

    def render(
        self, messages: Messages, variables: Mapping[str, Any], *, prompt: bool = False
    ) -> Text:
        """The text of messages, with what one render says about it."""
        program = self._program
        text = program.run(messages, variables, prompt=prompt)
        ends = [0, *accumulate(map(len, program.chunks))]
        turns = self._turns(messages, ends) if program.has_turns else None
        end = len(text) if turns is None else ends[program.turns_end]
        plain = turns is not None and not program.ahead
        generations = [(ends[begin], ends[end]) for begin, end in program.generations]
        return Text(text, turns, end, plain, generations)

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
            prompt = self._prompt(messages[:i], variables)
            if prompt is None:
                return None
            self._prompts[key] = prompt
        return _behind(whole, turn, prompt)

    def by_beginnings(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Own:
        """What message i adds, by definition; up to its end, its text is P(i + 1).

        Raises ConversationError.
        """
        asked = self._program.run(messages[:i], variables, prompt=True)
        text = self.beginning(whole, messages, i, variables)
        own = _behind(text, (0, text.end), asked)
        if own is None:
            before = self.render(messages[:i], variables)
            if not text.text.startswith(before.text[: before.end]):
                raise ConversationError(REWRITTEN, advice(i))
            raise ConversationError(
                "the generation prompt does not fit", f"message {i} does not begin with it"
            )
        return own

    def alone(self, messages: Messages, variables: Mapping[str, Any]) -> tuple[Text, Own]:
        """The text in which the last message is an answer to what a model would have seen.

        That is P(n), unless it rewrites earlier messages: then G(n - 1) with the answer behind it.
        """
        whole, i = self.render(messages, variables), len(messages) - 1
        try:
            return whole, self.by_beginnings(whole, messages, i, variables)
        except ConversationError as error:
            own = None
            if error.reason == REWRITTEN:
                own = self.as_written(whole, messages, i, variables)
            if own is None:
                raise
        asked = self.render(messages[:i], variables, prompt=True)
        text = asked.text + whole.text[own.span[0] :]
        moved = len(asked.text) - own.span[0]
        begin, end = len(asked.text), own.span[1] + moved
        turns = None if asked.turns is None else [*asked.turns, (asked.end, end)]
        behind = [(b + moved, e + moved) for b, e in whole.generations if b >= own.span[0]]
        return Text(text, turns, end, False, behind), Own(text, (begin, end), end, own.opened)

    def beginning(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Text:
        """The text of the messages up to i."""
        last = i == len(messages) - 1
        return whole if last else self.render(messages[: i + 1], variables)

    def as_written(
        self, whole: Text, messages: Messages, i: int, variables: Mapping[str, Any]
    ) -> Own | None:
        """What message i adds to the whole text, even if it is rewritten there; None: not found."""
        own = self.by_marks(whole, messages, i, variables)
        turn = whole.turns[i] if whole.turns else None
        if own is not None or turn is None or not i:
            return own
        return _behind(whole, turn, self._prompt(messages[:i], variables) or "")

    def _prompt(self, messages: Messages, variables: Mapping[str, Any]) -> str | None:
        """The generation prompt behind messages; None where more than that is different."""
        before = self.render(messages, variables)
        asked = self._program.run(messages, variables, prompt=True)
        start = before.text[: before.end]
        return asked[len(start) :] if asked.startswith(start) else None


def advice(i: int) -> str:
    """What to do about a message that is rewritten."""
    return (
        f"the template writes messages before or up to number {i} otherwise once later ones follow "
        f"(many drop earlier thinking): choose {option('rewriting', 'split')} for a document of "
        f"each answer, or {option('rewriting', 'as-is')}"
    )


def _behind(whole: Text, turn: Span, prompt: str) -> Own | None:
    """The part of a turn behind the generation prompt."""
    text = whole.text
    begin, end = turn
    if text.startswith(prompt, begin):
        opened = prompt.rstrip().endswith("<think>")
        return Own(text, (begin + len(prompt), end), whole.end, opened)
    # Templates of models that always think begin that in the prompt, and drop it from answers.
    shorter = without_prompted_thinking(prompt)
    if shorter != prompt and text.startswith(shorter, begin):
        return Own(text, (begin + len(shorter), end), whole.end)
    return None
