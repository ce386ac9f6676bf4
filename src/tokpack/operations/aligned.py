"""Ids and labels in .bin/.idx files beside each other, as GPT-NeoX and MindSpeed-LLM have them.

GPT-NeoX's ``preprocess_data_with_chat_template.py`` writes P_document and P_label_document (and
P_reward_document, with a number for each document), MindSpeed-LLM's ``preprocess_data.py``
P_packed_input_ids_document, P_packed_labels_document and P_packed_attention_mask_document: all
are int32, labels are unshifted, and -100 does not count. With ``--neat-pack`` MindSpeed's
attention mask numbers the conversations in a sequence from 1, and 0 is padding. Of its pairs the
chosen and the rejected conversations have ids and labels each: in a dataset of ours they follow
each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokpack.errors import FormatError, UsageError
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.format import bin_path, idx_path, index_chunks, storage_dtype
from tokpack.indexed.prefix import prefix_of
from tokpack.operations.foreign import ForeignDataset, open_mmap
from tokpack.operations.masks import in_step, tracks_of_labels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from tokpack.operations.export import Content
    from tokpack.operations.foreign import Arrays

_DTYPE = storage_dtype("int32")
_TOGETHER = 1024  # pairs that are read at once
_NEOX = ("_document", "_label_document")
_MINDSPEED = tuple(f"_packed_{key}_document" for key in ("input_ids", "labels", "attention_mask"))
_SIDES = ("chosen", "rejected")
_PAIRS = tuple(f"_packed_{one}_{key}_document" for one in _SIDES for key in ("input_ids", "labels"))
_SUFFIXES = {"neox": _NEOX, "mindspeed": _MINDSPEED, "mindspeed-pairs": _PAIRS}


def aligned_base(name: str, source: str) -> str:
    """P, of whatever file of a dataset of GPT-NeoX or MindSpeed-LLM, or of P itself."""
    prefix = prefix_of(name)
    for suffix in reversed(_SUFFIXES[source]):
        if prefix.endswith(suffix):
            return prefix.removesuffix(suffix)
    return prefix


def aligned_prefixes(base: str, source: str) -> list[str]:
    """The prefixes of a dataset of GPT-NeoX or MindSpeed-LLM, in the order of their names above."""
    return [base + suffix for suffix in _SUFFIXES[source]]


def aligned_paths(base: str, source: str) -> list[str]:
    """The files of such a dataset."""
    prefixes = aligned_prefixes(base, source)
    return [path(prefix) for prefix in prefixes for path in (bin_path, idx_path)]


def find_aligned(name: str) -> str | None:
    """The format of a dataset with labels in files beside it; None where it has none."""
    for source in _SUFFIXES:
        prefixes = aligned_prefixes(aligned_base(name, source), source)
        if all(MMapIndexedDataset.exists(prefix) for prefix in prefixes):
            return source
    return None


def open_neox(name: str) -> ForeignDataset:
    """Documents of GPT-NeoX with their labels. FormatError where these are not of them."""
    base = aligned_base(name, "neox")
    text, labels = (open_mmap(prefix) for prefix in aligned_prefixes(base, "neox"))
    _check_same(text, labels)
    rewards = f"{base}_reward_document"
    left_out = (f"{rewards} is left out: add it as a column of the table of documents",)
    return replace(
        text,
        tracks=tracks_of_labels(labels.name, lambda: _pairs(text, labels)),
        notes=left_out if MMapIndexedDataset.exists(rewards) else (),
    )


def open_mindspeed(name: str) -> ForeignDataset:
    """Conversations of MindSpeed-LLM with their labels: a sequence each, or packed neatly."""
    prefixes = aligned_prefixes(aligned_base(name, "mindspeed"), "mindspeed")
    ids, labels, attention = (open_mmap(prefix) for prefix in prefixes)
    _check_same(ids, labels)
    _check_same(ids, attention)
    if all((part == 1).all() for part in attention.ids()):
        tracks = tracks_of_labels(labels.name, lambda: _pairs(ids, labels))
        return replace(ids, tracks=tracks)

    def kept(source: ForeignDataset) -> Arrays:
        return (
            part[numbers > 0]
            for part, numbers in in_step(source.name, source.ids(), attention.ids())
        )

    unpadded = replace(labels, ids=lambda: kept(labels))
    lengths = _neat_lengths(ids, attention)
    opened = ForeignDataset(
        ids.name, ids.dtype, len(lengths), lambda: iter([lengths]), lambda: kept(ids)
    )
    return replace(opened, tracks=tracks_of_labels(labels.name, lambda: _pairs(opened, unpadded)))


def open_mindspeed_pairs(name: str) -> ForeignDataset:
    """Pairs of MindSpeed-LLM: sequences 2i are chosen, 2i + 1 rejected. FormatError."""
    prefixes = aligned_prefixes(aligned_base(name, "mindspeed-pairs"), "mindspeed-pairs")
    opened = [open_mmap(prefix) for prefix in prefixes]
    chosen, chosen_labels, rejected, rejected_labels = opened
    _check_same(chosen, chosen_labels)
    _check_same(rejected, rejected_labels)
    if chosen.sequences != rejected.sequences:
        raise FormatError(
            f"{rejected.name}: {rejected.sequences} sequences, expected {chosen.sequences}, as in "
            f"{chosen.name}"
        )
    sides = [MMapIndexedDataset(prefix) for prefix in prefixes]

    def mixed(*two: MMapIndexedDataset) -> Arrays:
        for begin in range(0, chosen.sequences, _TOGETHER):
            numbers = range(begin, min(begin + _TOGETHER, chosen.sequences))
            yield np.concatenate([side[number] for number in numbers for side in two])

    lengths = np.stack([side.sizes for side in sides[::2]], axis=1).reshape(-1)
    both = ForeignDataset(
        chosen.name,
        chosen.dtype,
        len(lengths),
        lambda: iter([lengths]),
        lambda: mixed(*sides[::2]),
        options={"pairs": list(_SIDES)},
    )
    labels = replace(both, ids=lambda: mixed(*sides[1::2]))
    tracks = tracks_of_labels(chosen_labels.name, lambda: _pairs(both, labels))
    return replace(both, tracks=tracks)


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


def _neat_lengths(ids: ForeignDataset, attention: ForeignDataset) -> npt.NDArray[np.int64]:
    """The lengths of the conversations that an attention mask numbers in each sequence."""
    begins, at, last = [np.concatenate([[0], *ids.lengths()]).cumsum()], 0, -1
    for part in attention.ids():
        changes = np.flatnonzero(np.diff(part, prepend=last)) + at
        begins.append(changes)
        at, last = at + len(part), int(part[-1])
    bounds = np.unique(np.concatenate(begins))
    lengths, kept = np.diff(bounds), np.zeros(len(bounds) - 1, bool)
    at = 0
    for part in attention.ids():
        here = slice(*np.searchsorted(bounds[:-1], [at, at + len(part)]))
        kept[here] = part[bounds[:-1][here] - at] > 0
        at += len(part)
    return lengths[kept].astype(np.int64)


def write_neox(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents and their labels as GPT-NeoX's script does."""
    text, text_index, labels, labels_index = files
    for ids, values in content.labelled():
        text.write(ids.data)
        labels.write(values.astype(_DTYPE).data)
    for index in (text_index, labels_index):
        index.writelines(index_chunks(_DTYPE, content.lengths, content.doc_idx))
    return []


