"""Where the turns of a conversation are in its text, and which parts an assistant has written.

The definition uses prefixes. Let P(n) be the text of the first n messages, up to the end of the
loop over messages, and G(n) that text with a generation prompt. Then the text of assistant message
i is what follows G(i) in P(i + 1). If P(i + 1) is not a prefix of the whole text, or P(i) not of
P(i + 1), the template *rewrites* messages when others follow them.

Taken literally, this renders a conversation twice for each answer. Usually one render is enough,
because it is watched (`sandbox`): if the template has not read a later message before the end of
message i, the text up to there is P(i + 1). And a generation prompt that depends on no message is
rendered only once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokpack.chat.calls import TOOLS, arguments_taken, tried
from tokpack.chat.marks import Answer, Ends, last_mark, mark_at, prompts, thinking
from tokpack.chat.records import OWN
from tokpack.chat.rendered import REWRITTEN, UNSAFE, ConversationError, not_found
from tokpack.chat.sandbox import EVERY, Text
from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.chat.program import Program

_SAID = "7351846201937426"  # no template writes this, and no filter of letters changes it
_QUESTION = {"role": "user", "content": "?"}
_ANSWER = {"role": "assistant", "content": _SAID}
_ALIKE = {"developer": "system", "function": "tool"}
_UNFIT = "the generation prompt does not fit"

Messages = Sequence[dict[str, Any]]
_Prompt = Sequence[tuple[str, str]]  # see `prompts`


class Turns:
    """Finds turns with a program.

    ``variables`` are those of every conversation. Trials show what the template does: ``ends`` are
    the end-of-turn tokens, ``header`` begins an assistant's turns, ``arguments`` is the expected
    form of calls' arguments (`calls`), ``takes_none`` whether a content may be none, and ``parts``
    for which roles it may be a list of parts. UsageError if the template is unusable.
    """

    def __init__(self, program: Program, variables: Mapping[str, Any]) -> None:
        self._program = program
        self._prompts: dict[tuple[Any, ...], _Prompt | None] = {}
        self._stops: dict[bool, str] = {}
        self.header = ""
        self.parts = self._parts(variables) if program.syntax.reads_parts else {}
        self._question, self._answer = (
            {**one, "content": [{"type": "text", "text": one["content"]}]}
            if self.parts.get(one["role"])
            else one
            for one in (_QUESTION, _ANSWER)
        )
        self.arguments, self.takes_none, call_end = self._taken(variables)
        self.ends = self._try(variables, call_end)
        self._fits = self._is_prompt_fit(variables)

    def render(self, messages: Messages, variables: Mapping[str, Any]) -> Text:
        """The text of messages."""
        return self._program.run(messages, variables)

    def answers(self, whole: Text, numbers: Sequence[int]) -> dict[int, Answer]:
        """What some messages add to the whole text. Raises ConversationError.

        From the one render if possible, else by the definition.
        """
        last = len(whole.messages) - 1
        result = {}
        for i in numbers:
            self._check_prompt(i)
            turn = whole.turn(i)
            begun, is_plain = None, i == last or whole.is_plain(i)
            if turn is not None and is_plain and whole.is_asked(i):
                begun = _behind(whole.text, turn[0], self._prompt(whole, i))
            if turn is None or begun is None:
                result[i] = self.answer(whole, i, is_plain=is_plain)
            else:
                result[i] = Answer(begun[0], turn[1], begun[1])
        return result

    def _first(self, whole: Text, count: int) -> Text:
        """The text of the first messages of a text."""
        return self.render(whole.messages[:count], whole.variables)

    def answer(self, whole: Text, i: int, *, is_plain: bool = False) -> Answer:
        """What message i adds to the whole text, by the definition. Raises ConversationError.

        ``is_plain``: the text up to its end is known not to depend on later messages.
        """
        messages, variables = whole.messages, whole.variables
        is_plain = is_plain or i == len(messages) - 1
        up_to = whole if is_plain else self._first(whole, i + 1)
        turn = up_to.turn(i)
        end = turn[1] if turn else up_to.end
        if not whole.text.startswith(up_to.text[:end]):
            raise _rewritten(i)
        if up_to.turns is None and end == len(whole.text):
            more = self.render([*messages, self._question], variables).text
            if not more.startswith(up_to.text.rstrip()) or more == up_to.text:
                raise not_found(i)  # text after all messages, or the next message is not written
        # Before the first message there is nothing to render, so its prompt must come from
        # elsewhere.
        prompt = None if i else self._prompt(whole, i)
        if turn is not None and prompt is not None:
            begun = _behind(up_to.text, turn[0], prompt)
        else:
            begun = _behind(up_to.text, 0, self._asked(messages[:i], variables)[1])
        if begun is None:
            before = self._first(whole, i)
            kept = up_to.text.startswith(before.text[: before.end])
            raise _no_prompt(i) if kept else _rewritten(i)
        if turn is not None and begun[0] < turn[0]:  # earlier messages became longer
            begun = _behind(up_to.text, turn[0], self._ask(messages[:i], variables))
            if begun is None:
                raise _rewritten(i)
        begin, closing = begun
        again = self.header and up_to.text.startswith(self.header, begin)
        if again and up_to.text.find(self.header, turn[0] if turn else 0, begin) < 0:
            begin += len(self.header)  # a new turn begins where a prompt would continue
        return Answer(begin, end, closing)

    def check_kept(self, whole: Text, i: int) -> None:
        """Raise ConversationError if the text up to message i is rewritten later."""
        if i < len(whole.messages) - 1 and not whole.is_plain(i):
            up_to = self._first(whole, i + 1)
            if not whole.text.startswith(up_to.text[: up_to.end]):
                raise _rewritten(i)

    def as_written(self, whole: Text, i: int) -> Answer:
        """What message i adds to the whole text, even if it is rewritten there."""
        self._check_prompt(i)
        messages, turn = whole.messages, whole.turn(i)
        if turn is None:
            return self.answer(whole, i)
        prompt = self._prompt(whole, i) or self._ask(messages[:i], whole.variables)
        begun = _behind(whole.text, turn[0], prompt)
        if begun is None:
            raise _no_prompt(i)
        end = turn[1]
        follows = messages[i + 1]["role"] if i < len(messages) - 1 else ""
        # A template may write the result of a call inside the turn of the call. So find the end of
        # the answer by its text when it is the last message.
        if follows in ("tool", "function"):
            alone = self._first(whole, i + 1)
            turn_alone = alone.turn(i)
            first = _behind(alone.text, turn_alone[0], prompt) if turn_alone else None
            answer, closing = (
                ("", "")
                if turn_alone is None or first is None
                else (alone.text[first[0] : turn_alone[1]], first[1])
            )
            thought = thinking(answer, closing=closing)[1]
            end = _end_of(answer, thought, whole.text, Answer(begun[0], end, begun[1]))
            if end < 0:
                raise not_found(i)
        return Answer(begun[0], end, begun[1])

    def alone(self, messages: Messages, variables: Mapping[str, Any]) -> tuple[Text, Answer]:
        """The text in which the last message follows what a model would have seen before it.

        This is P(n), or, if the last message makes the template rewrite earlier ones, G(n - 1)
        followed by the answer.
        """
        whole, i = self.render(messages, variables), len(messages) - 1
        self._check_prompt(i)
        if not i:
            return whole, self.answer(whole, i)
        prompted, beginnings = self._asked(messages[:i], variables)
        if _behind(whole.text, 0, beginnings) is not None:
            return whole, self.answer(whole, i)
        turn = whole.turn(i)
        before = self._first(whole, i)
        start = before.text[: before.end]
        begun = None
        if turn is not None and prompted.text.startswith(start):
            begun = _behind(whole.text, turn[0], prompts(prompted.text[len(start) :]))
        if turn is None or begun is None:
            raise _no_prompt(i) if whole.text.startswith(start) else _rewritten(i)
        text = prompted.text + whole.text[begun[0] :]
        moved = len(prompted.text) - begun[0]
        end = turn[1] + moved
        turns = None if before.turns is None else [*before.turns, (before.end, end)]
        behind = [(b + moved, e + moved) for b, e in whole.generations if b >= turn[0]]
        rendered = Text(messages, variables, text, turns, end, behind, [(0, EVERY)])
        return rendered, Answer(len(prompted.text), end, begun[1])

    def stop(self, variables: Mapping[str, Any], *, with_calls: bool) -> str:
        """The token that ends the turn of an answer when another message follows.

        That message is a question, or after calls the result of one. If there is no such token, it
        is the end-of-sequence token. UsageError if there is neither.
        """
        if with_calls not in self._stops:
            self._stops[with_calls] = self._find_stop(variables, with_calls)
        return self._stops[with_calls]

    def _find_stop(self, variables: Mapping[str, Any], with_calls: bool) -> str:
        call, question = tried(_SAID)[0], self._question
        result = {"role": "tool", "content": "?", "tool_call_id": "c00000001", "name": "find"}
        messages = [question, call, result] if with_calls else [question, self._answer, question]
        text = self._written(messages, variables)
        if text is not None and (turn := text.turn(1)):
            begin, end = self.ends.trim(text.text, *turn)
            if begin < end:
                return text.text[begin:end]
        if with_calls:
            return self.stop(variables, with_calls=False)
        if not variables.get("eos_token"):
            raise UsageError(
                f"{option('append_eot', True)}: the chat template writes no token that ends a "
                f"turn, and there is no eos_token: add {option('template_var', 'eos_token=...')}"
            )
        return str(variables["eos_token"])

    def _taken(self, variables: Mapping[str, Any]) -> tuple[str, bool, str]:
        """The form of calls' arguments, if a content may be none, and the token after calls."""
        none: list[str] = []
        for tools in (TOOLS, None):
            given = {**variables, "tools": tools}
            mapping, text = (self._tried(one, given) for one in tried(_SAID))
            if self._program.syntax.asks_for_none:
                none = [self._tried(one, given) for one in tried(_SAID, None)]
            if mapping or text:
                break
        end = last_mark((mapping or text).rpartition(_SAID)[2].rstrip())
        return arguments_taken(mapping, text), any(none), end * (not end.startswith("</"))

    def _parts(self, variables: Mapping[str, Any]) -> dict[str, bool]:
        """The roles whose contents may be parts, each with whether they must be."""
        as_it_is = re.compile(rf"text['\"]: ?['\"]{_SAID}")  # the part was printed as a mapping
        taken = {}
        for role in ("system", "user", "assistant", "tool"):
            said = {"role": role, "content": _SAID, "tool_call_id": "c00000001", "name": "find"}
            talk = [said, _QUESTION] if role == "system" else [said]
            if role in ("assistant", "tool"):
                talk = [_QUESTION, *([tried("?")[0]] if role == "tool" else ()), said]
            parts = [
                {
                    **one,
                    "content": [{"type": "text", "text": text} for text in ("?", one["content"])],
                }
                for one in talk
            ]
            texts = [self._written(each, variables) for each in (talk, parts)]
            is_text, is_parts = (one is not None and not as_it_is.search(one.text) for one in texts)
            if is_parts or not is_text:
                taken[role] = is_parts and not is_text
        return {**taken, **{k: taken[v] for k, v in _ALIKE.items() if v in taken}}

    def _tried(self, message: dict[str, Any], variables: Mapping[str, Any]) -> str:
        text = self._written([self._question, message], variables)
        return "" if text is None else text.text

    def _written(self, messages: Messages, variables: Mapping[str, Any]) -> Text | None:
        """The text of trial messages, or None if it does not contain what they say."""
        try:
            text = self.render(messages, variables)
        except ConversationError:
            return None
        return text if _SAID in text.text else None

    def _prompt(self, whole: Text, i: int) -> _Prompt | None:
        """The generation prompt before message i, or None if unknown.

        It is cached by what determines it: variables, and perhaps attributes of namespaces.
        """
        decides = self._program.syntax.decides
        state = whole.state(i) if decides else decides
        if state is None:
            return None
        variables = whole.variables
        has = bool(variables.get("tools")), bool(variables.get("documents"))
        key = (*has, variables.get(OWN), state)
        if key not in self._prompts:
            before = whole.messages[:i] if decides else [self._question]
            self._prompts[key] = self._ask(before, variables, placed=True)
        return self._prompts[key]

    def _asked(self, messages: Messages, variables: Mapping[str, Any]) -> tuple[Text, _Prompt]:
        """The text of messages with a generation prompt, and its beginnings of an answer."""
        prompted = self._program.run(messages, variables, prompt=True)
        beginnings = prompts(prompted.text)
        if len(beginnings) > 1 and len(beginnings[1][0]) < self.render(messages, variables).end:
            beginnings = [(prompted.text, "")]  # the last message itself ends like such a prompt
        return prompted, beginnings

    def _ask(
        self, messages: Messages, variables: Mapping[str, Any], *, placed: bool = False
    ) -> _Prompt | None:
        """The generation prompt after messages, or None if it changes more than that.

        ``placed``: also None if it is unknown where the messages end.
        """
        before = self.render(messages, variables)
        if placed and before.turns is None:
            return None
        prompted = self._program.run(messages, variables, prompt=True).text
        start = before.text[: before.end]
        return prompts(prompted[len(start) :]) if prompted.startswith(start) else None

    def _try(self, variables: Mapping[str, Any], call_end: str) -> Ends:
        """The tokens that end turns; sets the header of an assistant's turns. ``call_end`` ends
        calls.

        Conversations of one to three answers are rendered, and the texts after their answers
        compared.
        """
        program, question = self._program, self._question
        texts = [str(variables.get("eos_token") or "").strip()]
        follows = False
        last: set[str] = set()  # the texts after the last answer of each conversation
        earlier: set[str] = set()  # and after the other answers
        for count in (1, 2, 3):
            messages = [dict(one) for _ in range(count) for one in (question, self._answer)]
            try:
                whole = self.render(messages, variables)
                header = self._ask([question], variables)
            except ConversationError as error:
                if error.reason == UNSAFE:
                    raise UsageError(f"{program.where}: {error}") from None
                continue
            self.header = header[-1][0] if header else ""
            if whole.text.count(_SAID) < count:
                continue  # some answers are left out, and it is not known which
            spans = [(0, len(whole.text))] if whole.turns is None else whole.turns[1::2]
            ends = [one[1] for one in spans if one is not None]
            tails = [self._tail(whole.text[:end]) for end in ends]
            if not any(tails):
                at = whole.text.find(_SAID) + len(_SAID)
                first = at if whole.turns is None else ends[0] if ends else 0
                several = whole.text.count(_SAID) > 1
                follows = follows or (several and mark_at(whole.text, first) != "")
                tails = [] if follows else [self._tail(whole.text)]
            last.update(tails[-1:])
            earlier.update(tails[:-1])
        for same in (last, {*map(last_mark, last)}, earlier, {*map(last_mark, earlier)}):
            texts += same if len(same) == 1 else ()  # a text that varies is not an end of turn
        texts += [] if follows else [call_end]
        return Ends(texts, header=self.header if follows else None)

    def _is_prompt_fit(self, variables: Mapping[str, Any]) -> bool:
        """Whether the plainest answer begins with the generation prompt.

        If not, other answers begin with it only by accident, such as an empty one if the template
        writes the end-of-turn token after all messages.
        """
        try:
            self.answer(self.render([self._question, self._answer], variables), 1)
        except ConversationError as error:
            return error.reason != _UNFIT
        return True

    def _check_prompt(self, i: int) -> None:
        if not self._fits:
            raise _no_prompt(i)

    def _tail(self, text: str) -> str:
        """The text after the last answer in a text, without the beginning of another one."""
        return text.rpartition(_SAID)[2].strip().removesuffix(self.header.strip()).strip()


