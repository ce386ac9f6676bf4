"""The flags of a blend, made from the record of its settings; each is also a key of a blend
file.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tokpack.cli.parser import flag, number
from tokpack.quantities import without_unit
from tokpack.samples.blend.spec import BlendSpec

if TYPE_CHECKING:
    from tokpack.cli.parser import Flag

_FIELDS = {one.name: one for one in fields(BlendSpec)}


def positive(text: str) -> float:
    """A converter for numbers above 0."""
    try:
        value = float(without_unit(text.replace("_", "").replace(",", "")))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def setting(name: str, *aliases: str) -> Flag:
    """The flag of a setting, with the value None if it is not given."""
    one = _FIELDS[name]
    about, kind = one.metadata, str(one.type).removesuffix(" | None")
    settings: dict[str, Any] = {}
    without = about["otherwise"]
    if kind == "bool":
        settings = {"action": "store_true", "default": None}
    elif about["choices"]:
        settings["choices"] = about["choices"]
    else:
        settings["metavar"] = about["value"]
        if kind in ("int", "float"):
            settings["type"] = number(about["least"]) if kind == "int" else positive
    if one.default and not without:
        without = str(one.default)
    help_text = f"{about['help']} ({without})" if without else about["help"]
    return flag(f"--{name.replace('_', '-')}", *aliases, help=help_text, **settings)
