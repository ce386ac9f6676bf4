"""Small parts, pieces, caches and blocks of checksums, so that small inputs have many of each."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.small_caches import CACHE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


def sizes(part_bytes: int) -> dict[str, Any]:
    """Small parts, pieces that do not wait in memory for long, syncs all the time.

    So a fault meets every state. The blocks of checksums must be the same when a run goes on.
    """
    return {
        "tokpack.encoding.run.SYNC_SECONDS": 0.02,
        "tokpack.encoding.plan.MIN_PART_BYTES": part_bytes,
        "tokpack.encoding.plan.MAX_PART_BYTES": part_bytes,
        "tokpack.sources.parts.make_parts.__kwdefaults__": {
            "target_bytes": part_bytes,
            "smallest_bytes": part_bytes,
        },
        "tokpack.encoding.worker.HELD_BYTES": part_bytes // 2,
        "tokpack.storage.disk.blocks.BLOCK_BYTES": part_bytes // 8,
        "tokpack.tokenizers.native.CACHE_BYTES": CACHE_BYTES,
    }


def small_parts(part_bytes: int) -> str:
    """The sizes, as a script without braces, which may be formatted."""
    lines = []
    for name, value in sizes(part_bytes).items():
        module = name.rpartition(".")[0].removesuffix(".make_parts")
        said = f"dict({[*value.items()]})" if isinstance(value, dict) else value
        lines.append(f"import {module}; {name} = {said}\n")
    return "".join(lines)


@contextmanager
def in_small_parts(part_bytes: int) -> Iterator[None]:
    """The sizes, in this process and its forks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes(part_bytes).items():
            patch.setattr(name, value)
        yield
