"""Where templates run: jinja2's sandbox with transformers' functions, and bounds."""

from __future__ import annotations

import operator as operators
import re
from functools import wraps
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
    from collections.abc import Callable, Iterable, Mapping
    from datetime import date

    from jinja2 import Undefined
    from jinja2.parser import Parser
    from jinja2.runtime import Context

_UNITS = 10**10  # of work for a conversation: about 10 s, or 10^8 characters made
_UNITS_OF_INPUT = 1000  # more of it for each character of messages that are rendered
_CALL = 5000  # for a call
_CHARACTER = 100  # for a character that is made
_READ = 50  # for one that a filter or a method of a text reads
_ELEMENT = 300  # for an element of a list that is made, or given to a filter
_VISIT = 256  # for one that is looked at here

_WIDTH = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)|\{[^{}]*(\d{5,}|\{)")  # in formats: far too wide
_CONTAINERS = (list, tuple, dict)
_TEXTS = (str, bytes)
_SIZED = (str, bytes, list, tuple, dict, range)
_QUICK: dict[str, Any] = {
    "trim": str.strip,
    "length": len,
    "count": len,
    "string": str,
}  # filters of texts
STR_METHODS = frozenset(one for one in dir(str) if one[0] != "_") - {"format", "format_map"}
_MISSING = object()
# What makes text whose length is the product of its arguments' lengths, as methods or filters.
_PRODUCTS = frozenset(["replace", "join", "translate", "urlize", "indent", "wordwrap", "xmlattr"])
_NESTING = frozenset(["batch", "slice", "dict"])  # one value may be in their result many times
# What filters that look at each element need for one, measured, beside _ELEMENT.
_LOOKS = {"groupby": 8000, "sort": 1000, "min": 500, "max": 500, "wordwrap": 500, "urlize": 300}
_WHOLE = frozenset(["tojson", "string", "pprint", "urlencode"])  # they read all that is inside


class TooMuchError(Exception):
    """A template does more than any honest one; internal."""


class Budget:
    """The work that a template may still do, in units of about a nanosecond.

    Work is counted, not timed, so that the same conversation is refused on every machine. Each
    operation takes what it may need by the sizes of its values; a step takes what its body has.
    """

    __slots__ = ("left", "messages")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a conversation. ``messages`` are those of its renders, as they come."""
        self.left = _UNITS
        self.messages: list[Iterable[Mapping[str, Any]]] = []

    def take(self, units: int) -> None:
        """Do some work, or raise TooMuchError."""
        self.left -= units
        if self.left < 0:
            self.more()

    def more(self) -> None:
        """Go on with what the length of the messages gives; TooMuchError where that is too short.

        Nearly no conversation needs it, so nobody counts their characters before.
        """
        self.left += _UNITS_OF_INPUT * sum(map(_characters, self.messages))
        self.messages.clear()
        if self.left < 0:
            raise TooMuchError

    def counted(self, value: Any) -> Any:
        """Count a value that has been made, and give it."""
        if isinstance(value, _SIZED):
            self.take(len(value) * (_CHARACTER if isinstance(value, _TEXTS) else _ELEMENT))
        elif type(value) is int and value.bit_length() > 1000:
            raise TooMuchError  # its digits take the square of their number
        return value

    def read(self, value: Any) -> Any:
        """Count a value that is compared or searched, and give it."""
        if isinstance(value, _TEXTS):
            self.take(len(value))
        elif isinstance(value, _SIZED):
            self.take(len(value) * _ELEMENT)
        return value

    def deep(self, value: Any) -> int:
        """Count all that is in a value, as often as it is in there; characters and elements."""
        total, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str | bytes | range):
                total += len(one)
            elif isinstance(one, _CONTAINERS):
                total += len(one) + 1
                self.take((len(one) + 1) * _VISIT)
                waiting += one.values() if isinstance(one, dict) else one
        return total

    def arguments(self, name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Count the arguments of a function; refuse what would become something enormous."""
        every = (*values, *named.values())
        for one in every:
            if type(one) is int and not -100_000 <= one <= 100_000:
                raise TooMuchError
            if isinstance(one, _TEXTS):
                self.take(len(one) * _READ)
        if name in _PRODUCTS and every:
            first, *others = map(self.deep, every)
            product = (first + 1) * (sum(others) + max(map(_whole, every)) + 1)
            if product * _CHARACTER > self.left:
                raise TooMuchError
        elif name in ("format", "format_map"):
            self.format(values[0])
            self.deep(values)

    def format(self, text: Any) -> None:
        """Refuse a format with a field of ten thousand characters, or of a computed width."""
        if isinstance(text, str) and _WIDTH.search(text):
            raise TooMuchError


def _whole(value: Any) -> int:
    return abs(value) if type(value) is int else 0


def _characters(messages: Iterable[Mapping[str, Any]]) -> int:
    """About as many as the JSON of messages has."""
    return sum(
        100 + (len(value) if isinstance(value, str) else len(str(value)))
        for message in messages
        for value in message.values()
    )


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with what transformers gives templates; ``budget`` is reset by its user.

    What would be an unsafe access raises SecurityError at once. ``day`` answers ``strftime_now``.
    ``effect`` is called where something is changed that outlasts the round of a loop.
    """

    effect: Callable[[], None]

    intercepted_binops = frozenset(["*", "**", "%"])  # and +, see `added`

    def __init__(self, day: date | None) -> None:
        self.budget = Budget()
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
        self.filters.update({name: self._guarded(name, f) for name, f in self.filters.items()})
        is_sequence: Any = self.tests["sequence"]
        self.tests["sequence"] = lambda one: one.__class__ is Messages or is_sequence(one)

    def text(self, value: Any) -> str:
        """A value as it is written."""
        budget = self.budget
        if value.__class__ is not str:
            if isinstance(value, _CONTAINERS):
                budget.take(budget.deep(value) * _CHARACTER)
            value = str(value)
        budget.left -= len(value) * _CHARACTER
        if budget.left < 0:
            budget.more()
        return value  # type: ignore[no-any-return]

    def added(self, *values: Any) -> Any:
        """The sum of values, from the left to the right."""
        budget = self.budget
        for one in values:
            if one.__class__ is not str:
                break
        else:
            text = "".join(values)
            budget.left -= len(text) * _CHARACTER
            if budget.left < 0:
                budget.more()
            return text
        total = values[0]
        for one in values[1:]:
            total = budget.counted(total + one)
        return total

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts what it takes and makes."""
        budget, first = self.budget, 1 if hasattr(function, "jinja_pass_arg") else 0
        looks = _LOOKS.get(name, 0)
        quick: Callable[[str], Any] | None = _QUICK.get(name)

        @wraps(function)
        def filtered(*values: Any, **named: Any) -> Any:
            if quick is not None and len(values) == 1 and not named:
                kind = values[0].__class__
                if kind is str or (kind is Messages and quick is len):
                    budget.take(len(values[0]) * _CHARACTER)
                    return quick(values[0])
            value = values[first] if len(values) > first else None
            budget.take(_CALL)
            budget.arguments(name, values[first:], named)
            if looks and isinstance(value, _SIZED):
                budget.take(len(value) * looks)
            if isinstance(value, _CONTAINERS):
                budget.take(len(value) * _ELEMENT)
                if name in _WHOLE:
                    budget.take(budget.deep(value) * _CHARACTER)
            result = function(*values, **named)
            if name in _NESTING:
                result = list(result)
                budget.deep(result)
            return budget.counted(result)

        return filtered

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation that may make something large."""
        budget = self.budget
        if operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, _SIZED) and isinstance(times, int):
                    budget.take(len(one) * max(int(times), 0) * _CHARACTER)
            value = left * right
        elif operator == "**":
            if max(map(_whole, (left, right))) > 10_000:
                raise TooMuchError
            value = left**right
        else:
            if isinstance(left, str):
                budget.format(left)
                budget.deep(right)
            value = operators.mod(left, right)
        return budget.counted(value)

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
        budget = self.budget
        budget.take(_CALL)
        if function is SafeNamespace:
            budget.arguments("", values, named)
            return function(*values, **named)
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if isinstance(function, Joiner) or isinstance(owner, Cycler | LoopContext):
            self.effect()
        if isinstance(owner, _TEXTS):
            budget.arguments(name, (owner, *values), named)
        elif "format" in name:
            budget.arguments("format", (getattr(function, "template", ""), *values), named)
        elif isinstance(owner, _CONTAINERS):
            budget.read(owner)
            budget.arguments("", values, named)
        elif values or named:
            budget.arguments("", values, named)
        result = super().call(context, function, *values, **named)
        if isinstance(function, DictMaker):
            budget.deep(result)
        return budget.counted(result)

    def method(self, context: Context, obj: Any, name: str, *values: Any) -> Any:
        """Call a method, which is nearly always one of STR_METHODS."""
        if obj.__class__ is not str:
            return self.call(context, self.getattr(obj, name), *values)
        budget = self.budget
        budget.take(_CALL)
        if values or name in _PRODUCTS:
            budget.arguments(name, (obj, *values), {})
        else:
            budget.take(len(obj) * _READ)
        return budget.counted(getattr(obj, name)(*values))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` in the sandbox, which remembers the text that it is a method of."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            wrapped.template = value.__self__  # type: ignore[attr-defined]
        return wrapped


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
