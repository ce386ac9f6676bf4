"""A template made ready to run: one call gives its text, and where in it messages begin."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tokpack.apart import Limits
from tokpack.chat import syntax
from tokpack.chat.rendered import UNSAFE, ConversationError
from tokpack.chat.sandbox import Sandbox, plain_environment
from tokpack.chat.watched import LoopMaker, Messages, Rounds, Run
from tokpack.errors import UsageError, needs_extra

with needs_extra("chat"):
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables
    from jinja2.runtime import Context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from jinja2 import Template

    from tokpack.chat.watched import Text

_MOST_SOURCE = 1 << 20  # characters of a template; the longest published ones have 20,000


class Program:
    """A chat template, compiled. Belongs to one thread.

    ``reads`` are the variables that it takes, ``limits`` are told of each run.
    """

    def __init__(self, source: str, where: str, day: date | None) -> None:
        if len(source) > _MOST_SOURCE:
            raise UsageError(f"{where}: the chat template has more than {_MOST_SOURCE} characters")
        self.source, self.where, self.limits = source, where, Limits()
        self._environment = environment = Sandbox(day)
        self._loops = LoopMaker()
        environment.effect = self._effect
        environment.filters |= self._filters()
        environment.code_generator_class = syntax.Writer
        try:
            tree = environment.parse(source)
            self.reads = frozenset(find_undeclared_variables(tree))
            self.syntax = syntax.Syntax(tree)
            watched = syntax.Watcher().visit(tree)
            self.syntax.watch()
            watched.set_environment(environment)
            code = environment.compile(watched)
        except TemplateSyntaxError as error:
            raise UsageError(
                f"{where}: the chat template is wrong in line {error.lineno}: {error.message}"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # what is constant is computed here
            raise UsageError(
                f"{where}: the chat template cannot be compiled: {_first_line(error)}"
            ) from None
        names: dict[str, Any] = {"environment": environment}
        exec(code, names)
        names |= {
            "LoopContext": self._loops,
            "direct_attribute": environment.getattr,
            "direct_effect": environment.effect,
            "direct_key": environment.key,
            "direct_generation": self._generation,
            "direct_method": environment.method,
        }
        self._write, self._blocks = names["root"], names["blocks"]
        self._globals = dict(environment.globals)
        self._day = day

    def _filters(self) -> dict[str, Any]:
        """The filters that a template's tree was given, see `syntax`."""

        def some(value: Any) -> Any:
            return int(bool(value)) if value.__class__ is Messages else len(value)

        return {
            syntax.SOME: some,
            syntax.TOLD: self._tell,
            syntax.EACH: partial(self._each, writes=False),
            syntax.EACH_WRITTEN: partial(self._each, writes=True),
        }

    def _each(self, value: Any, *, writes: bool) -> Any:
        """What a loop goes through."""
        if value.__class__ is Messages:
            return Rounds(value, writes=writes)
        if writes and value.__class__ is list and value:
            assert self._loops.run is not None
            self._loops.run.copy(value)
        return value

    def _tell(self, values: tuple[Any, ...]) -> None:
        """What decides a generation prompt, before a round of the main loop."""
        assert self._loops.run is not None
        self._loops.run.states.append(values)

    def _effect(self) -> None:
        """Something outlasts the round of a loop."""
        assert self._loops.run is not None
        self._loops.run.effect()

    def _generation(self, begins: bool) -> None:
        """A generation block begins, or ends."""
        run = self._loops.run
        assert run is not None
        if begins:
            run.generations.append([len(run.pieces), -1])
        else:
            next(one for one in reversed(run.generations) if one[1] < 0)[1] = len(run.pieces)

    @cached_property
    def _plain(self) -> Template:
        return plain_environment(self._day).from_string(self.source)

    def plain_text(self, messages: Sequence[Any], variables: Mapping[str, Any]) -> str:
        """The text of messages by jinja2 alone, as `run` has to give it; or why it gives none."""
        try:
            return self._plain.render({**variables, "messages": messages, syntax.PROMPT: False})
        except MemoryError:
            raise
        except Exception as error:  # `run` had none
            return f"{type(error).__name__}: {_first_line(error)}"

    def run(
        self, messages: Sequence[Any], variables: Mapping[str, Any], *, prompt: bool = False
    ) -> Text:
        """The text of messages, with the beginning of an answer if ``prompt``.

        ``variables`` has the tools, the documents and all others. Raises ConversationError.
        """
        self.limits.go_on()
        self._loops.run = run = Run(messages)
        given = {"messages": Messages(run, messages), syntax.PROMPT: prompt}
        values = {**self._globals, **variables, **given}
        add = run.pieces.append
        try:
            for piece in self._write(Context(self._environment, values, None, self._blocks)):
                add(piece)  # one by one: loops count them
            text = run.text()
        except SecurityError as error:
            raise ConversationError(UNSAFE, _first_line(error)) from None
        except (UsageError, ConversationError, MemoryError):
            raise
        except RecursionError:
            raise ConversationError("the template fails", "it calls itself without end") from None
        except Exception as error:  # whatever expressions of others do to values of others
            if type(error) is TemplateError:  # its own words
                raise ConversationError("refused by the template", _first_line(error)) from None
            name = type(error).__name__
            raise ConversationError("the template fails", f"{name}: {_first_line(error)}") from None
        self.limits.check(text.text)
        return text


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
