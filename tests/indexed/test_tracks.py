"""Tracks: a value for each token, read like the tokens, from any kind of dataset."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents

import tokpack
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.indexed import MMapIndexedDataset, MMapIndexedDatasetBuilder

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("mask", "weights", "labels")
Values = list[list[float]]


def value_of(name: str, token: int) -> float:
    """Some value for a token, the same wherever it stands."""
    return {"mask": token % 2, "weights": token % 7 / 4, "labels": token - 5}[name]


def default_of(name: str, token: int) -> float:
    """What a token has where its dataset has no such track."""
    return token if name == "labels" else 1


def build(prefix: str | Path, documents: Documents, tracks: list[str]) -> None:
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


def trained(documents: Documents, tracks: list[str]) -> int:
    tokens = [token for document in documents for ids in document for token in ids]
    counts = [
        ("mask" not in tracks or value_of("mask", token) == 1)
        and ("labels" not in tracks or value_of("labels", token) >= 0)
        for token in tokens
    ]
    return sum(counts)


@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(DOCUMENTS, min_size=1, max_size=3),
    tracks=st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=3, max_size=3),
    data=st.data(),
)
def test_tracks_read_like_tokens_alone_in_virtual_datasets_and_in_views(
    parts: list[Documents], tracks: list[list[str]], data: st.DataObject
) -> None:
    tracks = tracks[: len(parts)]
    count = sum(map(len, parts))
    chosen = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=9 if count else 0))
    every = {name for names in tracks for name in names}
    with tempfile.TemporaryDirectory() as folder:
        prefixes = [f"{folder}/part{number}" for number in range(len(parts))]
        for prefix, documents, names in zip(prefixes, parts, tracks, strict=True):
            build(prefix, documents, names)
            dataset = MMapIndexedDataset(prefix)
            assert set(dataset.tracks) == set(names)
            assert (dataset.mask is None) == ("mask" not in names)
            assert trained_of(dataset) == (trained(documents, names) if names else None)
            for name in names:
                check_track(dataset, name, values_of(name, documents, names))
        tokpack.merge(prefixes, f"{folder}/virtual", virtual=True)
        datasets = [MMapIndexedDataset(prefix) for prefix in prefixes]
        made = write_view(f"{folder}/view", datasets, np.array(chosen, np.int64), made_by={})
        virtual, view = (MMapIndexedDataset(f"{folder}/{name}") for name in ("virtual", "view"))
        assert set(virtual.tracks) == set(view.tracks) == every
        both = list(zip(parts, tracks, strict=True))
        numbered = [(document, names) for part, names in both for document in part]
        picked = [numbered[number] for number in chosen]
        for name in every:
            all_values = [one for part, names in both for one in values_of(name, part, names)]
            check_track(virtual, name, all_values)
            check_track(view, name, [all_values[number] for number in chosen])
        if every:
            assert made.trained == sum(trained([document], names) for document, names in picked)
            counts = [trained(part, names) for part, names in both]
            assert trained_of(virtual) == sum(counts)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A dataset of 3 and 2 tokens with all tracks."""
    build(tmp_path / "chats", [[[1, 2, 3]], [[4, 5]]], list(NAMES))
    return tmp_path / "chats"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["missing", "cut off", "too long"])
def test_a_track_that_does_not_belong_to_the_tokens_is_refused_by_name(
    prefix: Path, name: str, change: str
) -> None:
    path = prefix.with_suffix(f".{name}")
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if change == "cut off" else data + b"\0")
    kind = InputError if change == "missing" else FormatError
    dataset = MMapIndexedDataset(prefix)
    assert dataset[0].tolist() == [1, 2, 3]
    with pytest.raises(kind, match=rf"chats\.{name}: "):
        dataset.track(name)[0]


def test_a_file_that_the_manifest_does_not_name_is_no_track(prefix: Path) -> None:
    prefix.with_suffix(".json").unlink()
    dataset = MMapIndexedDataset(prefix)
    assert (dataset.tracks, dataset.mask) == ({}, None)
    with pytest.raises(UsageError, match="has no mask; it has no tracks"):
        dataset.track("mask")


def test_the_builder_replaces_its_own_tracks_alone(prefix: Path) -> None:
    build(prefix, [[[7]]], ["mask"])
    names = sorted(path.name for path in prefix.parent.iterdir())
    assert names == ["chats.bin", "chats.idx", "chats.json", "chats.mask"]
    build(prefix, [[[7]]], [])
    assert sorted(path.suffix for path in prefix.parent.iterdir()) == [".bin", ".idx"]
    mask = prefix.with_suffix(".mask")
    mask.write_bytes(b"of another program")
    build(prefix, [[[8]]], [])
    with pytest.raises(OutputError, match="is not a track of this dataset"):
        build(prefix, [[[9]]], ["mask"])
    assert mask.read_bytes() == b"of another program"
    assert MMapIndexedDataset(prefix)[0].tolist() == [8]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "sequence 0: its tracks are none, expected mask and weights"),
        ({"mask": [1, 0], "weights": [1, 1], "labels": [1, 1]}, "expected mask and weights"),
        ({"mask": [1], "weights": [1, 1]}, "its mask has 1 values for 2 tokens"),
        ({"mask": [1, 2], "weights": [1, 1]}, "mask holds 2, expected 0 and 1"),
        ({"mask": [1, 0], "weights": [1, float("nan")]}, "weights holds nan, expected finite"),
        ({"mask": [1, 0], "weights": [1, 1e6]}, "weights holds 1000000.0, expected finite"),
    ],
)
def test_the_builder_refuses_values_that_a_track_cannot_have(
    values: dict[str, list[float]], message: str, tmp_path: Path
) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "a.bin", tracks=["weights", "mask"]) as builder:
        with pytest.raises(UsageError, match=message):
            builder.add_item([1, 2], **values)
        builder.add_item([1, 2], mask=[True, False], weights=[1, 0.5])
        with pytest.raises(UsageError, match=r"must be .*a\.idx, as the dataset has tracks"):
            builder.finalize(tmp_path / "b.idx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="no track is called 'loss': there are mask, weights"):
        MMapIndexedDatasetBuilder(tmp_path / "a.bin", tracks=["loss"])


def test_a_piece_with_another_track_than_was_recorded_is_refused(tmp_path: Path) -> None:
    prefixes = [tmp_path / "a", tmp_path / "b"]
    build(prefixes[0], [[[1, 2, 3]]], ["mask"])
    build(prefixes[1], [[[4]]], [])
    tokpack.merge(prefixes, tmp_path / "both", virtual=True)
    build(prefixes[0], [[[1, 2, 3]]], ["weights", "mask"])
    with pytest.raises(FormatError, match=r"the checksum of its weights is .*, expected none"):
        MMapIndexedDataset(tmp_path / "both")[0]
