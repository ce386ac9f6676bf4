"""Ids and labels in .bin/.idx files beside each other, as GPT-NeoX has them.

Its ``preprocess_data_with_chat_template.py`` writes P_document and P_label_document (and
P_reward_document, with a number for each document): all are int32, labels are unshifted, and -100
does not count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import bin_path, idx_path, index_chunks, storage_dtype
from tokpack.indexed.prefix import prefix_of
from tokpack.operations.foreign import ForeignDataset, open_mmap
from tokpack.operations.masks import in_step, tracks_of_labels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.operations.export import Content

_DTYPE = storage_dtype("int32")
_SUFFIXES = ("_document", "_label_document")


def neox_base(name: str) -> str:
    """P, of either file of a dataset of GPT-NeoX, or of P itself."""
    prefix = prefix_of(name)
    for suffix in reversed(_SUFFIXES):
        if prefix.endswith(suffix):
            return prefix.removesuffix(suffix)
    return prefix


def neox_prefixes(base: str) -> list[str]:
    """The prefixes of the documents and of their labels."""
    return [base + suffix for suffix in _SUFFIXES]


def neox_paths(base: str) -> list[str]:
    """The files of such a dataset."""
    return [path(prefix) for prefix in neox_prefixes(base) for path in (bin_path, idx_path)]


def is_neox(name: str) -> bool:
    """Whether there are documents with labels beside them."""
    return all(map(MMapIndexedDataset.exists, neox_prefixes(neox_base(name))))


def open_neox(name: str) -> ForeignDataset:
    """Documents of GPT-NeoX with their labels. FormatError where these are not of them."""
    base = neox_base(name)
    text, labels = (open_mmap(prefix) for prefix in neox_prefixes(base))
    _check_same(text, labels)
    rewards = f"{base}_reward_document"
    left_out = (f"{rewards} is left out: add it as a column of the table of documents",)
    return replace(
        text,
        tracks=tracks_of_labels(labels.name, lambda: _pairs(text, labels)),
        notes=left_out if MMapIndexedDataset.exists(rewards) else (),
    )


def _pairs(
    ids: ForeignDataset, labels: ForeignDataset
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    return ((part, values) for part, values in in_step(labels.name, ids.ids(), labels.ids()))


def _check_same(ids: ForeignDataset, other: ForeignDataset) -> None:
    """FormatError where a dataset has not the sequences and documents of another."""
    if other.dtype.kind != "i" or other.dtype.itemsize < 4:
        raise FormatError(f"{other.name}: holds {other.dtype}, expected int32")
    if other.sequences != ids.sequences:
        raise FormatError(
            f"{other.name}: {other.sequences} sequences, expected {ids.sequences}, as in {ids.name}"
        )
    first = 0
    for one, two in in_step(other.name, ids.lengths(), other.lengths()):
        if (wrong := np.flatnonzero(one != two)).size:
            raise FormatError(
                f"{other.name}: sequence {first + wrong[0]} has {two[wrong[0]]} tokens, expected "
                f"{one[wrong[0]]}, as in {ids.name}: the files do not belong together"
            )
        first += len(one)
    if not np.array_equal(ids.doc_idx, other.doc_idx):  # type: ignore[arg-type]
        raise FormatError(f"{other.name}: has other documents than {ids.name}")


def write_neox(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents and their labels as GPT-NeoX's script does."""
    text, text_index, labels, labels_index = files
    for ids, values in content.labelled():
        text.write(ids.data)
        labels.write(values.astype(_DTYPE).data)
    for index in (text_index, labels_index):
        index.writelines(index_chunks(_DTYPE, content.lengths, content.doc_idx))
    return []
