"""Ids and labels in separate .bin/.idx files, as in GPT-NeoX.

Its ``preprocess_data_with_chat_template.py`` writes P_document and P_label_document (and
P_reward_document, with a number for each document): all are int32, labels are not shifted, and -100
does not count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.format import bin_path, idx_path, index_chunks, prefix_of, storage_dtype
from tokpack.errors import FormatError
from tokpack.formats.foreign import ForeignDataset, open_mmap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO

    from tokpack.formats.export import Content
    from tokpack.formats.foreign import Arrays


# In other programs labels say which tokens are trained: -100 does not count. Value i of a mask, or
# of labels, belongs to token i, not shifted, as in tokpack's own tracks.

IGNORED = -100  # the label of a token that is not trained
_LABELS = np.iinfo(np.int32)
_NONE: npt.NDArray[Any] = np.zeros(0, np.int8)


def in_step(name: str, first: Arrays, *others: Arrays) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """The parts of the first array, each with the same values of the others.

    FormatError, about ``name``, where another one ends before the first.
    """
    cutters = [_Cutter(name, other) for other in others]
    for part in first:
        yield part, *(cutter.take(len(part)) for cutter in cutters)


class _Cutter:
    """An array that comes in parts, cut into others."""

    def __init__(self, name: str, parts: Arrays) -> None:
        self._name, self._parts, self._rest = name, parts, next(parts, _NONE)

    def take(self, count: int) -> npt.NDArray[Any]:
        parts, missing = [self._rest[:count]], count - len(self._rest)
        self._rest = self._rest[count:]
        while missing > 0:
            part = next(self._parts, None)
            if part is None:
                raise FormatError(f"{self._name}: cut off: {missing} values are missing")
            parts.append(part[:missing])
            self._rest, missing = part[missing:], missing - len(part)
        filled = [part for part in parts if len(part)] or parts[:1]
        return filled[0] if len(filled) == 1 else np.concatenate(filled)


def tracks_of_labels(
    name: str, pairs: Callable[[], Iterator[tuple[npt.NDArray[Any], ...]]]
) -> Mapping[str, Callable[[], Arrays]]:
    """The track for labels beside ids: a mask, if each is the id or -100, else labels.

    ``pairs`` returns ids and labels in parts, from the beginning on each call; here they are read
    once. FormatError for a label of more than 32 bits.
    """
    for ids, labels in pairs():
        if labels.size and not _LABELS.min <= labels.min() <= labels.max() <= _LABELS.max:
            wrong = labels[(labels < _LABELS.min) | (labels > _LABELS.max)][0]
            raise FormatError(f"{name}: the label {wrong} does not fit int32")
        if ((labels != ids) & (labels != IGNORED)).any():
            return {"labels": lambda: (labels.astype("<i4") for _, labels in pairs())}
    return {"mask": lambda: ((labels != IGNORED).astype("u1") for _, labels in pairs())}


def shifted(mask: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """A mask [n] for predicting tokens: value i says whether token i + 1 is trained.

    ``ends`` int64 [D] are the ends of documents; the last token of a document predicts nothing.
    """
    moved = np.zeros(len(mask), np.int8)
    moved[:-1] = mask[1:]
    moved[ends[ends > 0] - 1] = 0
    return moved


def unshifted(mask: npt.NDArray[Any], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The inverse of ``shifted``; ``begins`` int64 [D] are the beginnings of documents."""
    moved = np.zeros(len(mask), np.uint8)
    moved[1:] = mask[:-1]
    moved[begins[begins < len(mask)]] = 0
    return moved


_DTYPE = storage_dtype("int32")
_SUFFIXES = ("_document", "_label_document")


def neox_base(name: str) -> str:
    """P, from either file of a dataset of GPT-NeoX, or from P itself."""
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
    """Documents of GPT-NeoX with their labels. FormatError if the labels do not belong to them."""
    base = neox_base(name)
    text, labels = (open_mmap(prefix) for prefix in neox_prefixes(base))
    if labels.dtype.kind != "i" or labels.dtype.itemsize < 4:
        raise FormatError(f"{labels.name}: holds {labels.dtype}, expected int32")
    if labels.sequences != text.sequences:
        raise FormatError(
            f"{labels.name}: {labels.sequences} sequences, expected {text.sequences}, as in "
            f"{text.name}"
        )
    first = 0
    for one, two in in_step(labels.name, text.lengths(), labels.lengths()):
        if (wrong := np.flatnonzero(one != two)).size:
            raise FormatError(
                f"{labels.name}: sequence {first + wrong[0]} has {two[wrong[0]]} tokens, expected "
                f"{one[wrong[0]]}, as in {text.name}: the files do not belong together"
            )
        first += len(one)
    if not np.array_equal(text.doc_idx, labels.doc_idx):  # type: ignore[arg-type]
        raise FormatError(f"{labels.name}: its documents differ from those of {text.name}")
    rewards = f"{base}_reward_document"
    left_out = (f"{rewards} is left out: add it as a column of the table of documents",)
    return replace(
        text,
        tracks=tracks_of_labels(
            labels.name, lambda: in_step(labels.name, text.ids(), labels.ids())
        ),
        notes=left_out if MMapIndexedDataset.exists(rewards) else (),
    )


def write_neox(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents and their labels as GPT-NeoX's script does."""
    text, text_index, labels, labels_index = files
    for ids, values in content.labelled():
        text.write(ids.data)
        labels.write(values.astype(_DTYPE).data)
    for index in (text_index, labels_index):
        index.writelines(index_chunks(_DTYPE, content.lengths, content.doc_idx))
    return []