def write_mindspeed(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents, their labels and ones as MindSpeed-LLM does without packing."""
    for ids, values in content.labelled():
        for file, array in zip(files[::2], (ids, values, np.ones_like(ids)), strict=True):
            file.write(array.astype(_DTYPE).data)
    lengths = content.document_lengths
    filled = lengths[lengths > 0].astype(np.int32)
    for index in files[1::2]:
        index.writelines(index_chunks(_DTYPE, filled, np.arange(len(filled) + 1)))
    left_out = len(lengths) - len(filled)
    return [f"{left_out} documents without ids are left out"] if left_out else []


def write_mindspeed_pairs(files: list[BinaryIO], content: Content) -> list[str]:
    """Write documents 2i and 2i + 1 as pairs of MindSpeed-LLM. UsageError for an odd number."""
    lengths = content.document_lengths
    if len(lengths) % 2 or (lengths == 0).any():
        raise UsageError(
            f"{content.name}: pairs are documents 2i (chosen) and 2i + 1 (rejected) with tokens, "
            f"as `tokpack encode --chat --pairs` makes them; it has {len(lengths)} documents, "
            f"{int((lengths == 0).sum())} of them without"
        )
    at = 0
    for ids, values in content.labelled():
        numbers = np.searchsorted(content.ends, np.arange(at, at + len(ids)), "right")
        for side in range(2):
            here = numbers % 2 == side
            for file, array in zip(files[4 * side :: 2], (ids, values), strict=False):
                file.write(array[here].astype(_DTYPE).data)
        at += len(ids)
    for number, index in enumerate(files[1::2]):
        pair_lengths = lengths[number // 2 :: 2].astype(np.int32)
        index.writelines(index_chunks(_DTYPE, pair_lengths, np.arange(len(pair_lengths) + 1)))
    return []
