"""Records -> rendered conversations, with what is trained of them."""

from __future__ import annotations

import json
from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tokpack.chat.records import NO_VARIABLES, RecordReader
from tokpack.chat.rendered import OUTSIDE, REWRITTEN, ConversationError, Rendered, not_found
from tokpack.chat.spans import HARMONY, Ends, Rules, joined, thinking, trained, without
from tokpack.chat.template import ChatTemplate
from tokpack.display import brief
from tokpack.errors import TokpackError, UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import date

    from tokpack.chat.options import ChatOptions
    from tokpack.chat.records import Conversation
    from tokpack.chat.spans import Span
    from tokpack.chat.turns import Answer
    from tokpack.chat.watched import Text

_ALWAYS_CHECKED = 16  # conversations at first of which turns are also found by definition
_HELD = 4  # conversations at first that jinja2 renders alone, too
_ONE_IN = 509  # and later ones, by their length
_TOGETHER = 32  # records
_ASSISTANT = frozenset(["assistant"])
_ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function"])
_NO_ENDS = Ends(())

Messages = list[dict[str, Any]]
_Steps = Generator[None, None, list[Rendered]]


class Renderer:
    """Renders records with a template. Belongs to one thread; can be pickled.

    ``template`` is what `load_template` found, or a template's text. UsageError where it cannot be
    used at all.
    """

    def __init__(self, template: ChatTemplate | str, options: ChatOptions) -> None:
        if isinstance(template, str):
            template = ChatTemplate(template)
        self.template, self.options = template, options
        with needs_extra("chat"):
            from tokpack.chat.functions import day_of
        day = day_of(options.variables.get("date"))
        self.variables: dict[str, Any] = {
            **(template.tokens or {}),
            "tools": None,
            "documents": None,
            **options.variables,
        }
        self._plain = _Rendering(template.source, self, day)
        self._with_tools = (
            self._plain if template.tool_use is None else _Rendering(template.tool_use, self, day)
        )
        reads = self._plain.reads | self._with_tools.reads
        if unread := sorted({*options.variables} - reads - {"date"}):
            raise UsageError(
                f"{option('template_var', f'{unread[0]}=...')}: the chat template reads no "
                f"{unread[0]}; it reads {', '.join(sorted(reads - NO_VARIABLES)) or 'no variable'}"
            )

    def __reduce__(self) -> tuple[type[Renderer], tuple[ChatTemplate, ChatOptions]]:
        return type(self), (self.template, self.options)

    def identity(self) -> dict[str, Any]:
        """What decides the text beside the records and the options, for a fingerprint."""
        import jinja2

        return {
            "template_sha256": self.template.digest,
            "jinja2": jinja2.__version__,
            "variables": {k: v for k, v in sorted(self.variables.items()) if v is not None},
        }

    @property
    def where(self) -> str:
        """The place of the template, for messages."""
        return self.template.where

    def read(self, record: Mapping[str, Any]) -> list[Conversation]:
        """The conversations of a record, as `render` takes them. Raises ConversationError."""
        return self._plain.reader.read(record)

    def render(self, record: Mapping[str, Any]) -> list[Rendered]:
        """A record's conversation: one, two of a pair, several where rewritten turns are split.

        Raises ConversationError, with one of a few reasons.
        """
        (result,) = self.render_all([record])
        if isinstance(result, ConversationError):
            raise result
        return result

    def render_all(
        self, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[list[Rendered] | ConversationError]:
        """For each record what `render` gives, or the error that it raises.

        Some records take each step together: the code of one step is small enough to stay in the
        processor's cache, and all of it is not.
        """
        left = iter(records)
        while together := list(islice(left, _TOGETHER)):
            results: dict[int, list[Rendered] | ConversationError] = {}
            waiting = list(enumerate(map(self._steps, together)))
            while waiting:
                following = []
                for number, steps in waiting:
                    try:
                        next(steps)
                    except StopIteration as end:
                        results[number] = end.value
                    except ConversationError as error:
                        results[number] = error
                    else:
                        following.append((number, steps))
                waiting = following
            yield from (results[number] for number in range(len(together)))

    def _steps(self, record: Mapping[str, Any]) -> _Steps:
        """`render` of a record, step by step."""
        conversations = self._plain.reader.read(record)
        yield
        rendered = []
        for conversation in conversations:
            has_tools = conversation.variables.get("tools") is not None
            rendering = self._with_tools if has_tools else self._plain
            rendered.append((yield from rendering.steps(conversation, self.variables)))
        if len(rendered) == 1:
            return rendered[0]
        if any(len(one) != 1 for one in rendered):
            raise ConversationError(
                REWRITTEN,
                f"an answer of a pair cannot be split: choose {option('rewriting', 'as-is')}",
            )
        return [one for several in rendered for one in several]


class _Rendering:
    """One template at work."""

    def __init__(self, source: str, owner: Renderer, day: date | None) -> None:
        with needs_extra("chat"):
            from tokpack.chat.program import Program
            from tokpack.chat.turns import Turns

        self._options = options = owner.options
        self._program = program = Program(source, owner.where, day)
        syntax = program.syntax
        self.reader = RecordReader(options, parts=syntax.reads_parts, none=syntax.asks_for_none)
        self._rules = Rules(
            options.loss_on_eot, options.loss_on_thinking, options.loss_on_empty_thinking
        )
        self._seen = self._held = 0
        self._roles = _roles(options)
        self.reads = program.reads
        tokens = {name for name in self.reads if name.endswith("os_token")}
        unknown = tokens - set(owner.variables)
        if owner.template.tokens is None and unknown:
            name = min(unknown)
            raise UsageError(
                f"{owner.where}: the chat template writes {name}, and no tokenizer_config.json "
                f"says what that is: add {option('template_var', f'{name}=...')}"
            )
        self._turns = Turns(program, owner.variables)
        self._ends = self._turns.ends
        self._tagged = syntax.generation

    def steps(self, conversation: Conversation, variables: Mapping[str, Any]) -> _Steps:
        """The conversation as text, in several where its turns are split."""
        if conversation.variables:
            variables = {**variables, **conversation.variables}
        messages, budget = conversation.messages, self._program.budget
        budget.reset()
        whole = self._turns.render(messages, variables)
        if self._held < _HELD:
            self._hold(whole.text, messages, variables)
        spent = budget.left, budget.messages
        yield
        budget.left, budget.messages = spent
        answers, others = self._selected(conversation)
        if self._options.loss == "all":
            return [self._rendered(whole, conversation, [(0, len(whole.text))], answers)]
        try:
            owns = self._answers(whole, messages, answers, variables)
        except ConversationError as error:
            if error.reason == REWRITTEN and self._options.rewriting == "split":
                return self._split(conversation, answers, variables)
            raise
        spans = self._others(whole, messages, others, variables) if others else []
        if self._tagged:
            spans += self._generated(whole, messages, answers)
        for i, answer in owns.items():
            spans += self._trained(whole, messages, i, answer, variables)
        return [self._rendered(whole, conversation, spans, answers)]

    def _hold(self, text: str, messages: Messages, variables: Mapping[str, Any]) -> None:
        """Hold a text against that of jinja2 alone. TokpackError where they differ."""
        self._held += 1
        plain = self._program.plain_text(messages, variables)
        if plain != text:
            at = next(
                (i for i, pair in enumerate(zip(text, plain, strict=False)) if pair[0] != pair[1]),
                0,
            )
            raise TokpackError(
                f"the chat template gives another text in tokpack than in jinja2, from character "
                f"{at} on: {brief(text[at:])} for {brief(plain[at:])}. This is a fault of tokpack: "
                "please report it with this template"
            )

    def _selected(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """The messages that are to be trained: answers of an assistant, and others."""
        messages, first = conversation.messages, conversation.first_trained
        roles = [one["role"] for one in messages]
        chosen = [i for i, role in enumerate(roles) if role in self._roles]
        if self._options.loss == "last":
            chosen = chosen[-1:]
        untrained = conversation.untrained
        chosen = [i for i in chosen if i >= first and i not in untrained]
        if self._roles == _ASSISTANT:
            return chosen, []
        answers = [i for i in chosen if roles[i] == "assistant"]
        return answers, [i for i in chosen if roles[i] != "assistant"]

    def _answers(
        self, whole: Text, messages: Messages, answers: list[int], variables: Mapping[str, Any]
    ) -> dict[int, Answer]:
        """What answers have added to the text; nothing where the template says that itself."""
        turns, as_is = self._turns, self._options.rewriting == "as-is"
        if self._tagged:
            for i in () if as_is else answers:
                turns.check_kept(whole, messages, i, variables)
            return {}
        if as_is:
            return {i: turns.as_written(whole, messages, i, variables) for i in answers}
        by_message = turns.answers(whole, messages, answers, variables)
        self._seen += 1
        if self._seen <= _ALWAYS_CHECKED or not len(whole.text) % _ONE_IN:
            self._check(whole, messages, variables, by_message)
        return by_message

    def _check(
        self,
        whole: Text,
        messages: Messages,
        variables: Mapping[str, Any],
        by_message: Mapping[int, Answer],
    ) -> None:
        """Hold what one render says against the definition, for some of the answers.

        TokpackError where they differ, which a template that this module knows cannot bring about.
        """
        several = [i for i in by_message if i]
        for i in {*several[:1], *several[len(several) // 2 :][:1], *several[-1:]}:
            expected = self._turns.answer(whole, messages, i, variables)
            if by_message[i] != expected:
                raise TokpackError(
                    f"the turn of message {i} is at {expected[:2]} by the conversation's "
                    f"beginning, and at {by_message[i][:2]} in the whole: this is a fault of "
                    f"tokpack with this chat template; the text is {brief(whole.text)}"
                )

    def _trained(
        self,
        whole: Text,
        messages: Messages,
        i: int,
        answer: Answer,
        variables: Mapping[str, Any],
    ) -> list[Span]:
        """The trained spans of an answer."""
        if answer.begin == answer.end and (not whole.turns or whole.turns[i] in (None, answer[:2])):
            return []  # nothing of it is written
        span = trained(whole.text, answer[:2], self._ends, self._rules, answer.closing)
        turn = whole.turns[i] if whole.turns else None
        if turn is not None and span[1] > turn[1]:
            whole.turns[i] = turn[0], span[1]  # type: ignore[index] # the token behind belongs to it
        header = self._turns.header
        if header not in ("", HARMONY) and whole.text.find(header, *span) >= 0:
            text = whole.text[slice(*span)]
            if json.dumps(header)[1:-1] not in json.dumps(messages[i]):
                raise ConversationError(OUTSIDE, f"{brief(text)} has the beginning of an answer")
        if "tool_calls" in messages[i] and not self._options.loss_on_tool_calls:
            hole = self._turns.without_calls(messages, i, answer, whole, variables)
            return without(span, hole)
        return [span]

    def _others(
        self, whole: Text, messages: Messages, others: list[int], variables: Mapping[str, Any]
    ) -> list[Span]:
        """What others than assistants say, with the tokens that end their turns."""
        spans = self._turns.said(whole, messages, others, variables)
        behind = self._ends.behind if self._rules.eot else lambda text, end: end
        return [(begin, behind(whole.text, end)) for begin, end in spans]

    def _generated(self, whole: Text, messages: Messages, answers: list[int]) -> list[Span]:
        """The generation blocks in the turns of answers. ConversationError."""
        every = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        turns = [(0, len(whole.text))]
        if answers != every:
            if answers and whole.turns is None:
                raise not_found(answers[0])  # it is not known which block is whose
            turns = [turn for i in answers if (turn := (whole.turns or ())[i]) is not None]
        spans: list[Span] = []
        for begin, end in whole.generations:
            if any(first <= begin < last for first, last in turns):
                ends = _NO_ENDS if self._rules.eot else self._ends
                spans.append(trained(whole.text, (begin, end), ends, self._rules))
        return spans

    def _split(
        self, conversation: Conversation, answers: list[int], variables: Mapping[str, Any]
    ) -> list[Rendered]:
        """A text for each answer, that of the messages up to it, of which the answer is trained."""
        rendered = []
        for i in answers:
            messages = conversation.messages[: i + 1]
            whole, answer = self._turns.alone(messages, variables)
            if self._tagged:
                spans = self._generated(whole, messages, [i])
            else:
                spans = self._trained(whole, messages, i, answer, variables)
            rendered.append(self._rendered(whole, conversation, spans, [i]))
        return rendered

    def _rendered(
        self, whole: Text, conversation: Conversation, spans: list[Span], answers: list[int]
    ) -> Rendered:
        messages, text = conversation.messages, whole.text
        turns = [
            (*span, message["role"])
            for span, message in zip(whole.turns or (), messages, strict=False)
            if span is not None and span[0] < span[1]
        ]
        thoughts = 0
        for i in answers:
            if len(messages[i]) > 2 or "</think>" in (messages[i].get("content") or ""):
                turn = whole.turns[i] if whole.turns else None
                thoughts += _drops_thinking(text, turn or (0, len(text)), messages[i], i)
        unwritten = _unwritten(whole, messages) if len(turns) < len(messages) else 0
        weight = conversation.weight
        kept = joined(spans) if weight else ()
        return Rendered(text, kept, turns, weight, thoughts, unwritten)


def _unwritten(whole: Text, messages: Messages) -> int:
    """How many messages have no turn in the text, and what they say is nowhere in it."""
    return sum(
        (turn is None or turn[0] == turn[1])
        and isinstance(message.get("content"), str)
        and message["content"].strip() not in whole.text
        for turn, message in zip(whole.turns or (), messages, strict=False)
    )


def _drops_thinking(text: str, turn: Span, message: Mapping[str, Any], i: int) -> bool:
    """Whether the thinking of an answer is not in its turn.

    ConversationError where its tool calls are not: what is left of it would be learned.
    """
    calls = [*(message.get("tool_calls") or ()), message.get("function_call")]
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        names = [function.get("name"), call.get("id")] if isinstance(function, dict) else []
        if names and not any(isinstance(one, str) and text.find(one, *turn) >= 0 for one in names):
            raise ConversationError(
                "tool calls are not written",
                f"the template leaves out the call of {brief(names[0])} in message {i}: the rest "
                f"would be learned as its answer: give a template for tools, "
                f"{option('chat_template', 'FILE')}, or leave such records out",
            )
    thought = message.get("reasoning_content")
    if thought is None and isinstance(message.get("content"), str):
        thought = thinking(message["content"])[0]
    return isinstance(thought, str) and text.find(thought.strip(), *turn) < 0


def _roles(options: ChatOptions) -> frozenset[str]:
    """The roles that are trained. UsageError for one that nobody has."""
    if options.loss in ("assistant", "last", "all"):
        return _ASSISTANT
    roles = frozenset(part.strip() for part in options.loss.split(","))
    unknown = roles - _ROLES - set(options.role_map.values())
    if unknown:
        raise UsageError(
            f"{option('loss', options.loss)}: the role {min(unknown)!r} is unknown: use "
            f"assistant, last, all, or roles of {', '.join(sorted(_ROLES))} with commas between"
        )
    return roles
