"""Datasets as nested lists: documents of sequences of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from support.indexed_twin import Plain, read_plainly

if TYPE_CHECKING:
    from pathlib import Path

Documents = list[list[list[int]]]
DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=3), min_size=0, max_size=8
)


def plain(documents: Documents, letter: str = "H") -> Plain:
    """The dataset of documents, each a list of sequences."""
    doc_idx = [0]
    for document in documents:
        doc_idx.append(doc_idx[-1] + len(document))
    return Plain(letter, [sequence for document in documents for sequence in document], doc_idx)


def documents_of(prefix: str | Path) -> Documents:
    """The documents of a dataset, read by the twin."""
    found = read_plainly(prefix)
    bounds = zip(found.doc_idx[:-1], found.doc_idx[1:], strict=True)
    return [found.sequences[begin:end] for begin, end in bounds]
