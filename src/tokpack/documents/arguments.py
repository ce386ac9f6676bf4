"""What callers give in Python for what the command line has as text: numbers, shares, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option
from tokpack.indexed.table import import_parquet
from tokpack.quantities import count_of, share_of
from tokpack.sources.values import table_of

if TYPE_CHECKING:
    from collections.abc import Callable


def as_count(name: str, value: Any) -> int | None:
    """A whole number: 1500, 1.5e6, "1.5M". UsageError."""
    number = _number(name, value, count_of, "a whole number such as 1500 or '1.5M'")
    return None if number is None else int(number)


def as_share(name: str, value: Any) -> float | None:
    """A share: 0.1, "0.1", "10%". UsageError."""
    return _number(name, value, share_of, "a share such as 0.1 or '10%'")


def _number(name: str, value: Any, parse: Callable[[str], float], what: str) -> float | None:
    try:
        if value is None or isinstance(value, int):
            return value
        return parse(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{option(name)} is {brief(value)}; it is {what}") from None


def as_table(name: str, value: Any) -> Any:
    """A table of this process as a pyarrow Table. UsageError."""
    arrow = import_parquet()
    try:
        return table_of(value)
    except (arrow.ArrowException, ValueError, TypeError) as error:
        raise UsageError(f"{option(name)}: the table cannot become Arrow: {error}") from error
