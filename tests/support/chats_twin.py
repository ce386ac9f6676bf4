"""Masks in the formats of other programs, in plain Python: what is written, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from support.documents import documents_of, plain
from support.indexed_twin import write_plainly
from tokpack.dataset import MMapIndexedDatasetBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IGNORED = -100
Chat = tuple[list[int], list[int]]  # ids, and 1 for each that is trained
CHATS = st.lists(
    st.lists(st.tuples(st.integers(0, 60000), st.integers(0, 1)), min_size=1, max_size=6).map(
        lambda pairs: ([one for one, _ in pairs], [mask for _, mask in pairs])
    ),
    min_size=1,
    max_size=8,
)


def write_chats(prefix: str | Path, chats: Sequence[Chat], **more: Sequence[Sequence[Any]]) -> None:
    """A dataset of ours, with a mask and other tracks."""
    tracks = {"mask": [mask for _, mask in chats], **more}
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32, tracks=list(tracks))
    with builder:
        for number, (ids, _) in enumerate(chats):
            builder.add_item(ids, **{name: values[number] for name, values in tracks.items()})
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def labels_of(chat: Chat) -> list[int]:
    return [token if trained else IGNORED for token, trained in zip(*chat, strict=True)]


def write_lists(prefix: str | Path, rows: Sequence[Sequence[int]]) -> None:
    """A .bin/.idx of int32, a document a row."""
    write_plainly(prefix, plain([[list(row)] for row in rows], "i"))


def rows_of(prefix: str | Path) -> list[list[int]]:
    """The rows of a .bin/.idx with a sequence for each document."""
    documents = documents_of(prefix)
    assert all(len(document) == 1 for document in documents)
    return [row for (row,) in documents]


Triple = tuple[list[int], list[int], list[int]]  # what is read, what is predicted, what counts


def predicted(chat: Chat) -> Triple:
    """What a trainer makes of a conversation."""
    ids, mask = chat
    return ids[:-1], ids[1:], mask[1:]


def bridge_predicts(row: dict[str, list[int]]) -> list[Triple]:
    """The same of each document of a packed row, as Megatron-Bridge reads it."""
    bounds = [*row["seq_start_id"], len(row["input_ids"])]
    found = []
    for number, begin in enumerate(bounds[:-1]):
        ids, mask = (row[key][begin : bounds[number + 1]] for key in ("input_ids", "loss_mask"))
        found.append((ids[:-1], ids[1:], mask[:-1]))
    return found
