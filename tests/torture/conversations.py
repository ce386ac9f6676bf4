"""Made up conversations and templates: what is trained is what an assistant says, or it is refused.

    python -m torture.conversations --seed 1 --minutes 5

A seed is a template and some conversations. Most templates are made up of parts, which say where
each message is (`support.made_up_chats`); the others are published ones, some with a change, of
which transformers has to say so, one prefix at a time. In all of them characters that no template
knows tell who has written what.
"""

from __future__ import annotations

import random
import re
from datetime import date
from typing import TYPE_CHECKING, Any

import transformers
from support.chat_twin import DATE, FAMILIES, RewrittenError, UnpromptedError, spans_of
from support.made_up_chats import (
    ASSISTANT,
    CALLED,
    THOUGHT,
    USER,
    MadeUp,
    Marked,
    changed,
    marks_of,
    talk_of,
    template_of,
)

from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.marks import joined
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.errors import UsageError
from torture.made_up import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokpack.chat import Rendered

Span = tuple[int, int]

_TALKS = 6
_EMPTY_THINKING = re.compile(r"\s*<think>\s*</think>\s*")
_LONGEST = 60  # characters of a token that ends turns
_MARK = re.compile(r"<[^<>\s]{1,60}>")


def options_of(rng: random.Random) -> dict[str, Any]:
    """What is asked of a run."""
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["loss"] = rng.choice(
            ["last", "user", "tool", "user,assistant", "system,developer", "all"]
        )
    if rng.random() < 0.3:
        options["rewriting"] = rng.choice(["split", "as-is"])
    if rng.random() < 0.15:
        options["loss_on_eot"] = False
    return options


def text_by_transformers(source: str, messages: list[Any], tokens: Any, **more: Any) -> str:
    """What transformers makes of messages with a template, on the day of these tests."""
    module = transformers.utils.chat_template_utils
    template = module._compile_jinja_template(source)
    template.environment.globals["strftime_now"] = date.fromisoformat(DATE).strftime
    ((text,), _) = module.render_jinja_template(
        conversations=[module._normalize_chat_messages(messages)],
        chat_template=source,
        **tokens,
        **more,
    )
    return str(text)


def generations_of(source: str, messages: list[Any], tokens: Any, **more: Any) -> list[Span]:
    """What transformers says that is generated."""
    module = transformers.utils.chat_template_utils
    _, (found,) = module.render_jinja_template(
        conversations=[module._normalize_chat_messages(messages)],
        chat_template=source,
        return_assistant_tokens_mask=True,
        **tokens,
        **more,
    )
    return list(found)


def said_by(talk: list[Any]) -> list[Any]:
    """Messages whose contents are texts."""
    return [
        {**one, "content": "".join(part["text"] for part in one["content"])}
        if isinstance(one.get("content"), list)
        else one
        for one in talk
    ]


class WrongError(AssertionError):
    """Something is trained that should not be, or the other way round."""


class _Expected:
    """Characters of a text that have to be trained, and those that may be."""

    def __init__(self) -> None:
        self.needed: set[int] = set()
        self.allowed: set[int] = set()

    def add(self, begin: int, end: int, *, needed: bool = True) -> None:
        """Have [begin, end) trained, or have nothing against it."""
        self.allowed.update(range(begin, end))
        if needed:
            self.needed.update(range(begin, end))

    def compare(self, one: Rendered) -> None:
        """Raise WrongError where something else is trained."""
        got = {at for begin, end in one.trained for at in range(begin, end)}
        if not self.needed <= got <= self.allowed:
            missing, more = sorted(self.needed - got), sorted(got - self.allowed)
            raise WrongError(
                f"trained {[one.text[b:e] for b, e in one.trained]} of {one.text!r}: missing "
                f"{[one.text[i] for i in missing]} at {missing[:3]}, too much "
                f"{[one.text[i] for i in more]} at {more[:3]}"
            )


