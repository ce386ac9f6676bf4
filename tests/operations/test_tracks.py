"""Tracks go where their tokens go, in every operation; what is wrong with them is found."""

from __future__ import annotations

import json
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, documents_of
from support.track_tools import (
    NAMES,
    build_tracks,
    check_track,
    count_of_trained,
    trained_of,
    values_of,
)

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.merge import merge
from tokpack.dataset.split import split
from tokpack.dataset.verify import verify
from tokpack.documents import write_view
from tokpack.errors import FormatError, InputError, OutputError
from tokpack.formats import convert

if TYPE_CHECKING:
    from pathlib import Path

PARTS: list[Documents] = [[[[1, 2, 3], [4]], [[5]]], [[[6, 7]]], [[[8, 9, 10]]]]
TRACKS = [["mask", "weights"], [], ["mask"]]
EXPECTED = [
    one for part, names in zip(PARTS, TRACKS, strict=True) for one in values_of("mask", part, names)
]


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """PARTS with TRACKS."""
    prefixes = [str(tmp_path / f"part{number}") for number in range(len(PARTS))]
    for prefix, documents, names in zip(prefixes, PARTS, TRACKS, strict=True):
        build_tracks(prefix, documents, names)
    return prefixes


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(DOCUMENTS, min_size=1, max_size=3),
    tracks=st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=3, max_size=3),
    data=st.data(),
)
def test_tracks_read_like_tokens_alone_and_in_what_is_made_of_datasets(
    parts: list[Documents], tracks: list[list[str]], data: st.DataObject
) -> None:
    both = list(zip(parts, tracks, strict=False))
    every = [name for name in NAMES if any(name in names for _, names in both)]
    count = sum(map(len, parts))
    chosen = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=9 if count else 0))
    with tempfile.TemporaryDirectory() as folder:
        prefixes = [f"{folder}/part{number}" for number in range(len(parts))]
        for prefix, (documents, names) in zip(prefixes, both, strict=True):
            build_tracks(prefix, documents, names)
            dataset = MMapIndexedDataset(prefix)
            assert set(dataset.tracks) == set(names)
            assert (dataset.mask is None) == ("mask" not in names)
            assert trained_of(dataset) == (count_of_trained(documents, names) if names else None)
            for name in names:
                check_track(dataset, name, values_of(name, documents, names))
        numbers = np.array(chosen, np.int64)
        datasets = [MMapIndexedDataset(prefix) for prefix in prefixes]
        write_view(f"{folder}/view", datasets, numbers, made_by={})
        merge(prefixes, f"{folder}/virtual", virtual=True)
        merge(prefixes, f"{folder}/merged")
        merge(f"{folder}/view", f"{folder}/copy")
        convert(f"{folder}/merged", f"{folder}/wide", dtype="int32")
        values = {
            name: [one for part, names in both for one in values_of(name, part, names)]
            for name in every
        }
        trained = sum(count_of_trained(part, names) for part, names in both) if every else None
        for made in ("virtual", "merged", "wide"):
            dataset = MMapIndexedDataset(f"{folder}/{made}")
            assert list(dataset.tracks) == every
            assert trained_of(dataset) == trained
            for name in every:
                check_track(dataset, name, values[name])
        numbered = [([document], names) for part, names in both for document in part]
        picked = sum(count_of_trained(*numbered[number]) for number in chosen) if every else None
        for made in ("view", "copy"):
            dataset = MMapIndexedDataset(f"{folder}/{made}")
            assert trained_of(dataset) == picked
            for name in every:
                check_track(dataset, name, [values[name][number] for number in chosen])
        for made in ("virtual", "merged", "wide", "copy", "view"):
            verify(f"{folder}/{made}")
        cut = split(f"{folder}/merged", f"{folder}/cut", documents=2) if count else []
        for number, (prefix, _) in enumerate(cut):
            part = MMapIndexedDataset(prefix)
            for name in every:
                check_track(part, name, values[name][2 * number : 2 * number + 2])
            verify(prefix)
        if every:
            assert sum(manifest.trained or 0 for _, manifest in cut) == trained


