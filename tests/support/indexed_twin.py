"""A slow, obviously right twin of tokpack.dataset: the format in plain Python."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

CODES = {"B": 1, "b": 2, "h": 3, "i": 4, "q": 5, "H": 8}  # struct's letters
NAMES = {"B": "uint8", "b": "int8", "h": "int16", "i": "int32", "q": "int64", "H": "uint16"}


class Plain(NamedTuple):
    letter: str
    sequences: list[list[int]]
    doc_idx: list[int]


def read_plainly(prefix: str | Path) -> Plain:
    """Read a right dataset; any exception for a wrong one."""
    idx, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    magic, version, code, count, entries = struct.unpack_from("<9sQBQQ", idx)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    letter = {code: letter for letter, code in CODES.items()}[code]
    lengths = struct.unpack_from(f"<{count}i", idx, 34)
    pointers = struct.unpack_from(f"<{count}q", idx, 34 + 4 * count)
    doc_idx = struct.unpack_from(f"<{entries}q", idx, 34 + 12 * count)
    assert len(idx) - (34 + 12 * count + 8 * entries) in (0, count)
    sequences = [
        list(struct.unpack_from(f"<{length}{letter}", data, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    return Plain(letter, sequences, list(doc_idx))


def pack_index(plain: Plain, version: int = 1) -> bytes:
    """The bytes of the .idx."""
    size = struct.calcsize(plain.letter)
    pointers, end = [], 0
    for sequence in plain.sequences:
        pointers.append(end)
        end += size * len(sequence)
    count, entries = len(plain.sequences), len(plain.doc_idx)
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", version, CODES[plain.letter], count, entries)
    lengths = struct.pack(f"<{count}i", *map(len, plain.sequences))
    return head + lengths + struct.pack(f"<{count + entries}q", *pointers, *plain.doc_idx)


def write_plainly(prefix: str | Path, plain: Plain) -> None:
    tokens = [token for sequence in plain.sequences for token in sequence]
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(tokens)}{plain.letter}", *tokens))
    Path(f"{prefix}.idx").write_bytes(pack_index(plain))


def take_sum(job: tuple[Sequence[Any], int]) -> int:
    """Sum of one sequence of a dataset, for a worker process."""
    dataset, number = job
    return int(sum(dataset[number].tolist()))