class MadeUpCase:
    """A made up template with options: what has to be trained in a conversation."""

    def __init__(self, made: MadeUp, options: dict[str, Any]) -> None:
        self.made = made
        self._loss = options.get("loss", "assistant")
        self._eot = options.get("loss_on_eot", True)
        self._split = options.get("rewriting") == "split"
        template = ChatTemplate(made.source, made.tokens)
        self.renderer = Renderer(template, ChatOptions(variables={"date": DATE}, **options))

    def compare(self, talk: list[Any], found: list[Rendered]) -> str:
        """Compare what a conversation was rendered to: what came of it."""
        talk = said_by(talk)
        wanted = wanted_of(talk, self._loss)
        answers = [i for i in wanted if talk[i]["role"] == "assistant"]
        text = self._text(talk)
        if not self._split or (len(found) == 1 and found[0].text == text):
            (one,) = found
            if one.text != text:
                raise WrongError(f"text {one.text!r} for {text!r}")
            self._compare(one, talk, wanted)
            return "equal"
        for one, i in zip(found, answers, strict=True):
            self._part(one, talk[: i + 1], i)
        return "split"

    def _text(self, talk: list[Any]) -> str:
        return text_by_transformers(self.made.source, talk, self.made.tokens)

    def _part(self, one: Rendered, talk: list[Any], i: int) -> None:
        """A document of one answer: only that is trained."""
        said = "".join(one.text[b:e] for b, e in one.trained)
        if USER in said:
            raise WrongError(f"a user's text is trained: {said!r} in {one.text!r}")
        if one.text == self._text(talk):
            self._compare(one, talk, [i])

    def _compare(self, one: Rendered, talk: list[Any], wanted: list[int]) -> None:
        expected, text = _Expected(), one.text
        if self._loss == "all":
            expected.add(0, len(text))
            expected.compare(one)
            return
        numbered = [{**message, "n": i} for i, message in enumerate(talk)]
        marked = text_by_transformers(self.made.marked, numbered, self.made.tokens)
        plain, marks = marks_of(marked)
        if plain != text:
            raise RuntimeError(f"made up wrongly: {plain!r} for {text!r}")
        if not self.made.tagged:
            for mark in marks:
                if mark.number in wanted:
                    self._expect(expected, text, mark, talk[mark.number])
            if not {"system", "developer"}.isdisjoint(self._loss.split(",")):
                expected.add(0, marks[0].begin if marks else len(text), needed=False)
        elif self._loss in ("assistant", "last"):
            self._generated(expected, text, talk, wanted, marks)
        else:
            return
        expected.compare(one)

    def _expect(self, expected: _Expected, text: str, mark: Marked, message: Any) -> None:
        """What a message says, with the token that ends its turn."""
        made, is_own = self.made, message["role"] == "assistant"
        begin, end, over = mark.begin, mark.end, mark.over
        if not is_own and not message.get("content"):
            expected.add(begin, over + _LONGEST, needed=False)
            return
        if is_own and (thought := _EMPTY_THINKING.match(text, begin, end)):
            begin = min(thought.end(), end)
        content, token = text[begin:end], text[end:over]
        # Such a token in the content may be taken for the one that ends the turn.
        is_sure = self._eot or not content.rstrip().endswith(made.ends)
        expected.add(begin, end, needed=is_sure and bool(content.strip()))
        expected.needed -= set(range(begin, end - len(content.lstrip())))  # perhaps the prompt's
        if is_own and not (made.prompt and made.is_prompted):  # its turn begins somewhere
            expected.add(max(0, mark.begin - 30), begin, needed=False)
        # A text that begins as the prompt does is taken for it.
        for one in {made.prompt, made.opened} if is_own else ():
            if content.startswith(one):
                expected.needed -= set(range(begin, begin + len(one)))
        if (
            "sort(" in made.source or "== 'assistant' %}{{ '</s>' }}" in made.source
        ):  # nobody knows which token ends a turn there
            expected.add(end, over + 5, needed=False)
        if self._eot and token.strip():
            expected.add(end, over, needed=is_own)
        elif not token.strip():  # there is none, or that of the next turn, or one in the text
            expected.needed -= set(range(begin + len(content.rstrip()), end))
            space = len(text[over:]) - len(text[over:].lstrip())
            expected.add(end, over + space, needed=False)
            follows = [one[0] for one in [_MARK.match(text, over)] if one]
            for one in (*follows, *made.ends, "END"):
                if text.startswith(one, over):
                    expected.add(over, over + len(one), needed=False)

    def _generated(
        self, expected: _Expected, text: str, talk: list[Any], wanted: list[int], marks: list[Any]
    ) -> None:
        """What blocks of generation have, as transformers says."""
        made = self.made
        generated = generations_of(made.source, talk, made.tokens)
        every = [i for i, m in enumerate(talk) if m["role"] == "assistant"]
        numbers = [m.number for m in marks if m.number in every]
        if len(numbers) != len(generated):
            if wanted != every:
                raise WrongError("it is not known whose block is trained")
            numbers = [every[0]] * len(generated)
        for i, (begin, end) in zip(numbers, generated, strict=True):
            if i not in wanted:
                continue
            thought = _EMPTY_THINKING.match(text, begin, end)
            first = thought.end() if thought else begin
            last = end if self._eot else max(first, first + len(text[first:end].rstrip()) - 15)
            expected.add(first, end, needed=False)
            expected.needed.update(at for at in range(first, last) if not text[at].isspace())


def wanted_of(talk: list[Any], loss: str) -> list[int]:
    """The messages that are to be trained."""
    roles = ["assistant"] if loss in ("assistant", "last") else loss.split(",")
    found = [i for i, one in enumerate(talk) if one["role"] in roles]
    return [i for i in (found[-1:] if loss == "last" else found) if not is_untrained(talk[i])]


def is_untrained(message: Any) -> bool:
    """Whether a message says so."""
    return message.get("weight") == 0 or message.get("train") is False


