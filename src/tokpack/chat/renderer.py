"""Records -> rendered conversations, with what is trained of them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, cast

from tokpack.chat.records import RecordReader
from tokpack.chat.rendered import TOO_MUCH, UNSAFE, ConversationError, Rendered, Turn
from tokpack.chat.spans import Ends, Rules, joined, trained, without
from tokpack.chat.template import ChatTemplate
from tokpack.chat.turns import REWRITTEN, Own, Text, Turns, advice
from tokpack.display import brief
from tokpack.errors import TokpackError, UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from tokpack.chat.options import ChatOptions
    from tokpack.chat.program import Program
    from tokpack.chat.records import Conversation
    from tokpack.chat.spans import Span

_ALWAYS_CHECKED = 16  # conversations at first of which turns are also found by definition
_ONE_IN = 512  # and later ones
_ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function"])


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
            from tokpack.chat.sandbox import day_of
        day = day_of(options.variables.get("date"))
        self._variables: dict[str, Any] = {
            **(template.tokens or {}),
            "tools": None,
            "documents": None,
            **options.variables,
        }
        self._plain = _Rendering(template.source, self, day)
        self._with_tools = (
            self._plain if template.tool_use is None else _Rendering(template.tool_use, self, day)
        )

    def __reduce__(self) -> tuple[type[Renderer], tuple[ChatTemplate, ChatOptions]]:
        return type(self), (self.template, self.options)

    def identity(self) -> dict[str, Any]:
        """What decides the text beside the records and the options, for a fingerprint."""
        import jinja2

        return {
            "template_sha256": self.template.digest,
            "jinja2": jinja2.__version__,
            "variables": {k: v for k, v in sorted(self._variables.items()) if v is not None},
        }

    @property
    def where(self) -> str:
        """The place of the template, for messages."""
        return self.template.where

    def render(self, record: Mapping[str, Any]) -> list[Rendered]:
        """A record's conversation: one, two of a pair, several where rewritten turns are split.

        Raises ConversationError, with one of a few reasons.
        """
        found = []
        for conversation in self._plain.reader.read(record):
            has_tools = conversation.variables.get("tools") is not None
            rendering = self._with_tools if has_tools else self._plain
            found.append(rendering.render(conversation, self._variables))
        if len(found) == 1:
            return found[0]
        if any(len(one) != 1 for one in found):
            raise ConversationError(
                REWRITTEN, "an answer of a pair cannot be split; choose rewriting as-is"
            )
        return [one for several in found for one in several]


class _Rendering:
    """One template at work."""

    def __init__(self, source: str, owner: Renderer, day: date | None) -> None:
        with needs_extra("chat"):
            from tokpack.chat.program import Program

        self._options = options = owner.options
        self._program = program = Program(source, owner.where, day)
        self._turns = Turns(program)
        self.reader = RecordReader(
            options, parts=program.reads_parts, text_arguments=program.reads_arguments_as_text
        )
        self._rules = Rules(
            options.loss_on_eot, options.loss_on_thinking, options.loss_on_empty_thinking
        )
        self._seen = 0
        self._roles = _roles(options)
        unknown = program.special_tokens - set(owner._variables)
        if owner.template.tokens is None and unknown:
            name = min(unknown)
            raise UsageError(
                f"{owner.where}: the chat template writes {name}, and no tokenizer_config.json "
                f"says what that is: add {option('template_var', f'{name}=...')}"
            )
        self._ends = Ends(_ends(program, self._turns, owner._variables))

    def render(self, conversation: Conversation, variables: Mapping[str, Any]) -> list[Rendered]:
        """The conversation as text, in several where its turns are split."""
        if conversation.variables:
            own = conversation.variables
            chosen = {k: v for k, v in own.items() if k not in ("tools", "documents")}
            variables = {**variables, **own, "chat_template_kwargs": chosen}
        messages = conversation.messages
        self._program.budget.reset(_characters(messages))
        whole = self._turns.render(messages, variables)
        if self._options.loss == "all":
            spans = [(0, len(whole.text))] if whole.text else []
            return [self._rendered(whole, messages, spans, conversation)]
        answers, others = self._selected(conversation)
        owns = self._owns(whole, messages, answers, variables)
        if owns is None:
            return self._split(conversation, answers, variables)
        spans = [span for i in others for span in self._said(whole, messages, i)]
        if self._program.generation:
            spans += self._generated(whole, messages, answers)
        for i, answer in owns.items():
            spans += self._trained(answer, messages, i, variables)
        return [self._rendered(whole, messages, spans, conversation)]

    def _selected(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """The messages that are to be trained: answers of an assistant, and others."""
        messages = conversation.messages
        chosen = [
            i
            for i in range(conversation.first_trained, len(messages))
            if messages[i]["role"] in self._roles and messages[i].get("weight") != 0
        ]
        if self._options.loss == "last":
            chosen = chosen[-1:]
        answers = [i for i in chosen if messages[i]["role"] == "assistant"]
        return answers, [i for i in chosen if i not in answers]

    def _owns(
        self, whole: Text, messages: list[Any], answers: list[int], variables: Mapping[str, Any]
    ) -> dict[int, Own] | None:
        """What the answers add to the text; None where they are to be split.

        Nothing where the template says itself what is generated.
        """
        turns, rewriting = self._turns, self._options.rewriting
        tagged = self._program.generation
        if tagged and (whole.plain or rewriting == "as-is"):
            return {}
        if whole.plain:
            found = {i: turns.by_marks(whole, messages, i, variables) for i in answers}
            if all(found.values()):
                self._check(whole, messages, variables, found)
                return cast("dict[int, Own]", found)
        if rewriting == "as-is":
            found = {i: turns.as_written(whole, messages, i, variables) for i in answers}
            if all(found.values()):
                return cast("dict[int, Own]", found)
        try:
            return self._by_beginnings(whole, messages, answers, variables)
        except ConversationError as error:
            if error.reason == REWRITTEN and rewriting == "split":
                return None
            raise

    def _by_beginnings(
        self, whole: Text, messages: list[Any], answers: list[int], variables: Mapping[str, Any]
    ) -> dict[int, Own]:
        """As `_owns`, by definition. ConversationError where a turn is rewritten."""
        owns: dict[int, Own] = {}
        for i in answers:
            if self._program.generation:
                up_to = self._turns.beginning(whole, messages, i, variables)
                beginning = up_to.text[: up_to.end]
            else:
                owns[i] = self._turns.by_beginnings(whole, messages, i, variables)
                beginning = owns[i].text[: owns[i].end]
            if not whole.text.startswith(beginning):
                raise ConversationError(REWRITTEN, advice(i))
        return owns

    def _check(
        self,
        whole: Text,
        messages: list[Any],
        variables: Mapping[str, Any],
        found: Mapping[int, Own | None],
    ) -> None:
        """Hold what one render says against the definition, for the first conversations and some.

        TokpackError where they differ, which a template that this module knows cannot bring about.
        """
        self._seen += 1
        if (
            self._seen > _ALWAYS_CHECKED
            and zlib.crc32(whole.text[-512:].encode(errors="replace")) % _ONE_IN
        ):
            return
        several = list(found.items())
        for i, own in {*several[:1], *several[len(several) // 2 :][:1], *several[-1:]}:
            expected = self._turns.by_beginnings(whole, messages, i, variables)
            beginning = expected.text[: expected.end]
            if own is None or own.span != expected.span or not whole.text.startswith(beginning):
                raise TokpackError(
                    f"the turn of message {i} is at {expected.span} by the conversation's "
                    f"beginning, and at {own and own.span} in the whole: this is a fault of "
                    f"tokpack with this chat template; the text is {brief(whole.text)}"
                )

    def _trained(
        self, own: Own, messages: list[Any], i: int, variables: Mapping[str, Any]
    ) -> list[Span]:
        """The trained spans of an answer."""
        begin, end = own.span
        if i == len(messages) - 1 and not self._ends.found(own.text, begin, end):
            end = len(own.text)  # what ends the turn may be what ends the text
        spans = trained(own.text, (begin, end), self._ends, self._rules, opened=own.opened)
        if messages[i].get("tool_calls") and not self._options.loss_on_tool_calls:
            spans = without(spans, self._calls(own, messages, i, variables))
        return spans

    def _calls(self, own: Own, messages: list[Any], i: int, variables: Mapping[str, Any]) -> Span:
        """Where the tool calls of an answer are: what the same answer without them lacks."""
        bare = {key: value for key, value in messages[i].items() if key != "tool_calls"}
        bare.setdefault("content", "")
        text = self._program.run([*messages[:i], bare], variables)
        begin, end = own.span
        last, _ = self._ends.trim(own.text, begin, end)
        stop, _ = self._ends.trim(text, min(begin, len(text)), len(text))
        same = text[begin:stop]
        return (begin + len(same), last) if own.text.startswith(same, begin) else (begin, last)

    def _said(self, whole: Text, messages: list[Any], i: int) -> list[Span]:
        """What somebody else says: from where the message's content begins."""
        turn = whole.turns[i] if whole.turns else None
        if turn is None:
            raise ConversationError(
                "a turn is not found", f"the template does not show where message {i} begins"
            )
        content = messages[i].get("content")
        said = content.strip() if isinstance(content, str) else ""
        begin = max(whole.text.find(said, *turn), turn[0])
        last, with_token = self._ends.trim(whole.text, begin, turn[1])
        end = with_token if self._rules.eot else last
        return [(begin, end)] if begin < end else []

    def _generated(self, whole: Text, messages: list[Any], answers: list[int]) -> list[Span]:
        """The generation blocks in the turns of answers."""
        every = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        chosen = None if answers == every or whole.turns is None else answers
        spans: list[Span] = []
        for begin, end in whole.generations:
            inside = chosen is None or any(
                turn is not None and turn[0] <= begin < turn[1]
                for turn in (whole.turns[i] for i in chosen)  # type: ignore[index]
            )
            if inside:
                spans += trained(
                    whole.text,
                    (begin, end),
                    _NO_ENDS if self._rules.eot else self._ends,
                    self._rules,
                )
        return spans

    def _split(
        self, conversation: Conversation, answers: list[int], variables: Mapping[str, Any]
    ) -> list[Rendered]:
        """A text for each answer, that of the messages up to it, of which the answer is trained."""
        found = []
        for i in answers:
            messages = conversation.messages[: i + 1]
            whole, own = self._turns.alone(messages, variables)
            if self._program.generation:
                spans = self._generated(whole, messages, [i])
            else:
                spans = self._trained(own, messages, i, variables)
            found.append(self._rendered(whole, messages, spans, conversation))
        return found

    def _rendered(
        self, whole: Text, messages: list[Any], spans: list[Span], conversation: Conversation
    ) -> Rendered:
        turns = tuple(
            Turn(span[0], span[1], message["role"])
            for span, message in zip(whole.turns or (), messages, strict=False)
            if span is not None and span[0] < span[1]
        )
        return Rendered(whole.text, joined(spans), turns, conversation.weight)


