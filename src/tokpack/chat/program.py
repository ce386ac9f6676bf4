"""A template made ready to run: one call gives its text, and where in it messages begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.chat import instrument, sandbox
from tokpack.chat.rendered import TOO_MUCH, UNSAFE, ConversationError
from tokpack.chat.sandbox import Sandbox, TooMuchError
from tokpack.errors import UsageError, needs_extra

with needs_extra("chat"):
    from jinja2 import Template
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

_MOST_SOURCE = 1 << 20  # characters of a template; the longest published ones have 20,000


class Program:
    """A chat template, compiled. Belongs to one thread.

    After a run, ``ahead`` says whether it looked ahead (see `instrument`); ``chunks`` is its text
    in pieces; ``turns`` are (number of chunks, message) where a message began, ``turns_end`` the
    number of chunks behind the last one, and ``generations`` (begin, end) those of the generation
    blocks.
    """

    def __init__(self, source: str, where: str, day: date | None) -> None:
        if len(source) > _MOST_SOURCE:
            raise UsageError(f"{where}: the chat template has more than {_MOST_SOURCE} characters")
        self.source, self.where = source, where
        self._environment = Sandbox(day)
        self.budget = self._environment.budget
        self.chunks: list[str] = []
        self.turns: list[tuple[int, Any]] = []
        self.turns_end = 0
        self.generations: list[list[int]] = []
        self.ahead = False
        self._signals()
        try:
            parsed = self._environment.parse(source)
            self.special_tokens = {
                name for name in find_undeclared_variables(parsed) if name.endswith("os_token")
            }
            tree = instrument.Instrumented(parsed)
            code = self._environment.compile(tree.tree)
            self._template = Template.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except TemplateSyntaxError as error:
            raise UsageError(
                f"{where}: the chat template is wrong in line {error.lineno}: {error.message}"
            ) from None
        except (RecursionError, SyntaxError, TemplateError, TooMuchError, MemoryError) as error:
            raise UsageError(
                f"{where}: the chat template cannot be compiled: {_first_line(error)}"
            ) from None
        self.has_turns = tree.has_turns
        self.fixed_prompt = tree.fixed_prompt
        self.generation = tree.generation
        self.reads_parts = tree.reads_parts
        self.reads_arguments_as_text = tree.reads_arguments_as_text

    def _signals(self) -> None:
        """The filters that a template's tree was given, see `instrument`."""
        budget, chunks = self.budget, self.chunks

        def turn(message: Any) -> Any:
            self.turns.append((len(chunks), message))
            return step(message)

        def step(value: Any) -> Any:
            budget.left -= budget.step
            if budget.left < 0:
                raise TooMuchError
            return value

        def ends(value: Any) -> None:
            self.turns_end = len(chunks)

        def ahead(value: Any) -> Any:
            self.ahead = True
            return value

        def behind(index: Any) -> Any:
            if index < 0:
                self.ahead = True
            return index

        def made(value: Any) -> Any:
            budget.made(value)
            return value

        def deep(value: Any) -> Any:
            budget.deep(value)
            return value

        def begins(value: Any) -> None:
            self.generations.append([len(chunks), -1])

        def ended(value: Any) -> None:
            next(one for one in reversed(self.generations) if one[1] < 0)[1] = len(chunks)

        self._environment.filters |= {
            instrument.TURN: turn,
            instrument.STEP: step,
            instrument.TURNS_END: ends,
            instrument.AHEAD: ahead,
            instrument.BEHIND: behind,
            instrument.MADE: made,
            instrument.DEEP: deep,
            sandbox.GENERATION_BEGINS: begins,
            sandbox.GENERATION_ENDS: ended,
        }

    def run(
        self, messages: Sequence[Any], variables: Mapping[str, Any], *, prompt: bool = False
    ) -> str:
        """The text of messages, with the beginning of an answer if ``prompt``.

        ``variables`` has the tools, the documents and all others. Raises ConversationError; the
        work is taken from ``budget``.
        """
        chunks = self.chunks
        chunks.clear()
        self.turns, self.generations, self.turns_end, self.ahead = [], [], 0, False
        template = self._template
        given = {**variables, "messages": messages, instrument.PROMPT: prompt}
        try:
            context = template.new_context(given)
            for chunk in template.root_render_func(context):
                chunks.append(chunk)  # one by one: signals count them
        except TooMuchError:
            raise ConversationError(
                TOO_MUCH, "the template does more than it can need for this length"
            ) from None
        except SecurityError as error:
            raise ConversationError(UNSAFE, _first_line(error)) from None
        except (UsageError, ConversationError):
            raise
        except RecursionError:
            raise ConversationError("the template fails", "it calls itself without end") from None
        except Exception as error:  # whatever expressions of others do to values of others
            if type(error) is TemplateError:  # its own words
                raise ConversationError("refused by the template", _first_line(error)) from None
            name = type(error).__name__
            raise ConversationError("the template fails", f"{name}: {_first_line(error)}") from None
        return "".join(chunks)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
