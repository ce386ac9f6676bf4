"""The flags of the options of encode, made from the record that describes these."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from tokpack.cli.parser import Flag, flag, number, size
from tokpack.encoding import EncodeOptions
from tokpack.encoding.option import about, default_of, text_of

_FIELDS = {one.name: one for one in fields(EncodeOptions)}
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _FIELDS}  # but for aliases


def flag_of(name: str, *, otherwise: str = "", **settings: Any) -> Flag:
    """The flag of an option; ``settings`` override arguments of argparse.

    ``otherwise`` is the effect of leaving it out, if that is not the one in encode.
    """
    one = _FIELDS[name]
    described, default = about(one), default_of(one)
    names = described.flags.split() or [_FLAGS[name]]
    without = otherwise or described.otherwise or (default if isinstance(default, str) else "")
    argument: dict[str, Any] = {"help": text_of(one, without, _FLAGS)}
    if default is True:
        argument |= {"action": argparse.BooleanOptionalAction, "default": True}
    elif default is False:
        argument["action"] = "store_true"
    else:
        argument["default"] = default or None
        if described.value:
            argument["metavar"] = described.value
        if described.choices and "type" not in settings:
            argument["choices"] = described.choices
        elif described.least is not None:
            argument["type"] = size if described.value == "SIZE" else number(described.least)
    if _FLAGS[name] not in names:
        argument["dest"] = name
    return flag(*names, **{**argument, **settings})


def flags_of(group: str, *special: Flag, without: tuple[str, ...] = ()) -> tuple[Flag, ...]:
    """The flags of a group of options, in order; ``special`` ones are made by hand."""
    by_hand = {one.names[-1]: one for one in special}
    names = [name for name, one in _FIELDS.items() if about(one).group == group]
    flags = [flag_of(name) for name in names if name not in without]
    return tuple(by_hand.get(one.names[-1], one) for one in flags)