_NO_ENDS = Ends(())
_CALL = "<|call|>"  # of harmony: it ends a call, and other tokens end texts


def _roles(options: ChatOptions) -> frozenset[str]:
    """The roles that are trained. UsageError for one that nobody has."""
    if options.loss in ("assistant", "last", "all"):
        return frozenset(["assistant"])
    roles = frozenset(part.strip() for part in options.loss.split(","))
    unknown = roles - _ROLES - set(options.role_map.values())
    if unknown:
        raise UsageError(
            f"{option('loss', options.loss)}: the role {min(unknown)!r} is unknown: use "
            f"assistant, last, all, or roles of {', '.join(sorted(_ROLES))} with commas between"
        )
    return roles


def _characters(messages: list[Any]) -> int:
    total = 0
    for message in messages:
        for value in message.values():
            total += len(value) if value.__class__ is str else 100
            if isinstance(value, list | dict):
                total += len(str(value))
    return total


def _ends(program: Program, turns: Turns, variables: Mapping[str, Any]) -> list[str]:
    """The end-of-turn tokens: what the template writes behind an answer, by trying."""
    said = "unlike anything 7351"
    question, answer = ({"role": "user", "content": "?"}, {"role": "assistant", "content": said})
    found = [str(variables.get("eos_token") or "").strip()]
    if _CALL in program.source:
        found.append(_CALL)
    for messages in ([question, answer], [question, answer, dict(question), dict(answer)]):
        program.budget.reset(1000)
        try:
            whole = turns.render(messages, variables)
        except ConversationError as error:
            if error.reason in (TOO_MUCH, UNSAFE):
                raise UsageError(f"{program.where}: {error}") from None
            continue
        spans = [(0, len(whole.text))] if whole.turns is None else whole.turns[1::2]
        tails = [whole.text[: s[1]].rpartition(said)[2].strip() for s in spans if s is not None]
        found += tails if any(tails) else [whole.text.rpartition(said)[2].strip()]
    return found
