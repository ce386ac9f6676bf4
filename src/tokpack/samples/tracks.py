"""Tracks that determine how much each label counts: masks, weights, other labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from tokpack import _core
from tokpack.dataset import MMapIndexedDataset, are_trained
from tokpack.dataset.manifest import LOSS_TRACKS, TRAINED_TRACKS
from tokpack.errors import FormatError, UsageError
from tokpack.samples.gather import Gatherer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tokpack.samples.batch import Batch
    from tokpack.samples.orders import Counts, Rows

_CHUNK = 1 << 20
_PROBE = 1 << 16  # values that are read at each of three places


class Values(Protocol):
    """The values of sequences: a track, or a dataset."""

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]: ...


class LossTracks:
    """The tracks that decide which labels of ``dataset`` count, and what they are.

    ``labels`` is a dataset of labels instead of such a track, with the same sequences and lengths.
    Value i of a sequence is for its token i as a label, which a model predicts from tokens 0 to i -
    1: nothing is shifted on disk.

    - mask: 0 if the label does not count
    - weights: how much it counts
    - labels: what is to be predicted instead of the token; below 0 (usually -100) nothing

    With ``every_token`` the dataset's tracks are ignored: all labels count. UsageError if the
    datasets do not fit together.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        labels: MMapIndexedDataset | str | os.PathLike[str] | None = None,
        *,
        every_token: bool = False,
    ) -> None:
        if labels is not None and not isinstance(labels, MMapIndexedDataset):
            labels = MMapIndexedDataset(labels)
        self._dataset = dataset
        names = () if every_token else dataset.tracks
        self.names = tuple(name for name in names if name in LOSS_TRACKS)
        self.label_dataset = labels
        if labels is not None:
            check_labels(labels, dataset)
        self._gatherers: dict[str, Gatherer] = {}

    def __bool__(self) -> bool:
        return bool(self.names) or self.label_dataset is not None

    @property
    def on_store(self) -> bool:
        """Whether labels from another dataset are on a store; tracks are beside their dataset."""
        return self.label_dataset is not None and self.label_dataset.on_store

    @property
    def labels(self) -> Values | None:
        """The labels that are not the tokens themselves, or None."""
        if self.label_dataset is not None or "labels" not in self.names:
            return self.label_dataset
        return self._dataset.track("labels")

    @property
    def identity(self) -> dict[str, int]:
        """The identity of each track, for a fingerprint; {} without any."""
        prints = {name: _fingerprint(self._dataset, name) for name in self.names}
        return (
            prints
            if self.label_dataset is None
            else prints | {"labels": self.label_dataset.fingerprint}
        )

    def open(self, blocks: npt.NDArray[np.int64] | None, multiple: int) -> None:
        """Prepare for reading; ``blocks`` and ``multiple`` are as for the tokens' Gatherer."""
        for name in self.names:
            self._gatherers[name] = Gatherer(self._dataset, blocks, name, multiple)
        if self.label_dataset is not None:
            self._gatherers["labels"] = Gatherer(self.label_dataset, multiple=multiple)

    def ask(self, rows: Rows) -> None:
        """Request the values of rows, if they are on a store, before ``fill`` needs them."""
        for gatherer in self._gatherers.values():
            gatherer.ask(rows)

    def fill(
        self,
        batch: Batch,
        rows: Rows,
        counts: Counts,
        places: npt.NDArray[np.int64],
        values: npt.NDArray[np.int64],
    ) -> None:
        """Write the labels of samples, if these are not their tokens, and how much they count.

        Sample i has ``counts[i]`` of the rows and is at ``places[i]`` of the batch, whose loss mask
        is multiplied. ``values``, int64 [samples, S + 1], is memory to work in. FormatError for a
        weight that is not a finite number.
        """
        lines = np.arange(len(places))
        if batch.label_text is not None and self.labels is None:
            batch.label_text[places] = batch.text[places]
        for name, gatherer in self._gatherers.items():
            gatherer.fill(values, rows, counts, lines)
            labels = batch.label_text if name == "labels" else None
            wrong = _core.apply_track(name, values, places, batch.loss_mask, labels)
            if wrong >= 0:
                first = int(np.sum(counts[:wrong]))
                sequences = rows[first : first + int(counts[wrong]), 0].tolist()
                raise FormatError(
                    f"{self._dataset.path_prefix}.weights: a weight of the sequences {sequences} "
                    "is infinite or not a number: `tokpack verify` compares the file with its "
                    "checksum"
                )


