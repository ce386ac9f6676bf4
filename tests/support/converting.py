"""Conversions, and what they are compared with."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.operations.convert import Converted, convert

if TYPE_CHECKING:
    from support.indexed_twin import Plain


def run(name: object, output: object, /, **options: Any) -> Converted:
    return convert(str(name), str(output), **options)


def same(one: object, other: object) -> None:
    """Both files of two datasets are the same bytes."""
    for suffix in ("bin", "idx"):
        assert Path(f"{one}.{suffix}").read_bytes() == Path(f"{other}.{suffix}").read_bytes()


def pack_lazy(plain: Plain, *, fairseq: bool = False) -> bytes:
    """A TNTIDX index, one struct at a time."""
    sizes = [len(sequence) for sequence in plain.sequences]
    count = len(sizes)
    code, width = {"H": (8, 2), "i": (4, 4), "q": (5, 8)}[plain.letter]
    index = b"TNTIDX\0\0" + struct.pack("<5Q", 1, code, width, count, count)
    if not fairseq:
        index += struct.pack("<Q", len(plain.doc_idx))
    offsets = [sum(sizes[:number]) for number in range(count + 1)]
    for array in (list(range(count + 1)), offsets, sizes, [] if fairseq else plain.doc_idx):
        index += struct.pack(f"<{len(array)}q", *array)
    return index
