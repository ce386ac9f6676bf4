"""Where templates run: jinja2's sandbox with transformers' functions, and bounds."""

from __future__ import annotations

import json
import operator as operators
import re
from datetime import date, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

from tokpack.errors import UsageError, needs_extra, option

with needs_extra("chat"):
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import ExprStmt, Filter, Name, Scope
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import Undefined
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.runtime import Context

GENERATION_BEGINS = "a generation begins"  # filters, by names that no template can write
GENERATION_ENDS = "a generation ends"

_UNITS = 10**10  # of work for a conversation: about 10 s, or 10^8 characters made
_UNITS_OF_INPUT = 1000  # more of it for each character of the conversation
_STEP = 300  # for a round of a loop, or a call
_CALL = 5000  # more for a call, of a macro at worst
_CHARACTER = 100  # for a character that is made
_ELEMENT = 64  # for an element of a list that is made, or given to a filter
_VISIT = 256  # for one that is looked at here

_WIDTH = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)|\{[^{}]*(\d{5,}|\{)")  # in formats: far too wide
_CONTAINERS = (list, tuple, dict)
_SIZED = (str, bytes, list, tuple, dict, range)
_DICT_NAMES = frozenset(dir(dict))
_STR_METHODS = frozenset(one for one in dir(str) if one[0] != "_") - {"format", "format_map"}
_MISSING = object()
# What makes text whose length is the product of its arguments' lengths, as methods or filters.
_PRODUCTS = frozenset(["replace", "join", "translate", "urlize", "indent", "wordwrap", "xmlattr"])
_NESTING = frozenset(["batch", "slice", "dict"])  # one value may be in their result many times


class TooMuchError(Exception):
    """A template does more than any honest one; internal."""


class Budget:
    """The work that a template may still do, in units of about a nanosecond.

    Work is counted, not timed, so that the same conversation is refused on every machine.
    """

    __slots__ = ("left", "step")

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, characters: int) -> None:
        """Begin a conversation with so many characters."""
        self.left = _UNITS + _UNITS_OF_INPUT * characters
        self.step = _STEP + characters // 2

    def take(self, units: int) -> None:
        """Do some work, or raise TooMuchError."""
        self.left -= units
        if self.left < 0:
            raise TooMuchError

    def made(self, value: Any) -> None:
        """Count a value that has been made; later steps may pass through it as often."""
        if isinstance(value, _SIZED):
            units = len(value) * (_CHARACTER if isinstance(value, str | bytes) else _ELEMENT)
            self.step = max(self.step, _STEP + units // 200)
            self.take(units)
        elif type(value) is int and value.bit_length() > 1000:
            raise TooMuchError  # its digits take the square of their number

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
        """Refuse arguments of a function that would make something enormous of them."""
        numbers = (*values, *named.values())
        if any(type(n) is int and not -100_000 <= n <= 100_000 for n in numbers):
            raise TooMuchError
        if name in _PRODUCTS and numbers:
            first, *others = map(self.deep, numbers)
            product = (first + 1) * (sum(others) + max(map(_whole, numbers)) + 1)
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


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment with what transformers gives templates; ``budget`` is reset by its user.

    What would be an unsafe access raises SecurityError at once. ``day`` answers ``strftime_now``.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, day: date | None) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=self._printed,
        )
        self.filters["tojson"] = _tojson
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _Clock(day),
            "dict": _DictMaker(),
            "namespace": _Namespace,
        }
        self.filters.update({name: self._guarded(name, f) for name, f in self.filters.items()})

    def _printed(self, value: Any) -> Any:
        budget = self.budget
        if value.__class__ is str:
            budget.left -= len(value) * _CHARACTER
            if budget.left < 0:
                raise TooMuchError
        elif isinstance(value, _CONTAINERS):
            budget.take(budget.deep(value) * _CHARACTER)
        return value

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts what it takes and makes."""
        budget, first = self.budget, 1 if hasattr(function, "jinja_pass_arg") else 0
        careful = name not in ("trim", "length", "string", "upper", "lower")

        @wraps(function)
        def filtered(*values: Any, **named: Any) -> Any:
            value = values[first] if len(values) > first else None
            if careful:
                budget.arguments(name, values[first:], named)
            if isinstance(value, _CONTAINERS):
                budget.take(len(value) * _ELEMENT)
                if name in ("tojson", "string", "pprint", "urlencode"):
                    budget.take(budget.deep(value) * _CHARACTER)
            budget.take(budget.step)
            result = function(*values, **named)
            if name in _NESTING:
                result = list(result)
                budget.deep(result)
            budget.made(result)
            return result

        return filtered

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation that may make something large."""
        budget = self.budget
        if operator == "+":
            value = left + right
            if value.__class__ is str:
                budget.left -= len(value) * _CHARACTER
                if budget.left >= 0:
                    return value
        elif operator == "*":
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
        budget.made(value)
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute, or an element by that name; of what is common without a detour."""
        kind = obj.__class__
        if kind is dict and attribute not in _DICT_NAMES:
            value = obj.get(attribute, _MISSING)
        elif kind in _OPEN and attribute[:1] != "_":
            value = getattr(obj, attribute, _MISSING)
        elif kind is str and attribute in _STR_METHODS:
            return getattr(obj, attribute)
        else:
            return super().getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute) if value is _MISSING else value

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse what jinja2 refuses only when it is used."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__}")

    def call(self, context: Context, function: Any, /, *values: Any, **named: Any) -> Any:
        """Call what a template calls: a method, a macro, a global function."""
        budget = self.budget
        budget.take(budget.step + _CALL)
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if owner.__class__ is str and not values and not named:
            result = function()
            budget.made(result)
            return result
        if isinstance(owner, str | bytes):
            budget.arguments(name, (owner, *values), named)
        elif "format" in name:
            budget.arguments("format", (getattr(function, "template", ""), *values), named)
        elif values or named:
            budget.arguments("", values, named)
        result = super().call(context, function, *values, **named)
        if isinstance(function, _DictMaker):
            budget.deep(result)
        budget.made(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` in the sandbox, which remembers the text that it is a method of."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            wrapped.template = value.__self__  # type: ignore[attr-defined]
        return wrapped


class GenerationTag(Extension):
    """``{% generation %}``: a scope whose text an assistant has written.

    It begins and ends with a statement that a template cannot have itself, see `spoken`.
    """

    tags = {"generation"}  # noqa: RUF012 - so it is declared there

    def parse(self, parser: Parser) -> Node:
        """The statements up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (signal(name, line) for name in (GENERATION_BEGINS, GENERATION_ENDS))
        return Scope([begin, *body, end]).set_lineno(line)


