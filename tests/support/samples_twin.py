"""Small datasets for the tests of samples, and slow twins of what is tested."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from support.indexed_twin import Plain, write_plainly
from tokpack.dataset import Manifest, digest_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write_dataset(prefix: Path, lengths: Sequence[int], first: int = 1) -> list[list[int]]:
    """A dataset whose tokens are first, first + 1, ... in the order of the file."""
    sequences, token = [], first
    for length in lengths:
        sequences.append(list(range(token, token + length)))
        token += length
    write_plainly(prefix, Plain("i", sequences, list(range(len(lengths) + 1))))
    return sequences


def some_lengths(count: int, seed: int = 0, longest: int = 60) -> list[int]:
    """Lengths with empty sequences among them, also first and last."""
    draw = random.Random(seed)
    inner = [draw.choice((0, 1, draw.randint(1, longest))) for _ in range(count - 2)]
    return [0, *inner, 0]


def write_manifest(prefix: Path, name: str, sha256: str, eod_id: int | None = None) -> None:
    """A manifest beside a dataset that names a tokenizer."""
    tokenizer: dict[str, Any] = {"name": name, "sha256": sha256, "eod_id": eod_id}
    counts = dict.fromkeys(("records", "documents", "sequences", "tokens", "empty"), 0)
    Manifest(
        tokpack_version="0",
        created="2024-01-01T00:00:00+00:00",
        tokenizer=tokenizer,
        options={},
        inputs=[],
        rejected=0,
        text_bytes=0,
        dtype="int32",
        bin=digest_file(f"{prefix}.bin"),
        idx=digest_file(f"{prefix}.idx"),
        **counts,
    ).save(prefix)
