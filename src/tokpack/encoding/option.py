"""The description of each option of encode, besides type and default: one record for all uses."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

from tokpack.errors import UsageError, option, worded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Option:
    """The description of a field of EncodeOptions, for its flag and for Python.

    ``otherwise`` is the effect of leaving it out, if the default does not show that. ``flags`` are
    the names of its flag, if not its own; ``value`` is the name of the flag's value on help pages.
    ``least`` is the smallest number and ``choices`` are the words that it can be. ``loads`` and
    ``frames`` are whether load_tokenizer, or frame_of, has a parameter of this name.
    """

    help: str = ""
    value: str = ""
    otherwise: str = ""
    flags: str = ""
    least: int | None = None
    choices: tuple[str, ...] = ()
    loads: bool = False
    frames: bool = False
    group: str = ""  # of the help page; "" for what has no flag of its own


def in_group(group: str, **common: bool) -> Callable[..., Any]:
    """A function that declares a field of EncodeOptions from its default and values of Option."""

    def declare(default: Any, help: str, value: str = "", **more: Any) -> Any:  # noqa: A002
        about = Option(help, value, group=group, **{**common, **more})
        return field(default=default, metadata={"option": about})

    return declare


def about(one: Field[Any]) -> Option:
    """The description of a field of EncodeOptions."""
    described: Option = one.metadata.get("option") or Option()
    return described


def text_of(one: Field[Any], otherwise: str = "", flags: Mapping[str, str] | None = None) -> str:
    """The description of a field of EncodeOptions, with the effect of leaving it out.

    Options in it have their ``flags``, or else their names in Python.
    """
    described = about(one)
    without = otherwise or described.otherwise
    return worded(f"{described.help} ({without})" if without else described.help, flags)


def list_of(options: Iterable[Field[Any]]) -> str:
    """The fields of EncodeOptions as a list for a docstring."""
    return "\n".join(f"- ``{one.name}``: {text_of(one)}" for one in options if about(one).help)


def default_of(one: Field[Any]) -> Any:
    """The default of a field of EncodeOptions in Python, or None if a factory makes it."""
    return None if one.default is MISSING else one.default


def check(name: str, value: object, default: object, described: Option) -> None:
    """Raise UsageError for a word that is no choice, and for a number that is too small."""
    if described.choices and value not in described.choices:
        allowed = ", ".join(described.choices)
        raise UsageError(f"{option(name)} is {value!r}; it can be {allowed}")
    if described.least is None or (value is None and default is None):
        return
    if not isinstance(value, SupportsIndex):
        raise UsageError(f"{option(name)} is {value!r}, which is no whole number")
    if operator.index(value) < described.least:
        raise UsageError(f"{option(name)} is {value}; the least is {described.least}")


def texts_of(name: str, value: object) -> tuple[str, ...]:
    """The texts of an option that is one text or several; one with commas is split at them.

    UsageError for anything else.
    """
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or not all(isinstance(one, str) for one in texts):
        raise UsageError(f"{option(name)} is {value!r}; it is a list of names, such as ['id']")
    return tuple(text for one in texts if (text := one.strip()))
