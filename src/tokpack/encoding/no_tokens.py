"""What is said of a run in which no document has a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.encoding.rejects import reject_kinds
from tokpack.errors import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.encoding.piece import Pieces


def no_tokens(pieces: Pieces, total: Mapping[str, int], key: str) -> str:
    """The message: what was read, and what became of it; ``total`` are the counts of all inputs."""
    job = pieces.job
    names = job.sources[0].name
    if len(job.sources) > 1:
        names += f" and {len(job.sources) - 1} more"
    is_pipe = any(source.is_pipe and source.memory is None for source in job.sources)
    if not total["records"] and not is_pipe and not any(source.size for source in job.sources):
        return f"{names}: empty, so there is no document to encode"
    if job.chat is not None and not total["records"]:
        return f"{names}: has no record, so there is no conversation to encode"
    chosen = _chosen(total)
    if job.chat is not None:
        why = [f"{kind} ({count:,})" for kind, count in reject_kinds(pieces).items()]
        left = f"{names}: of {total['records']:,} records no conversation is left"
        return f"{left}: {', '.join([*why, *chosen])}"
    return (
        f"{names}: no document with a token under the key {key!r}: {total['records']} records were "
        f"read, {total['rejected']} of them were bad and the others empty"
        + (f", or left out: {' and '.join(chosen)}" if chosen else "")
    )


def _chosen(total: Mapping[str, int]) -> list[str]:
    """What ``where`` and ``map`` have left out, for a message."""
    where, mapped = total["left_out"], total["mapped_out"]
    words = [f"{option('where')} left out {where}"] if where else []
    return words + ([f"{option('map')} left out {mapped}"] if mapped else [])
