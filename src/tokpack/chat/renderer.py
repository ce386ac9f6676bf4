"""Records -> rendered conversations, with the spans of trained text."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from tokpack.apart import Limits
from tokpack.chat.calls import are_written, calls_of, have_calls, with_arguments, with_calls
from tokpack.chat.marks import HARMONY, Answer, Marks, Rules, joined, thinking, trained, without
from tokpack.chat.records import MALFORMED, REASONING, RecordReader
from tokpack.chat.rendered import (
    NO_VARIABLES,
    OUTSIDE,
    REWRITTEN,
    ConversationError,
    Rendered,
    not_found,
)
from tokpack.chat.template import ChatTemplate
from tokpack.display import brief
from tokpack.errors import TokpackError, UsageError, needs_extra, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from tokpack.chat.marks import Part, Span
    from tokpack.chat.records import Conversation, Message
    from tokpack.chat.rendered import ChatOptions
    from tokpack.chat.sandbox import Text

    Messages = Sequence[Message]


@dataclass(eq=False)
class Document:
    """A conversation as text while it is being made, and the places of its messages in it.

    ``again`` renders other messages instead, with some variables. ``answers`` are the assistant
    messages to train, ``others`` those of other roles. Unwritten messages are counted from
    ``first`` on, because an earlier document has counted the ones before. ``begins`` are where
    trained answers begin.
    """

    whole: Text
    conversation: Conversation
    answers: Sequence[int]
    others: Sequence[int]
    again: Callable[[Messages, Mapping[str, Any]], Text]
    first: int = 0
    begins: list[int] = field(default_factory=list)
    unstopped: int = 0

    def __post_init__(self) -> None:
        self.messages, self._first_text = self.whole.messages, self.whole.text

    @cached_property
    def marks(self) -> Marks | None:
        """The places of contents, thoughts and calls, or None if they cannot be found.

        Messages with just one text, trained as a whole, get no marks.
        """
        marks, parts = Marks(), self.conversation.parts
        marked = [
            _marked(marks, i, message, parts.get(i, {}))
            if i in self.conversation.special or i in self.others
            else message
            for i, message in enumerate(self.messages)
        ]
        try:
            text = marks.read(self.again(marked, self.whole.variables).text)
        except ConversationError:
            return None
        return marks if text == self._first_text else None

    def calls(self, i: int) -> list[list[int]]:
        """The places of each call of a message: of its marks, or else of a unique id."""
        calls, text, turn = calls_of(self.messages[i]), self.whole.text, self.whole.turn(i)
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
        """The spans of the parts of a message that are not trained. ConversationError."""
        spans: list[Span] = []
        for key, parts in self.conversation.parts[i].items():
            found = [] if self.marks is None else self.marks.spans(("untrained", (key, i)))
            wanted = sum(not is_trained and text.strip() != "" for text, is_trained in parts)
            if len(found) != wanted or any(begin == end for begin, end in found):
                raise ConversationError(
                    MALFORMED,
                    f"message {i} has a part of its {key} that is not trained, and its place in "
                    "the rendered text is not known: set train to 0 for the whole message, or put "
                    "its thinking into a part of its own",
                )
            spans += found
        return spans

    def check_thoughtless(self, i: int, spans: list[Span]) -> None:
        """Raise ConversationError if the thinking of message i would be trained by mistake."""
        thought = str(self.messages[i].get("reasoning_content") or "").strip()
        if not any(thought and self.whole.text.find(thought, *one) >= 0 for one in spans):
            return
        found = spans if self.marks is None else self.marks.spans(("reasoning_content", i))
        if any(b < last and first < e for b, e in found for first, last in spans):
            raise ConversationError(
                OUTSIDE,
                f"the thinking of message {i}, {brief(thought)}, must not be trained, but the "
                "template writes it between unknown marks: in a copy of the template, put "
                "{% generation %} and {% endgeneration %} around what is trained",
            )

    def drops_thinking(self, i: int) -> bool:
        """Whether the thinking of an answer is missing in its turn.

        ConversationError if its calls are missing: the rest would be trained as the answer.
        """
        message, text = self.messages[i], self.whole.text
        if have_calls(message) and (name := self._missing_call(i)):
            raise ConversationError(
                "tool calls are not written",
                f"the template leaves out the call of {brief(name)} in message {i}: the rest "
                "would be trained as its answer: give a template for tools, "
                f"{option('chat_template', 'FILE')}, or leave such records out",
            )
        content = message.get("content") or ""
        thought = message.get("reasoning_content") if len(message) > 2 else None
        if thought is None and isinstance(content, str) and "</think>" in content:
            thought = thinking(content)[0]
        turn = self.whole.turn(i) or (0, len(text))
        return isinstance(thought, str) and text.find(thought.strip(), *turn) < 0

    def _missing_call(self, i: int) -> str | None:
        """The name of an unwritten call of a message, or None."""
        message, text, turn = self.messages[i], self.whole.text, self.whole.turn(i)
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
        """Whether the text of a message beside its calls is missing."""
        text, turn, message = self.whole.text, self.whole.turn(i), self.messages[i]
        said = [one for one in texts_of(message) if one.strip()] if have_calls(message) else []
        if not said or (turn is not None and are_written(text, turn, message)):
            return False
        if self.marks is None:
            return any(text.find(one.strip(), *(turn or (0, len(text)))) < 0 for one in said)
        return len(self.marks.spans(("content", i))) < len(said)

    def drops_message(self, i: int) -> bool:
        """Whether a message has no turn, and its content is nowhere in the text."""
        turn, content = (self.whole.turns or {i: None})[i], self.messages[i].get("content")
        has_none = turn is None or turn[0] == turn[1]
        return has_none and isinstance(content, str) and content.strip() not in self.whole.text


def texts_of(message: Message) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content") or []
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _marked(marks: Marks, i: int, message: Message, parts: Mapping[str, list[Part]]) -> Message:
    """A message with marks in its content, its thinking and its calls."""
    numbers = count()
    marked = with_calls(message, lambda one: marks.call(one, ("call", i, next(numbers))))
    for key in ("content", "reasoning_content"):
        if key in message:
            marked[key] = marks.content(message[key], (key, i), parts.get(key, ()))
    for key in REASONING[1:]:
        if key in message:
            marked[key] = marked["reasoning_content"]
    return marked


_ALWAYS_CHECKED = 16  # first conversations whose turns are also found by the definition
_HELD = 4  # first conversations that are also rendered by jinja2 alone
_ONE_IN = 509  # later, turns are checked in one of this many, chosen by length
_TOGETHER = 32  # records that take each step together
_ASSISTANT = frozenset(["assistant"])
_ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function"])

_Steps = Generator[None, None, list[Rendered]]


class Renderer:
    """Renders records with a template. It belongs to one thread, and can be pickled.

    ``template`` is that of `load_template`, or a template's text. UsageError if it cannot be used
    at all. ``limits`` are told which record is rendered.
    """

    def __init__(
        self, template: ChatTemplate | str, options: ChatOptions, limits: Limits | None = None
    ) -> None:
        if isinstance(template, str):
            template = ChatTemplate(template)
        self.template, self.options, self.limits = template, options, limits or Limits()
        with needs_extra("chat"):
            from tokpack.chat.sandbox import day_of
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
        """All that determines the text besides records and options, for a fingerprint."""
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
        """The conversations of a record: one, two for a pair, several if turns are split.

        Raises ConversationError.
        """
        (result,) = self.render_all([record])
        if isinstance(result, ConversationError):
            raise result
        return result

    def render_all(
        self,
        records: Iterable[Mapping[str, Any]],
        numbers: Iterable[int] | None = None,
    ) -> Iterator[list[Rendered] | ConversationError]:
        """The result of `render` for each record, or the error that it raises.

        Each record has a number, for `Limits`; by default they count from 1.

        Records take each step in groups: the code of one step fits into the processor's cache, that
        of all steps does not.
        """
        at = self.limits.at
        left = zip(count(1) if numbers is None else numbers, records, strict=False)
        while together := list(islice(left, _TOGETHER)):
            results: dict[int, list[Rendered] | ConversationError] = {}
            waiting = [(number, self._steps(record)) for number, record in together]
            while waiting:
                following = []
                for number, steps in waiting:
                    at(number)
                    try:
                        next(steps)
                    except StopIteration as end:
                        results[number] = end.value
                    except ConversationError as error:
                        results[number] = error
                    except (TokpackError, MemoryError):
                        raise
                    except Exception as error:  # objects in a record may raise anything
                        what = f"{type(error).__name__}: {error}"
                        results[number] = ConversationError(MALFORMED, what)
                    else:
                        following.append((number, steps))
                waiting = following
            yield from (results[number] for number, _ in together)

    def _steps(self, record: Mapping[str, Any]) -> _Steps:
        """`render` for a record, step by step."""
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
    """The rendering of conversations by one template."""

    def __init__(self, source: str, owner: Renderer, day: date | None) -> None:
        with needs_extra("chat"):
            from tokpack.chat.program import Program
            from tokpack.chat.turns import Turns

        self._options = options = owner.options
        self._program = program = Program(source, owner.where, day)
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
                f"{owner.where}: the chat template writes {name}, but no tokenizer_config.json "
                f"defines it: add {option('template_var', f'{name}=...')}"
            )
        self._turns = Turns(program, owner.variables)
        self._ends = self._turns.ends
        program.limits = owner.limits  # only now, so that all trials count as one step of work
        none = self._turns.takes_none
        self.reader = RecordReader(options, parts=self._turns.parts, none=none)
        self._tagged = program.syntax.generation
        taken, asked = self._turns.arguments, options.tool_arguments
        self._arguments = taken if asked == "auto" else asked

    def steps(self, conversation: Conversation, variables: Mapping[str, Any]) -> _Steps:
        """The conversation as text, in several texts if its turns are split."""
        if conversation.variables:
            variables = {**variables, **conversation.variables}
        messages = conversation.messages
        for i in conversation.special if self._arguments != "as-is" else ():
            if have_calls(messages[i]):
                as_taken = partial(with_arguments, kind=self._arguments, i=i)
                messages[i] = with_calls(messages[i], as_taken)
        whole = self._turns.render(messages, variables)
        if self._held < _HELD:
            self._hold(whole)
        yield
        options = self._options
        answers, others = self._selected(conversation)
        document = Document(whole, conversation, answers, others, self._turns.render)
        if options.append_eot:
            self._close(document)
        if options.loss == "all":
            return [self._rendered(document, [(0, len(whole.text))])]
        try:
            owns = self._answers(whole, answers)
        except ConversationError as error:
            if error.reason == REWRITTEN and options.rewriting == "split":
                return self._split(document)
            raise
        spans = self._said(document) if others else []
        if self._tagged:
            spans += self._generated(document)
        for i, answer in owns.items():
            spans += self._trained(document, i, answer)
        return [self._rendered(document, spans)]

    def _hold(self, whole: Text) -> None:
        """Compare a text with jinja2's alone. TokpackError if they differ."""
        self._held += 1
        text, plain = whole.text, self._program.plain_text(whole.messages, whole.variables)
        if plain != text:
            at = next(
                (i for i, pair in enumerate(zip(text, plain, strict=False)) if pair[0] != pair[1]),
                0,
            )
            raise TokpackError(
                "the chat template gives another text in tokpack than in jinja2, from character "
                f"{at} on: {brief(text[at:])} instead of {brief(plain[at:])}. This is a defect in "
                "tokpack: please report it with this template"
            )

    def _selected(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """The numbers of the messages to train: answers of an assistant, and others."""
        messages, first = conversation.messages, conversation.first_trained
        chosen = [i for i, one in enumerate(messages) if one["role"] in self._roles]
        if self._options.loss == "last":
            chosen = chosen[-1:]
        untrained = conversation.untrained
        if first or untrained:
            chosen = [i for i in chosen if i >= first and i not in untrained]
        if self._roles is _ASSISTANT:
            return chosen, []
        answers = [i for i in chosen if messages[i]["role"] == "assistant"]
        return answers, [i for i in chosen if i not in answers]

    def _answers(self, whole: Text, answers: list[int]) -> dict[int, Answer]:
        """The text of each answer; {} if the template's generation blocks show it."""
        turns, as_is = self._turns, self._options.rewriting == "as-is"
        if self._tagged:
            for i in () if as_is else answers:
                turns.check_kept(whole, i)
            return {}
        if as_is:
            return {i: turns.as_written(whole, i) for i in answers}
        by_message = turns.answers(whole, answers)
        self._seen += 1
        # Some answers found in the single render are compared with the definition.
        is_checked = self._seen <= _ALWAYS_CHECKED or not len(whole.text) % _ONE_IN
        several = [i for i in answers if i] if is_checked else []
        for i in {*several[:1], *several[len(several) // 2 :][:1], *several[-1:]}:
            expected = turns.answer(whole, i)
            if by_message[i] != expected:
                raise TokpackError(
                    f"the turn of message {i} is at {expected[:2]} by the conversation's "
                    f"beginning, and at {by_message[i][:2]} in the whole: this is a defect "
                    f"in tokpack with this chat template; the text is {brief(whole.text)}"
                )
        return by_message

    def _trained(self, document: Document, i: int, answer: Answer) -> list[Span]:
        """The trained spans of an answer."""
        whole, (begin, end, closing) = document.whole, answer
        turn = whole.turn(i)
        if begin == end and (turn is None or turn == (begin, end)):
            return []  # the template has written nothing for it
        rules = self._rules_of(document, i)
        last, with_token = self._ends.trim(whole.text, begin, end)
        span = begin, with_token if rules.eot else last
        span = trained(whole.text, span, rules, closing)
        if turn is not None and span[1] > turn[1]:
            whole.turns[i] = turn[0], span[1]  # type: ignore[index] # the token behind belongs to it
        header = self._turns.header
        if header not in ("", HARMONY) and whole.text.find(header, *span) >= 0:
            text = whole.text[slice(*span)]
            if json.dumps(header)[1:-1] not in json.dumps(document.messages[i]):
                raise ConversationError(
                    OUTSIDE, f"{brief(text)} contains the beginning of an answer"
                )
        if span[0] < span[1]:
            document.begins.append(span[0])
            document.unstopped += last == with_token
        if i not in document.conversation.special:  # nearly all
            return [span]
        return self._without(document, i, [span], answer)

    def _rules_of(self, document: Document, i: int) -> Rules:
        is_thoughtless = i in document.conversation.thoughtless
        return self._rules._replace(thinking=False) if is_thoughtless else self._rules

    def _without(self, document: Document, i: int, spans: list[Span], own: Answer) -> list[Span]:
        """The spans of message i, without untrained calls and parts."""
        message = document.messages[i]
        if have_calls(message) and not self._options.loss_on_tool_calls:
            spans = without(spans, self._calls(document, i, own))
        if i in document.conversation.parts:
            spans = without(spans, document.untrained(i))
        if "reasoning_content" in message and not self._rules_of(document, i).thinking:
            document.check_thoughtless(i, spans)
        return spans

    def _calls(self, document: Document, i: int, own: Answer) -> list[Span]:
        """The spans of a message's calls in its text; all of it if they are unknown."""
        text, marks = document.whole.text, document.marks
        last, _ = self._ends.trim(text, own.begin, own.end)
        begin = thinking(text, own.begin, last, own.closing)[1]
        places = [place for of_call in document.calls(i) for place in of_call]
        if marks is None or not places:
            return [(begin, last)]
        calls = [place for place in places if begin <= place <= last]
        content = marks.spans(("content", i)) or [(begin, begin)]
        first, end = content[0][0], content[-1][1]
        before = [(begin, first)] if any(place <= first for place in calls) else []
        return before + ([(max(begin, end), last)] if any(place >= end for place in calls) else [])

    def _said(self, document: Document) -> list[Span]:
        """The texts of roles other than assistants, with their end-of-turn tokens."""
        text = document.whole.text
        behind = self._ends.behind if self._rules.eot else lambda text, end: end
        said: list[Span] = []
        for i in document.others:
            if not any(texts_of(document.messages[i])):
                continue
            spans = [] if document.marks is None else document.marks.spans(("content", i))
            if not spans:
                raise not_found(i)
            span = spans[0][0], behind(text, spans[-1][1])
            said += self._without(document, i, [span], Answer(*span))
        return said

    def _generated(self, document: Document) -> list[Span]:
        """The trained spans in the generation blocks of answers. ConversationError."""
        text, header, ends = document.whole.text, self._turns.header, self._ends
        spans: list[Span] = []
        own: dict[int, Span] = {}  # the last block of each answer
        special = document.conversation.special
        for i, block in self._blocks(document):
            begin, end = block
            if i not in own:
                document.begins.append(begin)
            own[i] = block
            if header and text.startswith(header, begin, end):
                # In some templates the block includes the beginning of the turn, before a thinking.
                begin += len(header)
            rules = self._rules_of(document, i)
            until = end if rules.eot else ends.trim(text, begin, end)[0]
            parts = [(block[0], begin), trained(text, (begin, until), rules)]
            if i in special:
                parts = self._without(document, i, parts, Answer(begin, end))
            spans += parts
        for begin, end in own.values():
            if not text.endswith(ends.tokens, begin, end):
                last, with_token = ends.trim(text, begin, end)
                document.unstopped += not last < with_token <= end
        return spans

    def _blocks(self, document: Document) -> Iterable[tuple[int, Span]]:
        """The generation blocks of answers, with the numbers of their messages."""
        turns, answers, blocks = document.whole.turns, document.answers, document.whole.generations
        every = [i for i, one in enumerate(document.messages) if one["role"] == "assistant"]
        if turns is None:
            if answers and answers != every:
                raise not_found(answers[0])  # unknown which message a block belongs to
            known = every if len(every) == len(blocks) else every[-1:] * len(blocks)
            return zip(known, blocks, strict=False)
        begins = [turns[i][0] for i in every if turns[i] is not None]  # type: ignore[index]
        if len(begins) < len(every):
            every = [i for i in every if turns[i] is not None]
        if not every:
            return ()
        owners = [every[max(bisect_right(begins, begin) - 1, 0)] for begin, _ in blocks]
        pairs = zip(owners, blocks, strict=True)
        if owners == answers:
            return pairs
        ends = [(turns[i] or (0, 0))[1] for i in owners]
        return [
            pair
            for pair, end in zip(pairs, ends, strict=True)
            if pair[0] in answers and (len(answers) == len(every) or pair[1][0] < end)
        ]

    def _close(self, document: Document) -> None:
        """Add the token that ends the last turn, if that is an answer without one."""
        whole, last = document.whole, document.messages[-1]
        if last["role"] != "assistant":
            return
        turn = whole.turns[-1] if whole.turns else (0, whole.end)
        if turn is None or self._ends.has(whole.text, *turn):
            return
        stop = self._turns.stop(whole.variables, with_calls=have_calls(last))
        whole.text = f"{whole.text[: turn[1]]}{stop}{whole.text[turn[1] :]}"
        if self._tagged and self._rules.eot:
            whole.generations.append((turn[1], turn[1] + len(stop)))

    def _split(self, together: Document) -> list[Rendered]:
        """A text for each answer: of the messages up to it, with only the answer trained."""
        rendered, done, alone = [], 0, self._turns.alone
        for i in together.answers:
            whole, answer = alone(together.messages[: i + 1], together.whole.variables)
            document = Document(
                whole, together.conversation, [i], (), lambda *again: alone(*again)[0], done
            )
            done = i + 1
            if self._options.append_eot:
                self._close(document)
            if self._tagged:
                spans = self._generated(document)
            else:
                spans = self._trained(document, i, answer)
            rendered.append(self._rendered(document, spans))
        return rendered

    def _rendered(self, document: Document, spans: list[Span]) -> Rendered:
        whole, messages = document.whole, document.messages
        turns = [
            (*span, message["role"])
            for span, message in zip(whole.turns or (), messages, strict=False)
            if span is not None and span[0] < span[1]
        ]
        special = document.conversation.special
        thoughts = unwritten = contents = 0
        for i in document.answers:
            if i in special or "</think>" in messages[i]["content"]:
                thoughts += document.drops_thinking(i)
        counted = range(document.first, len(messages))
        if special:
            contents = sum(document.drops_content(i) for i in special if i in counted)
        if len(turns) < len(messages):
            unwritten = sum(map(document.drops_message, counted))
        stops = document.unstopped if self._rules.eot else 0
        weight, begins = document.conversation.weight, document.begins
        kept = joined(spans) if weight else ()
        of_it = thoughts, unwritten, contents, stops
        return Rendered(whole.text, kept, turns, weight, begins, *of_it)


def _roles(options: ChatOptions) -> frozenset[str]:
    """The roles that are trained. UsageError for an unknown one."""
    if options.loss in ("assistant", "last", "all"):
        return _ASSISTANT
    roles = frozenset(part.strip() for part in options.loss.split(","))
    unknown = roles - _ROLES - set(options.role_map.values())
    if unknown:
        raise UsageError(
            f"{option('loss', options.loss)}: the role {min(unknown)!r} is unknown: use "
            f"assistant, last, all, or roles separated by commas: {', '.join(sorted(_ROLES))}"
        )
    return roles
