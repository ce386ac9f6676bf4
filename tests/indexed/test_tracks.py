"""Tracks: a value for each token, read like the tokens, from any kind of dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.track_tools import NAMES, build_tracks

from tokpack.dataset import MMapIndexedDataset
from tokpack.errors import FormatError, InputError, OutputError

if TYPE_CHECKING:
    from pathlib import Path


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
    with pytest.raises(OutputError, match=r"/chats\.mask:"):
        build_tracks(prefix, [[[9]]], ["mask"])
    assert mask.read_bytes() == b"of another program"
    assert MMapIndexedDataset(prefix)[0].tolist() == [8]
