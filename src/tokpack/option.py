"""The declaration of an option: once, for its flag, its key in files, signatures, help and checks.

A request is a dataclass whose fields are declared by ``in_group``; ``options_of`` has them.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from inspect import Parameter, getdoc, signature
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option, worded
from tokpack.quantities import without_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
KINDS = {kind.__name__: kind for kind in EXPECTED}
_HINT = re.compile(rf"(?:(tuple|Sequence)\[)?({'|'.join(KINDS)})(?:(?:, [\w.]+)*\])?( \| None)?")
MOST = 2**62  # of whole numbers: the sum of two fits into 64 bits


@dataclass(frozen=True)
class Option:
    """One option.

    ``kind`` is bool, int, float or str; any other kind of value is not checked. With ``many`` the
    value is a tuple. ``otherwise`` is the effect of leaving it out, if the default does not show
    it. ``flags`` are the names of its flag, if not its own name; ``value`` is the flag's value on
    help pages. ``choices`` are the possible words; "{choices}" in ``help`` lists them. A number is
    at least ``least`` (if None, above 0, or at least 0 if that is the default), at most ``most``,
    and less than ``below``. ``taken_by`` is a function with a parameter of the same name.
    """

    name: str
    kind: type = object
    many: bool = False
    default: Any = None
    help: str = ""
    value: str = ""
    otherwise: str = ""
    flags: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    below: float = math.inf
    group: str = ""  # of the help page; "" for what has no flag of its own
    taken_by: str = ""
    optional: bool = True  # whether it can be None
    hint: str = ""  # its type, as it is written

    @property
    def flag(self) -> str:
        """The name of its flag: its own if possible, else the first one."""
        own = f"--{self.name.replace('_', '-')}"
        names = self.flags.split() or [own]
        return own if own in names else names[0]

    @property
    def expected(self) -> str:
        """What kind of value it takes, in words."""
        return EXPECTED.get(self.kind, "a mapping")

    @property
    def default_words(self) -> str:
        """The effect of leaving it out, or else the default, as text; "" if there is none."""
        if self.otherwise or self.default is None or self.many or self.kind is bool:
            return self.otherwise
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def said(self, otherwise: str = "", flags: Mapping[str, str] | None = None) -> str:
        """Its help, with the effect of leaving it out.

        Options in it have their ``flags``, or else their names in Python.
        """
        *most, last = self.choices or ("",)
        text = self.help.replace("{choices}", f"{', '.join(most)} or {last}")
        without = otherwise or self.otherwise
        return worded(f"{text} ({without})" if without else text, flags)

    def read(self, value: Any) -> Any:
        """The value of a word on a command line, or of a value in a file. ValueError."""
        if not self.many:
            return _single(self.kind, value)
        items = value if isinstance(value, list | tuple) else [value]
        if self.kind is not str:
            items = [part for item in items for part in str(item).replace(",", " ").split()]
        return tuple(_single(self.kind, item) for item in items)

    def checked(self, value: Any) -> Any:
        """The value, with integers of any type as int, and paths as text. UsageError if invalid."""
        if self.many or (value is None and self.optional):
            return value
        good, expected = True, self.expected
        try:
            if self.choices:
                good, expected = str(value) in self.choices, f"one of {', '.join(self.choices)}"
            elif self.kind is str:
                value = os.fspath(value) if isinstance(value, os.PathLike) else value
                good, expected = isinstance(value, str), f"text: {self.help}"
            elif self.kind in (int, float):
                value = operator.index(value) if self.kind is int else value
                good, expected = self._within(value)
        except TypeError:
            good = False
        if not good:
            raise UsageError(f"{option(self.name)} is {brief(value)}, expected {expected}")
        return value

    @property
    def lowest(self) -> float:
        """The smallest allowed number; see ``_within`` for those that must be above it."""
        if self.least is None:
            return int(self.kind is int and self.default != 0)
        return self.least

    def _within(self, value: float) -> tuple[bool, str]:
        """Whether a number is in the range, and the range in words."""
        good, expected = value >= self.lowest, f"at least {self.lowest}"
        if self.kind is float and self.least is None and self.default != 0:
            good, expected = value > 0, "above 0"
        if self.most is not None:
            good, expected = good and value <= self.most, f"{expected} and at most {self.most}"
        elif self.kind is int and value > MOST:
            good, expected = False, f"at most {MOST:,}"
        if self.below < math.inf:
            expected += f" and below {self.below}"
        return good and value < self.below, expected


def in_group(group: str = "", **common: Any) -> Callable[..., Any]:
    """A function that declares a field: default, help, value, other parts of Option."""

    def declare(default: Any, help: str = "", value: str = "", **more: Any) -> Any:  # noqa: A002
        said = {"help": help, "value": value, "group": group, **common, **more}
        return field(default=default, metadata=said)

    return declare


@cache
def options_of(record: Any) -> Mapping[str, Option]:
    """The options that are the fields of a dataclass, by name."""
    found = {}
    for one in fields(record):
        hint = str(one.type) + ("" if one.default_factory is MISSING else " | None")
        match = _HINT.fullmatch(hint)
        many, word, optional = match.groups() if match else ("", "", hint.endswith("None"))
        found[one.name] = Option(
            one.name,
            KINDS.get(word, str if one.metadata.get("choices") else object),
            bool(many),
            None if one.default is MISSING else one.default,
            optional=bool(optional),
            hint=hint,
            **one.metadata,
        )
    return found


def check_options(request: Any) -> None:
    """Check all options of a frozen dataclass, and make integers of any type ints. UsageError."""
    record: Any = type(request)
    for one in options_of(record).values():
        object.__setattr__(request, one.name, one.checked(getattr(request, one.name)))


def list_of(options: Iterable[Option]) -> str:
    """The options as a list for a docstring."""
    return "\n".join(f"- ``{one.name}``: {one.said()}" for one in options if one.help)


def show_options(
    function: Callable[..., Any], options: Iterable[Option], *, of: Any = None
) -> None:
    """Show the options that a function takes as ``**options`` in its signature and its help.

    ``of`` is what has the help, if not the function.
    """
    before, options = signature(function), list(options)
    named = [one for one in before.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    parameters = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.hint)
        for one in options
    ]
    vars(function)["__signature__"] = before.replace(parameters=[*named, *parameters])
    of = of or function
    of.__doc__ = f"{getdoc(of)}\n\nOptions:\n\n{list_of(options)}\n"


def _single(kind: type, value: Any) -> Any:
    text = str(value)
    if kind is str:
        if isinstance(value, bool | list | Mapping):
            raise ValueError(text)
        return text
    if kind is float:
        return float(text)
    if kind is bool:
        return ("false", "true").index(text.lower()) == 1
    if kind is not int:
        return value
    text = without_unit(text)
    if not float(text).is_integer():
        raise ValueError(text)
    return int(text) if text.replace("_", "").isdigit() else int(float(text))
