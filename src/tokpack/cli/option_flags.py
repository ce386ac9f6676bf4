"""Flags, made from the options of a request."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tokpack.cli.parser import Flag, flag, number, positive, size
from tokpack.encoding import EncodeOptions
from tokpack.option import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokpack.option import Option


def flags_from(options: Mapping[str, Option]) -> Callable[..., Flag]:
    """A function that makes the flag of one of the options, by its name."""
    own = {name: one.flag for name, one in options.items()}  # what help texts call them

    def flag_of(name: str, *aliases: str, otherwise: str = "", **settings: Any) -> Flag:
        """The flag of an option, with the value None if it is not given.

        ``otherwise`` is the effect of leaving it out, if that is not the one in Python;
        ``settings`` override arguments of argparse.
        """
        one = options[name]
        names = one.flags.split() or [one.flag]
        argument: dict[str, Any] = {"help": one.said(otherwise or one.default_words, own)}
        if one.kind is bool:
            either = one.default is not False and not one.flag.startswith("--no-")
            argument["action"] = argparse.BooleanOptionalAction if either else "store_true"
            argument["default"] = None
        else:
            if one.value:
                argument["metavar"] = one.value
            if one.choices:
                argument["choices"] = one.choices
            elif one.kind is int:
                argument["type"] = size if one.value == "SIZE" else number(int(one.lowest))
            elif one.kind is float:
                argument["type"] = positive
        if f"--{name.replace('_', '-')}" not in names:
            argument["dest"] = name
        return flag(*names, *aliases, **{**argument, **settings})

    return flag_of


ENCODE = options_of(EncodeOptions)
encode_flag = flags_from(ENCODE)


def encode_flags(
    group: str, without: tuple[str, ...] = (), **special: dict[str, Any]
) -> tuple[Flag, ...]:
    """The flags of a group of options of encode, in order; ``special`` ones with settings."""
    names = [name for name, one in ENCODE.items() if one.group == group and name not in without]
    return tuple(encode_flag(name, **special.get(name, {})) for name in names)
