"""Resolved configurations, for the tests of flags and files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import worded
from tokpack.trainer.config.config import FIELDS, Config
from tokpack.trainer.config.flags import resolve

if TYPE_CHECKING:
    from pathlib import Path


def config(line: str, world_size: int = 1) -> Config:
    """The configuration of a command line; notes name settings as in Python."""
    found = resolve(line.split(), world_size).config
    return replace(
        found, notes=tuple(map(worded, found.notes)), unlike=worded(found.unlike), flags={}
    )


def changed(found: Config) -> dict[str, Any]:
    """What is not as it is by default."""
    default = Config()
    return {n: getattr(found, n) for n in FIELDS if getattr(found, n) != getattr(default, n)}


def write(path: Path, values: Any) -> str:
    """A file of JSON, which is YAML too; its path."""
    path.write_text(json.dumps(values))
    return str(path)
