"""Signatures of functions that pass their options on, made from records."""

from __future__ import annotations

from dataclasses import MISSING
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import Field


def show_options(function: Callable[..., Any], options: Iterable[Field[Any]]) -> None:
    """Show the fields of a dataclass as ``**options`` in the signature of a function."""
    before = signature(function)
    named = [one for one in before.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    parameters = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=None if one.default is MISSING else one.default,
            annotation=str(one.type) if one.default is not MISSING else f"{one.type} | None",
        )
        for one in options
    ]
    vars(function)["__signature__"] = before.replace(parameters=[*named, *parameters])
