"""The declaration of a setting: once, for its flag, its key in files, the help page and its checks.

Messages name a setting as a flag if flags were typed, otherwise by its key.
"""

from __future__ import annotations

import math
import os
import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import UsageError, option
from tokpack.quantities import without_unit
from tokpack.storage.disk import MAX_COUNT, not_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}
_VALUES = {int: "N", float: "X", str: "T"}  # what the help page writes for a value


@dataclass(frozen=True)
class Setting:
    """One setting. Without ``help`` it is not on the help page.

    ``kind`` is bool, int, float or str; with any other kind a value is taken as it is. With
    ``many`` the value is a tuple of them. ``choices`` are the words that it may have; "{choices}"
    in ``help`` lists them. A number is at most ``most``, less than ``below``, and may be 0 if
    ``zero`` is true or 0 is the default.
    """

    name: str
    kind: type = object
    many: bool = False
    default: Any = None
    choices: str = ""
    zero: bool = False
    most: float = math.inf
    below: float = math.inf
    group: str = ""
    help: str = ""
    value: str = ""  # what the help page writes for the value instead of N, X or T
    otherwise: str = ""  # the default in words, where it depends on other settings

    @property
    def words(self) -> float:
        """The number of words that may follow its flag."""
        return 0 if self.kind is bool else math.inf if self.many else 1

    def read(self, value: Any) -> Any:
        """The value of a word on a command line, or of a value in a file. ValueError."""
        if not self.many:
            return _single(self.kind, value)
        items = value if isinstance(value, (list, tuple)) else [value]
        if self.kind is not str:
            items = [part for item in items for part in str(item).replace(",", " ").split()]
        return tuple(_single(self.kind, item) for item in items)

    def check(self, value: Any) -> None:
        """Raise UsageError for a word that is not a choice, and for a number out of range."""
        if choices := self.choices.split():
            if value is not None and str(value) not in choices:
                expected = f"expected one of {', '.join(choices)}"
                raise UsageError(f"{option(self.name)} is {value!r}, {expected}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            good, expected = self._range(value)
            if not (good and math.isfinite(value)):
                raise UsageError(f"{option(self.name)} is {brief(value)}, expected {expected}")

    @property
    def flag(self) -> str:
        """The flag of the setting; for a switch that is on by default, the flag that turns it
        off.
        """
        off = "no-" if self.kind is bool and self.default else ""
        return f"--{off}{self.name.replace('_', '-')}"

    @property
    def default_words(self) -> str:
        """The default as text."""
        if self.otherwise or self.default is None:
            return self.otherwise or "none"
        return f"{self.default:g}" if self.kind is float else str(self.default)

    @property
    def help_words(self) -> tuple[str, str]:
        """The name of its value on the help page, and its help with the default."""
        *most, last = self.choices.split() or [""]
        text = self.help.replace("{choices}", f"{', '.join(most)} or {last}")
        if self.otherwise or not (self.kind is bool or self.default is None or self.many):
            text += f" ({self.default_words})"
        return self.value or _VALUES.get(self.kind, ""), text

    def _range(self, value: float) -> tuple[bool, str]:
        if self.zero or self.default == 0:
            good, expected = value >= 0, "at least 0"
        elif self.kind is int:
            good, expected = value >= 1, "at least 1"
        else:
            good, expected = value > 0, "above 0"
        if isinstance(value, int) and value > MAX_COUNT:
            good, expected = False, f"at most {MAX_COUNT:,}"
        if self.most < math.inf:
            good, expected = good and value <= self.most, f"{expected} and at most {self.most}"
        if self.below < math.inf:
            good, expected = good and value < self.below, f"{expected} and below {self.below}"
        return good, expected


def kind_of(hint: Any) -> tuple[type, bool]:
    """The kind of a type, and whether it is a tuple of that kind; the kind of ``int | None`` is
    int.
    """
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    return typing.get_origin(hint) or hint, False


def flags_typed(flags: Mapping[str, str], argv: Sequence[str]) -> Mapping[str, str]:
    """The flags, by option name, that messages use: those of ``flags`` that ``argv`` may have
    given.

    If a file is among the words, it has options under their own names; then only flags that were
    typed are returned.
    """
    named = (word for word in argv if word.endswith((".yaml", ".yml", ".json")))
    if not any(os.path.isfile(word) and not not_settings(word) for word in named):
        return flags
    typed = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in argv}
    return {name: flag for name, flag in flags.items() if name in typed}


def _single(kind: type, value: Any) -> Any:
    text = str(value)
    if kind is str:
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
