"""Tracks: a value for each token, read like the tokens, from any kind of dataset."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents
from support.track_tools import (
    NAMES,
    build_tracks,
    check_track,
    count_of_trained,
    trained_of,
    values_of,
)

import tokpack
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, OutputError
from tokpack.indexed import MMapIndexedDataset

if TYPE_CHECKING:
    from pathlib import Path


@settings(max_examples=25, deadline=None)
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
            build_tracks(prefix, documents, names)
            dataset = MMapIndexedDataset(prefix)
            assert set(dataset.tracks) == set(names)
            assert (dataset.mask is None) == ("mask" not in names)
            assert trained_of(dataset) == (count_of_trained(documents, names) if names else None)
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
            assert made.trained == sum(
                count_of_trained([document], names) for document, names in picked
            )
            counts = [count_of_trained(part, names) for part, names in both]
            assert trained_of(virtual) == sum(counts)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A dataset of 3 and 2 tokens with all tracks."""
    build_tracks(tmp_path / "chats", [[[1, 2, 3]], [[4, 5]]], list(NAMES))
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


def test_the_builder_replaces_its_own_tracks_alone(prefix: Path) -> None:
    build_tracks(prefix, [[[7]]], ["mask"])
    names = sorted(path.name for path in prefix.parent.iterdir())
    assert names == ["chats.bin", "chats.idx", "chats.json", "chats.mask"]
    build_tracks(prefix, [[[7]]], [])
    assert sorted(path.suffix for path in prefix.parent.iterdir()) == [".bin", ".idx"]
    mask = prefix.with_suffix(".mask")
    mask.write_bytes(b"of another program")
    build_tracks(prefix, [[[8]]], [])
    with pytest.raises(OutputError, match="is not a track of this dataset"):
        build_tracks(prefix, [[[9]]], ["mask"])
    assert mask.read_bytes() == b"of another program"
    assert MMapIndexedDataset(prefix)[0].tolist() == [8]