def check_labels(labels: MMapIndexedDataset, tokens: MMapIndexedDataset) -> None:
    """Raise UsageError if ``labels`` does not have one signed label for each of ``tokens``."""
    names = f"{labels.path_prefix} has labels for {tokens.path_prefix}"
    if np.dtype(labels.dtype).kind == "u" and labels.path_prefix != tokens.path_prefix:
        raise UsageError(
            f"{names}, but its dtype is {np.dtype(labels.dtype).name}: the label -100, which does "
            "not count, needs a signed dtype such as int32"
        )
    if len(labels.sizes) != len(tokens.sizes):
        raise UsageError(f"{names}, but has {len(labels.sizes)} sequences, not {len(tokens.sizes)}")
    for start in range(0, len(tokens.sizes), _CHUNK):
        end = start + _CHUNK
        differ = np.flatnonzero(labels.sizes[start:end] != tokens.sizes[start:end])
        if len(differ):
            first = start + int(differ[0])
            raise UsageError(
                f"{names}, but its sequence {first} has {labels.sizes[first]} labels for "
                f"{tokens.sizes[first]} tokens"
            )


def _fingerprint(dataset: MMapIndexedDataset, name: str) -> int:
    """64 bits of the values at three places; as for tokens, they do not depend on files."""
    state = xxhash.xxh3_64(name.encode())
    last = max(dataset.token_count - _PROBE, 0)
    for begin in (0, last // 2, last):
        for piece in track_values(dataset, name, begin, begin + _PROBE):
            state.update(np.ascontiguousarray(piece).data)
    return state.intdigest()


def count_trained(
    dataset: MMapIndexedDataset, labels: MMapIndexedDataset | None, sequences: range
) -> int:
    """The number of trained tokens in ``sequences``; without tracks all tokens are trained.

    It comes from the manifest if possible, else from a pass over mask and labels.
    """
    named: dict[str, MMapIndexedDataset] = {
        name: dataset for name in TRAINED_TRACKS if name in dataset.tracks
    }
    tokens = dataset.tokens_in(sequences.start, sequences.stop)
    trained = None if dataset.manifest is None else dataset.manifest.trained
    if labels is None and trained is not None and len(sequences) == len(dataset):
        return trained
    if labels is not None:
        named["labels"] = labels
    if not named:
        return tokens
    begin, trained = dataset.tokens_in(0, sequences.start), 0
    for at in range(begin, begin + tokens, _CHUNK):
        end = min(at + _CHUNK, begin + tokens)
        values = {
            name: np.concatenate([*track_values(of, name, at, end)]) for name, of in named.items()
        }
        trained += int(np.count_nonzero(are_trained(values)))
    return trained


def track_values(
    dataset: MMapIndexedDataset, name: str, begin: int, end: int
) -> Iterator[npt.NDArray[Any]]:
    """The values of tokens [begin, end), or up to the last one, at most 2^20 at a time.

    For a dataset of labels, which has no such track, these are its tokens.
    """
    before = 0
    counts = [record.tokens for record in dataset.records] or [dataset.token_count]
    for number, tokens in enumerate(counts):
        first, stop = max(begin - before, 0), min(end - before, tokens)
        for at in range(first, stop, _CHUNK):
            shard = dataset.shard(number)
            values = shard.track(name) if name in dataset.tracks else shard.tokens
            yield values[at : min(at + _CHUNK, stop)]
        before += tokens