def _no_prompt(i: int) -> ConversationError:
    return ConversationError(
        _UNFIT,
        f"message {i} does not begin with it, so nobody can tell where its answer begins: put "
        "{% generation %} and {% endgeneration %} around what is generated, in a copy of the "
        f"template, and give that with {option('chat_template', 'FILE')}",
    )


def _rewritten(i: int) -> ConversationError:
    return ConversationError(
        REWRITTEN,
        f"the template writes messages before or up to number {i} otherwise once later ones follow "
        f"(many drop earlier thinking): choose {option('rewriting', 'split')} for a document of "
        f"each answer, or {option('rewriting', 'as-is')}",
    )


def _end_of(answer: str, thought: int, text: str, own: Answer) -> int:
    """The end of an answer that is at the beginning of its turn; -1 if it is not there.

    Its thinking, ``thought`` characters, may differ there, or be missing.
    """
    begin, end, closing = own
    begin = end - len(text[begin:end].lstrip())
    for said, at in (
        (answer, begin),
        (answer[thought:], begin),
        (answer[thought:], thinking(text, begin, end, closing)[1]),
    ):
        if said.strip() and text.startswith(said.lstrip(), at):
            return at + len(said.lstrip())
    return -1


def _behind(text: str, begin: int, prompt: _Prompt | None) -> tuple[int, str] | None:
    """The place after a generation prompt, and the mark that ends a thinking begun in it; or
    None.
    """
    for one, closing in prompt or ():
        if text.startswith(one, begin):
            return begin + len(one), closing
    return None
