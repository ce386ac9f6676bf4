"""Conversions, and what they are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokpack.formats.conversion import ConvertResult, convert


def run(name: object, output: object, /, **options: Any) -> ConvertResult:
    return convert(str(name), str(output), **options)


def same(one: object, other: object) -> None:
    """Both files of two datasets are the same bytes."""
    for suffix in ("bin", "idx"):
        assert Path(f"{one}.{suffix}").read_bytes() == Path(f"{other}.{suffix}").read_bytes()
