"""Datasets with tracks whose values follow from the tokens, and what they must read as."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tokpack.dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from support.documents import Documents

NAMES = ("mask", "weights", "labels", "roles")
Values = list[list[float]]


def value_of(name: str, token: int) -> float:
    """Some value for a token, the same wherever it stands."""
    values = {"mask": token % 2, "weights": token % 7 / 4, "labels": token - 5, "roles": token % 7}
    return values[name]


def default_of(name: str, token: int) -> float:
    """What a token has where its dataset has no such track."""
    return {"labels": token, "roles": 0}.get(name, 1)


def build_tracks(prefix: str | Path, documents: Documents, tracks: list[str]) -> None:
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16, tracks=tracks) as builder:
        for document in documents:
            for ids in document:
                values = {name: [value_of(name, token) for token in ids] for name in tracks}
                builder.add_item(ids, **values)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def values_of(name: str, documents: Documents, tracks: list[str]) -> list[Values]:
    """What a track has of each sequence of each document."""
    value = value_of if name in tracks else default_of
    return [[[value(name, token) for token in ids] for ids in document] for document in documents]


def check_track(dataset: MMapIndexedDataset, name: str, documents: list[Values]) -> None:
    track = dataset.track(name)
    sequences = [values for document in documents for values in document]
    assert len(track) == len(dataset) == len(sequences)
    assert [values.tolist() for values in track] == sequences
    assert [values.tolist() for values in track[::-2]] == sequences[::-2]
    for number, values in enumerate(sequences):
        assert track[number].dtype == track.dtype == dataset.tracks[name]
        half = len(values) // 2
        assert track.get(number, half).tolist() == values[half:]
        assert track.get(number, 0, half).tolist() == values[:half]
    for number, document in enumerate(documents):
        assert track.document(number).tolist() == [one for values in document for one in values]
    with pytest.raises(IndexError, match=f"sequence {len(sequences)} of {len(sequences)}"):
        track[len(sequences)]
    joined = [one for values in sequences for one in values]
    flat = [shard.track(name)[:].tolist() for shard in dataset.shards()]
    assert [one for values in flat for one in values] == joined


def trained_of(dataset: MMapIndexedDataset) -> int | None:
    return None if dataset.manifest is None else dataset.manifest.trained


def count_of_trained(documents: Documents, tracks: list[str]) -> int:
    tokens = [token for document in documents for ids in document for token in ids]
    counts = [
        ("mask" not in tracks or value_of("mask", token) == 1)
        and ("labels" not in tracks or value_of("labels", token) >= 0)
        for token in tokens
    ]
    return sum(counts)
