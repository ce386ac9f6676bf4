"""What an import passes over in a model of another program, and what it refuses by name.

An argument that nobody knows may change what the model computes, and the weights would import
without an error. So arguments.txt lists what changes nothing; all else is refused, unless it is off
or the user accepts it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SHOWN = 8  # of those that are refused


def pass_over(
    where: Path | str,
    values: Mapping[str, Any],
    sections: Collection[str],
    read: Collection[str],
    accepted: Collection[str],
) -> dict[str, str]:
    """The ``accepted`` arguments among ``values``, with their values as text.

    The import looks at the names ``read`` itself; ``sections`` of arguments.txt list what changes
    nothing. UsageError, which begins with ``where``, for any other argument that is not off.
    """
    wrong = {
        name: brief(value)
        for name, value in values.items()
        if name not in read and not _is_off(value) and not _changes_nothing(name, values, sections)
    }
    taken = {name: wrong.pop(name) for name in [*wrong] if name in accepted}
    if wrong:
        shown = [f"{name} {value}" for name, value in list(wrong.items())[:_SHOWN]]
        more = f" and {len(wrong) - _SHOWN} others" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"{where}: {', '.join(shown)}{more}: the models here have none such, or it is not "
            f"known what it does; {option('accept_argument', next(iter(wrong)))} imports the "
            "weights without it"
        )
    return taken


def _is_off(value: Any) -> bool:
    """Whether an argument asks for nothing."""
    plain = isinstance(value, (bool, int, float, str, list, tuple, dict, set))
    return value is None or (plain and not value)


def _changes_nothing(name: str, values: Mapping[str, Any], sections: Collection[str]) -> bool:
    for section in sections:
        names = _table()[section]
        starts = tuple(one[:-1] for one in names if one.endswith("*"))
        allowed = names.get(name, [] if name.startswith(starts) else None)
        if allowed == [] or (allowed and _is_one(values[name], allowed, values)):
            return True
    return False


def _is_one(value: Any, allowed: list[str], values: Mapping[str, Any]) -> bool:
    """Whether a value, or each item of a list, is one of those that may be passed over."""
    known = [str(values.get(word[1:])) if word.startswith("@") else word for word in allowed]
    if isinstance(value, (list, tuple)) and str(value) not in known:
        return bool(value) and all(_is_one(one, allowed, values) for one in value)
    is_number = isinstance(value, (int, float))
    return str(value) in known or (is_number and value in map(_number, known))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    """The names of each section, and the values that they may have; [] for all."""
    table: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            for word in line.split():
                name, _, allowed = word.partition("=")
                table[section][name] = allowed.split("|") if allowed else []
        elif not line.startswith("#") and line:
            section = line.partition(" | ")[0]
            table.setdefault(section, {})
    return table
