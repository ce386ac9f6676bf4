"""Where templates run: jinja2's sandbox with transformers' functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.chat.watched import Messages
from tokpack.errors import needs_extra

with needs_extra("chat"):
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import ExprStmt, InternalName, Node, Scope
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Cycler, Joiner

    from tokpack.chat.functions import DictMaker, FixedClock, SafeNamespace, raise_exception, tojson
    from tokpack.chat.watched import WatchedLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from jinja2 import Undefined
    from jinja2.parser import Parser
    from jinja2.runtime import Context

STR_METHODS = frozenset(one for one in dir(str) if one[0] != "_") - {"format", "format_map"}
_MISSING = object()


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with what transformers gives templates.

    What would be an unsafe access raises SecurityError at once. ``day`` answers ``strftime_now``.
    ``effect`` is called where something is changed that outlasts the round of a loop.
    """

    effect: Callable[[], None]

    def __init__(self, day: date | None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        self.filters["tojson"] = tojson
        self.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": FixedClock(day),
            "dict": DictMaker(),
            "namespace": SafeNamespace,
        }
        is_sequence: Any = self.tests["sequence"]
        self.tests["sequence"] = lambda one: one.__class__ is Messages or is_sequence(one)

    def key(self, obj: Any, name: str) -> Any:
        """An attribute that no mapping has, or an element by that name."""
        if obj.__class__ is dict:
            value = obj.get(name, _MISSING)
            if value is not _MISSING:
                return value
            return self.undefined(obj=obj, name=name)
        return self.getattr(obj, name)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute, or an element by that name; of what is common without a detour."""
        if obj.__class__ in _OPEN and attribute[:1] != "_":
            value = getattr(obj, attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if value is _MISSING else value
        if obj.__class__ is str and attribute in STR_METHODS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse what jinja2 refuses only when it is used."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__}")

    def call(self, context: Context, function: Any, /, *values: Any, **named: Any) -> Any:
        """Call what a template calls: a method, a macro, a global function."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, Joiner) or isinstance(owner, Cycler | LoopContext):
            self.effect()
        return super().call(context, function, *values, **named)

    def method(self, context: Context, obj: Any, name: str, *values: Any) -> Any:
        """Call a method, which is nearly always one of STR_METHODS."""
        if obj.__class__ is str:
            return getattr(obj, name)(*values)
        return self.call(context, self.getattr(obj, name), *values)


def plain_environment(day: date | None) -> ImmutableSandboxedEnvironment:
    """What transformers runs templates in, without anything that this module adds."""
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_PlainGeneration, loopcontrols]
    )
    plain.filters["tojson"] = tojson
    plain.globals |= {"raise_exception": raise_exception, "strftime_now": FixedClock(day)}
    return plain


class GenerationTag(Extension):
    """``{% generation %}``: a scope whose text an assistant has written.

    It begins and ends with a statement that a template cannot have itself.
    """

    tags = {"generation"}  # noqa: RUF012 - so it is declared there

    def parse(self, parser: Parser) -> Node:
        """The statements up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (code(f"direct_generation({begins})", line) for begins in (True, False))
        return Scope([begin, *body, end]).set_lineno(line)


class _PlainGeneration(Extension):
    """``{% generation %}`` as a scope alone."""

    tags = {"generation"}  # noqa: RUF012 - so it is declared there

    def parse(self, parser: Parser) -> Node:
        """The statements up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body).set_lineno(line)


def code(python: str, line: int) -> ExprStmt:
    """A statement of Python, which no template can have itself."""
    name = object.__new__(InternalName)  # written as it is
    Node.__init__(name, python, lineno=line)
    return ExprStmt(name, lineno=line)


# Kinds with nothing to hide but what begins with an underscore.
_OPEN = frozenset([LoopContext, WatchedLoop, SafeNamespace])