class PublishedCase:
    """A published template, perhaps changed: who has written what is trained."""

    def __init__(self, rng: random.Random, options: dict[str, Any]) -> None:
        self.family = rng.choice(FAMILIES)
        self.is_changed = rng.random() < 0.5
        source = self.family.source
        self.source = changed(rng, source) if self.is_changed else source
        for name in ("loss_on_thinking", "loss_on_tool_calls"):
            if rng.random() < 0.15:
                options[name] = False
        self.options = options
        template = ChatTemplate(self.source, self.family.tokens)
        self.renderer = Renderer(template, ChatOptions(variables={"date": DATE}, **options))

    def compare(self, talk: list[Any], found: list[Rendered]) -> str:
        """Compare what a conversation was rendered to: what came of it."""
        if not self.renderer._plain._program.syntax.reads_parts:
            talk = said_by(talk)
        loss = self.options.get("loss", "assistant")
        for one in found:
            said = "".join(one.text[b:e] for b, e in one.trained)
            if loss in ("assistant", "last") and USER in self._sure(one):
                raise WrongError(f"a user's text is trained: {said!r} in {one.text!r}")
            if loss in ("user", "tool", "system,developer") and ASSISTANT in said:
                raise WrongError(f"an assistant's text is trained: {said!r} in {one.text!r}")
        if len(found) != 1 or self.options.get("rewriting") == "split":
            return "split"
        (one,) = found
        text = text_by_transformers(self.source, talk, self.family.tokens)
        if one.text != text:
            raise WrongError(f"text {one.text!r} for {text!r}")
        is_plain = talk[0]["role"] != "assistant" and not any(map(is_untrained, talk))
        is_plain &= all(one.get("reasoning_content", "x").strip() != "" for one in talk)
        if loss == "assistant" and is_plain and self.options.get("loss_on_eot", True):
            every = self._all_of_it(one, talk)
            if every and not self.is_changed and not self.options.get("rewriting"):
                self._by_prefixes(one, talk)
        return "equal"

    def _sure(self, one: Rendered) -> str:
        """What is trained; of changed templates, which write anything anywhere, to an end token."""
        parts = [one.text[b:e] for b, e in one.trained]
        for end in self.family.ends if self.is_changed else ():
            parts = [part.partition(end)[0] for part in parts]
        return "".join(parts)

    def _all_of_it(self, one: Rendered, talk: list[Any]) -> bool:
        """All that an assistant has written is trained, but what is not to be; whether that is all.

        Marks in a thought may end it before it ends.
        """
        thoughts = "".join(message.get("reasoning_content", "") for message in talk)
        kinds = {ASSISTANT: True, CALLED: self.options.get("loss_on_tool_calls", True)}
        kinds[THOUGHT] = self.options.get("loss_on_thinking", True)
        inside = {at for begin, end in one.trained for at in range(begin, end)}
        for at, character in enumerate(one.text):
            wanted = kinds.get(character, at in inside)
            is_sure = character == CALLED or not {"<", "["} & set(thoughts)
            if wanted != (at in inside) and (all(kinds.values()) if wanted else is_sure):
                raise WrongError(f"{character!r} at {at} of {one.text!r}: {one.trained}")
        return all(kinds.values())

    def _by_prefixes(self, one: Rendered, talk: list[Any]) -> None:
        try:
            text, spans = spans_of(self.family, talk)
        except (RewrittenError, UnpromptedError) as error:
            raise WrongError(f"{error!r} by prefixes, {one.trained} of {one.text!r}") from None
        if list(one.trained) != list(joined(spans)):
            found, expected = ([text[b:e] for b, e in them] for them in (one.trained, spans))
            raise WrongError(f"{found} for {expected} of {text!r}")


def _checked(case: MadeUpCase | PublishedCase, talk: list[Any]) -> str:
    try:
        found = case.renderer.render({"messages": talk})
    except ConversationError as error:
        return error.reason
    return case.compare(talk, found)


def check(seed: int) -> Iterator[str]:
    """Compare one seed: what came of each conversation. AssertionError with all that repeats it."""
    rng = random.Random(seed)
    options = options_of(rng)
    is_made_up = rng.random() < 0.6
    what = ""
    try:
        if is_made_up:
            made = template_of(rng)
            what = made.source
            case: MadeUpCase | PublishedCase = MadeUpCase(made, options)
        else:
            case = PublishedCase(rng, options)
            what = case.family.name + (f": {case.source}" if case.is_changed else "")
    except UsageError:
        yield "no template"
        return
    often = 0.2 if is_made_up else 0.4
    for _ in range(_TALKS):
        thinking = not is_made_up and rng.random() < often
        talk = talk_of(rng, tools=rng.random() < often, thinking=thinking)
        try:
            yield _checked(case, talk)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, {what!r}, {options}, {talk!r}: {type(error).__name__}: {error}"
            ) from error


if __name__ == "__main__":
    rounds(check, __doc__)