def test_a_merge_says_whose_tokens_all_count(
    parts: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for virtual in (False, True):
        caplog.clear()
        merge(parts, tmp_path / "all", virtual=virtual, overwrite=True)
        assert f"{parts[1]}: has no mask, so all of its tokens are trained" in caplog.messages
        assert f"{parts[1]} and 1 more: has no weights, so all" in "\n".join(caplog.messages)
        dataset = MMapIndexedDataset(tmp_path / "all")
        check_track(dataset, "mask", EXPECTED)
        verify(tmp_path / "all")
    assert not list(tmp_path.glob("all.mask"))


def test_new_datasets_replace_tracks_of_old_ones_alone(parts: list[str], tmp_path: Path) -> None:
    merge(parts, tmp_path / "all")
    merge(parts[1:2], tmp_path / "all", overwrite=True)
    names = {"all.bin", "all.idx", "all.json"}
    assert {path.name for path in tmp_path.glob("all.*")} == names
    mine = tmp_path / "all.mask"
    mine.write_text("mine")
    merge(parts[1:2], tmp_path / "all", overwrite=True)
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"all\.mask:"):
            merge(parts, tmp_path / "all", overwrite=overwrite)
    assert mine.read_text() == "mine"
    assert documents_of(tmp_path / "all") == PARTS[1]


def damage(prefix: str, name: str, value: bytes, at: int = 0) -> None:
    with open(f"{prefix}.{name}", "r+b") as file:
        file.seek(at)
        file.write(value)


def edit(prefix: str, **values: Any) -> None:
    path = f"{prefix}.json"
    with open(path) as file:
        manifest = json.load(file)
    with open(path, "w") as file:
        json.dump(manifest | values, file)


def test_verify_finds_what_is_wrong_with_a_track(parts: list[str]) -> None:
    prefix = parts[0]
    assert "tracks" in verify(prefix).checked
    assert "tracks (quick)" in verify(prefix, quick=True).unchecked
    assert not [one for one in verify(parts[1]).checked if one == "tracks"]
    for name, value, at, message in (
        ("mask", b"\0", 0, r"part0\.mask: xxh3_blocks "),
        ("mask", b"\2", 3, r"part0\.mask: byte 3, token 3: .*\b2, .*\b0 or 1$"),
        ("weights", b"\0\x7e", 4, r"part0\.weights: byte 4, token 2: .*\bnan, "),
    ):
        with open(f"{prefix}.{name}", "rb") as file:
            kept = file.read()
        damage(prefix, name, value, at)
        with pytest.raises(FormatError, match=message):
            verify(prefix)
        if at == 0:  # a right value, of another token
            with pytest.raises(FormatError, match=message):
                merge(prefix, f"{prefix}-copy")
        damage(prefix, name, kept)
    edit(prefix, trained=2)
    with pytest.raises(FormatError, match=r"part0\.json: trained .*\b2, .*\b3, .*part0\.mask"):
        verify(prefix)
    shutil.move(f"{prefix}.mask", f"{prefix}.elsewhere")
    for quick in (False, True):
        with pytest.raises(InputError, match=r"part0\.mask"):
            verify(prefix, quick=quick)


def test_labels_are_in_the_vocabulary(tmp_path: Path) -> None:
    prefix = str(tmp_path / "labelled")
    with tokpack.MMapIndexedDatasetBuilder(f"{prefix}.bin", np.int32, tracks=["labels"]) as new:
        new.add_item([1, 2, 3], labels=[-100, 2, 7])
        new.finalize(f"{prefix}.idx")
    verify(prefix, vocab_size=8)
    with pytest.raises(FormatError, match=r"labelled\.labels: byte 8, token 2: .*\b7;"):
        verify(prefix, vocab_size=7)


def test_what_is_unknown_of_tracks_is_ignored(parts: list[str]) -> None:
    edit(parts[2], tracks={"../../secret": {"bytes": 1, "xxh3_128": "", "dtype": "uint8"}})
    assert MMapIndexedDataset(parts[2]).tracks == {}
