"""Our own JSON as the dataclasses that it was written from, checked by their annotations."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tokpack.display import brief
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_COUNT = 1 << 62  # sums of such stay inside 64 bits
_LATEST = 1e11  # of a time in seconds since the epoch: what can be shown as a date
T = TypeVar("T")


def decode(kind: type[T], values: object, name: str) -> T:
    """The dataclass ``kind`` of which a JSON object has the fields.

    Its numbers are counts and times, none below zero. Keys that are no field are passed over; what
    is absent or null has its default. FormatError, with the ``name`` of the file and the place in
    it, for a value of another type than the field's, or for one that makes ``kind`` a ValueError.
    """
    if not isinstance(values, dict):
        raise FormatError(f"{name} is {brief(values)}, expected an object")
    arguments = {}
    of_type: Any = kind
    for field, hint in _hints(of_type):
        value = values.get(field.name)
        if value is not None or field.default is field.default_factory is MISSING:
            arguments[field.name] = _value(value, hint, f"{name}: {field.name}")
    try:
        return kind(**arguments)
    except ValueError as error:
        raise FormatError(f"{name}: {error}") from None


@functools.cache
def _hints(kind: Any) -> list[tuple[Any, Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in fields(kind)]


def _value(value: Any, hint: Any, where: str) -> Any:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:  # of something and None
        return _value(value, inner[0], where)
    if isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value, where)
    if kind in (dict, Mapping) and isinstance(value, dict) and inner[1] is not Any:
        return {key: _value(one, inner[1], f"{where}[{key!r}]") for key, one in value.items()}
    if kind in (list, tuple, Sequence) and isinstance(value, list) and inner[0] is not Any:
        ones = [_value(one, inner[0], f"{where}[{number}]") for number, one in enumerate(value)]
        return tuple(ones) if kind is tuple else ones
    if kind is Literal:
        expected, is_right = f"one of {', '.join(inner)}", value in inner
    else:
        expected, test = _PLAIN.get(kind, _PLAIN[dict])
        is_right = test(value)
    if not is_right:
        raise FormatError(f"{where} is {brief(value)}, expected {expected}")
    return value


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LATEST  # not NaN


_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a count", lambda value: type(value) is int and 0 <= value <= MAX_COUNT),
    float: ("a time", _is_time),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    dict: ("an object", lambda value: isinstance(value, dict)),
    **dict.fromkeys((list, tuple, Sequence), ("a list", lambda value: isinstance(value, list))),
}
