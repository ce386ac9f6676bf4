"""A reader for JSON that anybody may have written: bounded in size, depth and digits."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from tokpack.display import brief, message
from tokpack.errors import FormatError, InputError, TokpackError
from tokpack.storage.disk.durable import open_regular
from tokpack.storage.disk.mistaken import pointer_in

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_BYTES = 1 << 29  # enough for a manifest of a million inputs, a tokenizer of a million ids
MAX_DEPTH = 100
MAX_DIGITS = 60  # of a whole number

_OF_THE_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")

_MOST_BITS = 200  # of such a number
_PLAIN = frozenset([str, float, bool, type(None)])


def read_whole(
    path: str | os.PathLike[str],
    *,
    most: int = MAX_BYTES,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
    problem: str = "",
) -> bytes:
    """The bytes of a file that should be small, or of a pipe such as a shell's <(command).

    Raises ``missing``, with ``problem`` before the reason, if it cannot be read, and ``wrong`` if
    it has more than ``most`` bytes, or is a pointer to a file that was not fetched.
    """
    try:
        name = os.fspath(path)
        is_pipe = name.startswith(_OF_THE_SHELL)
        with open(name, "rb") if is_pipe else open_regular(name) as file:
            raw = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise missing(f"{path!s}: {problem}{reason}") from None
    if len(raw) > most:
        raise wrong(f"{path!s}: has more than {most:,} bytes, the limit for such a file")
    if pointer := pointer_in(raw):
        raise wrong(f"{path!s}: this is {pointer}")
    return raw


def parse_json(
    text: str | bytes, name: str | os.PathLike[str], *, wrong: type[TokpackError] = FormatError
) -> Any:
    """The value of a JSON text; ``name`` is that of its file.

    Raises ``wrong`` if it is not JSON, is nested more than MAX_DEPTH deep, or has an integer of
    more than MAX_DIGITS digits. So callers may walk through the value recursively.
    """
    if len(text) > MAX_BYTES:
        raise wrong(f"{name!s}: has more than {MAX_BYTES:,} bytes, the limit for JSON")
    try:
        value = json.loads(text)
    except RecursionError:
        _refuse_depth(name, wrong)
    except MemoryError:
        raise wrong(f"{name!s}: takes too much memory as JSON") from None
    except ValueError as error:  # malformed, or not UTF-8
        raise wrong(f"{name!s}: not JSON: {message(str(error))}") from None
    _check(value, name, wrong)
    return value


def read_json(
    path: str | os.PathLike[str],
    *,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
) -> Any:
    """The value of a JSON file. Raises as `read_whole` and `parse_json`."""
    return parse_json(read_whole(path, missing=missing, wrong=wrong), path, wrong=wrong)


def read_object(
    path: str | os.PathLike[str],
    *,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
) -> dict[str, Any]:
    """The object of a JSON file. Raises as `read_json`, and for any other value."""
    value = read_json(path, missing=missing, wrong=wrong)
    if not isinstance(value, dict):
        raise wrong(f"{path!s}: expected a JSON object, found {brief(value)}")
    return value


def _check(value: Any, name: str | os.PathLike[str], wrong: type[TokpackError]) -> None:
    """Raise ``wrong`` for a value nested more than MAX_DEPTH deep, and for too long integers."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(type(node) is int and node.bit_length() > _MOST_BITS for node in level):
            raise wrong(f"{name!s}: not JSON: a number of more than {MAX_DIGITS} digits")
        level = [node for node in level if isinstance(node, (dict, list))]
        if not level:
            return
        inside = [node.values() if isinstance(node, dict) else node for node in level]
        level = [
            child for some in inside if not _PLAIN.issuperset(map(type, some)) for child in some
        ]
    _refuse_depth(name, wrong)


def _refuse_depth(name: str | os.PathLike[str], wrong: type[TokpackError]) -> NoReturn:
    raise wrong(f"{name!s}: nested more than {MAX_DEPTH} deep") from None


# tokpack's own JSON is read into the dataclasses that it was written from. Their annotations say
# what is valid.

MAX_COUNT = 1 << 62  # the sum of two fits into 64 bits
_LATEST = 1e11  # seconds since the epoch; a later time cannot be shown as a date
T = TypeVar("T")


def decode(kind: type[T], values: object, name: str) -> T:
    """The dataclass ``kind`` with fields from a JSON object.

    Numbers must be counts or times, none negative. Unknown keys are ignored; a field that is absent
    or null has its default. FormatError, with the ``name`` of the file and the place in it, for a
    value of the wrong type, or if ``kind`` raises a ValueError.
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
    if kind is UnionType:  # always of a type and None
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
        expected, test = _PLAIN_TYPES.get(kind, _PLAIN_TYPES[dict])
        is_right = test(value)
    if not is_right:
        raise FormatError(f"{where} is {brief(value)}, expected {expected}")
    return value


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LATEST  # not NaN


_PLAIN_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a count", lambda value: type(value) is int and 0 <= value <= MAX_COUNT),
    float: ("a time", _is_time),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    dict: ("an object", lambda value: isinstance(value, dict)),
    **dict.fromkeys((list, tuple, Sequence), ("a list", lambda value: isinstance(value, list))),
}