def signal(name: str, line: int, of: str = "messages") -> ExprStmt:
    """A statement that calls a filter with a variable, and writes nothing."""
    return ExprStmt(Filter(Name(of, "load"), name, [], [], None, None), lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates get it: nothing is made safe for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _Clock:
    """``strftime_now``: the day that the request names, since the same request has one result."""

    def __init__(self, day: date | None) -> None:
        self._day = day

    def __call__(self, form: str) -> str:
        """The day in a format of ``strftime``. UsageError where the request names none."""
        if self._day is None:
            raise UsageError(
                "the chat template asks for today's date, which would make other tokens tomorrow: "
                f"say which day it is to be, {option('template_var', 'date=2026-11-23')}"
            )
        return self._day.strftime(form)


def day_of(value: object) -> date | None:
    """The day, or the moment, that a request names. UsageError."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"the variable date of a chat template is {value!r}: give a day such as 2026-11-23"
        ) from None


class _DictMaker:
    """``dict`` in templates: no class, whose attributes lead elsewhere."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*values)


class _Namespace(Namespace):
    """``namespace`` in templates, without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # a variable may be named self
        self, *values = args
        attributes = dict(*values, **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


# Kinds with nothing to hide but what begins with an underscore.
_OPEN = frozenset([LoopContext, _Namespace])


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")
