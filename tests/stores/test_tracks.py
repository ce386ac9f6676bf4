"""Tracks of datasets on stores: read in ranges, sent with the .bin, verified, replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.track_tools import build_tracks, check_track, values_of

import tokpack
from tokpack import MMapIndexedDataset
from tokpack.dataset.mapped import StoredTokens
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from support.documents import Documents
    from support.stores import Store

DOCUMENTS: Documents = [[[1, 2, 3], [4]], [[5] * 2000], [], [[6, 7]]]
TRACKS = ["mask", "weights", "labels"]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a dataset with tracks, and one without."""
    monkeypatch.setenv("TOKPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKPACK_TRUST", "s3://texts/tracks")
    monkeypatch.chdir(tmp_path)
    build_tracks(tmp_path / "chats", DOCUMENTS, TRACKS)
    build_tracks(tmp_path / "text", DOCUMENTS[:1], [])
    return tmp_path


def test_they_are_sent_and_read(store: Store, local: Path) -> None:
    """Joined by the store, of a disk and of the store itself; a view reads through."""
    tokpack.merge([local / "chats", local / "text"], "s3://texts/tracks/one")
    tokpack.merge(["s3://texts/tracks/one", local / "chats"], "s3://texts/tracks/two")
    tokpack.verify("s3://texts/tracks/two")
    two = MMapIndexedDataset("s3://texts/tracks/two")
    [shard] = two.shards()
    assert isinstance(shard.track("mask"), StoredTokens)
    numbers = np.array([7, 0, 1, 4, 1])
    view = write_view("view", [two], numbers, made_by={})
    copy = tokpack.merge("view", "copy")
    assert copy.trained == view.trained
    for name in TRACKS:
        values = values_of(name, DOCUMENTS, TRACKS) + values_of(name, DOCUMENTS[:1], [])
        values += values_of(name, DOCUMENTS, TRACKS)
        check_track(two, name, values)
        for made in ("view", "copy"):
            check_track(MMapIndexedDataset(made), name, [values[number] for number in numbers])
    tokpack.merge(local / "text", "s3://texts/tracks/two", overwrite=True)
    assert sorted(store.s3.keys("tracks/two")) == [
        f"tracks/two.{k}" for k in ("bin", "idx", "json")
    ]


def test_what_is_missing_or_damaged_is_named(store: Store, local: Path) -> None:
    tokpack.merge(local / "chats", "s3://texts/tracks/bad")
    right = store.s3.get("tracks/bad.mask") or b""
    store.s3.put("tracks/bad.mask", right[:-1])
    with pytest.raises(FormatError, match=r"s3://texts/tracks/bad\.mask: 2005 bytes\b.*\b2006,"):
        MMapIndexedDataset("s3://texts/tracks/bad").track("mask")[0]
    store.s3.put("tracks/bad.mask", bytes([1 - right[0]]) + right[1:])
    with pytest.raises(FormatError, match=r"bad\.mask: xxh3_blocks "):
        tokpack.verify("s3://texts/tracks/bad")
    store.s3.delete("tracks/bad.mask")
    with pytest.raises(InputError, match=r"s3://texts/tracks/bad\.mask: no "):
        MMapIndexedDataset("s3://texts/tracks/bad").track("mask")[0]
