"""The reader of JSON that may be anybody's: bounded in size, depth and digits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from tokpack.display import brief, message
from tokpack.errors import FormatError, InputError, TokpackError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

MAX_BYTES = 1 << 29  # of a JSON file: a manifest of a million inputs, a tokenizer of a million ids
MAX_DEPTH = 100
MAX_DIGITS = 60  # of a number

# Whether a text may have a number that is too long is seen without parsing it. Such a number has
# more than MAX_DIGITS characters of "0123456789+-.eE" in a row; sign, point and exponent cut it
# into at most three runs of digits, of which one has 19 or more. NUL counts as a digit, as it is
# between the digits of UTF-16.
_NUMBER = b"0" * (MAX_DIGITS + 1)
_NUMBERS_ALIKE = bytes(48 if byte in b"0123456789+-.eE\0" else 32 for byte in range(256))
_ROW = b"0" * 19
_DIGITS_ALIKE = bytes(48 if byte in b"0123456789\0" else 32 for byte in range(256))
_LOOKED_AT = 1 << 20  # bytes at once
_NESTED = frozenset([list, dict])


def read_whole(
    path: str | os.PathLike[str],
    *,
    most: int = MAX_BYTES,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
    problem: str = "",
) -> bytes:
    """The bytes of a file that should be small.

    Raises ``missing``, with ``problem`` before the reason, where it cannot be read, ``wrong`` where
    it has more than ``most`` bytes.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(most + 1)
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise missing(f"{path!s}: {problem}{reason}") from None
    if len(raw) > most:
        raise wrong(f"{path!s}: has more than {most:,} bytes, the most that is read of such a file")
    return raw


def parse_json(
    text: str | bytes, name: str | os.PathLike[str], *, wrong: type[TokpackError] = FormatError
) -> Any:
    """What a JSON text says; ``name`` is its file's.

    Raises ``wrong`` where it is no JSON, nested more than MAX_DEPTH deep, or has a number of more
    than MAX_DIGITS digits; so whoever walks through the value may recurse.
    """
    if len(text) > MAX_BYTES:
        raise wrong(f"{name!s}: has more than {MAX_BYTES:,} bytes, the most that is read as JSON")
    try:
        value = _loads(text)
    except RecursionError:
        _refuse_depth(name, wrong)
    except MemoryError:
        raise wrong(f"{name!s}: takes too much memory as JSON") from None
    except ValueError as error:  # malformed, or not UTF-8
        raise wrong(f"{name!s}: not JSON: {message(str(error))}") from None
    check_depth(value, name, wrong)
    return value


def _loads(text: str | bytes) -> Any:
    """json.loads, with ValueError for a number of too many digits."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if _may_have_long_number(raw):
        return json.loads(text, parse_int=_whole, parse_float=_real)
    return json.loads(text)  # no call for each number


def _may_have_long_number(raw: bytes) -> bool:
    for begin in range(0, len(raw), _LOOKED_AT):
        part = raw[begin : begin + _LOOKED_AT + MAX_DIGITS]
        if _ROW in part.translate(_DIGITS_ALIKE) and _NUMBER in part.translate(_NUMBERS_ALIKE):
            return True
    return False


def read_json(
    path: str | os.PathLike[str],
    *,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
) -> Any:
    """What a JSON file says. Raises as `read_whole` and `parse_json`."""
    return parse_json(read_whole(path, missing=missing, wrong=wrong), path, wrong=wrong)


def read_object(
    path: str | os.PathLike[str],
    *,
    missing: type[TokpackError] = InputError,
    wrong: type[TokpackError] = FormatError,
) -> dict[str, Any]:
    """The same for a file that holds an object."""
    value = read_json(path, missing=missing, wrong=wrong)
    if not isinstance(value, dict):
        raise wrong(f"{path!s}: expected a JSON object, found {brief(value)}")
    return value


def check_depth(value: Any, name: str | os.PathLike[str], wrong: type[TokpackError]) -> None:
    """Raise ``wrong`` where lists and objects are nested more than MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [node for node in level if isinstance(node, (dict, list))]
        if not level:
            return
        level = [child for node in level for child in _children(node)]
    _refuse_depth(name, wrong)


def _children(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    """What is in a list or an object; nothing where that has neither lists nor objects."""
    children = node.values() if isinstance(node, dict) else node
    return () if _NESTED.isdisjoint(map(type, children)) else children


def _refuse_depth(name: str | os.PathLike[str], wrong: type[TokpackError]) -> NoReturn:
    raise wrong(f"{name!s}: nested more than {MAX_DEPTH} deep") from None


def check_digits(digits: str) -> str:
    """The digits of a number; ValueError where they are too many."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits: {digits[:20]}...")
    return digits


def _whole(digits: str) -> int:
    return int(check_digits(digits))


def _real(digits: str) -> float:
    return float(check_digits(digits))
