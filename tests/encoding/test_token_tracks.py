"""Runs whose datasets have tracks: complete with the .bin or absent, whatever happens."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.encoding_tools import dataset, twin
from support.stopped_runs import STOP_AT_END, STOP_AT_RENAME, Place, flip

import tokpack
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.part import PartEncoder

if TYPE_CHECKING:
    from collections.abc import Callable

TRACKS = ("mask", "weights")
# Runs make tracks, whose values follow from the ids.
MASKED = """
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.part import PartEncoder
EncodeOptions.token_tracks = ("mask", "weights")
def with_tracks(self, *given, real=PartEncoder._tokens):
    arrays, counts = real(self, *given)
    tracks = (arrays[0] % 2).astype("u1"), (arrays[0] % 5).astype("<f2")
    return (*arrays, *tracks[: len(self.job.options.token_tracks)]), counts
PartEncoder._tokens = with_tracks
"""


@pytest.fixture(autouse=True)
def masked(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Runs of this process make tracks too, until that is turned off."""
    monkeypatch.setattr(PartEncoder, "_tokens", PartEncoder._tokens)
    monkeypatch.setattr(EncodeOptions, "token_tracks", TRACKS)
    exec(MASKED)
    return lambda on: monkeypatch.setattr(EncodeOptions, "token_tracks", TRACKS if on else ())


def names(place: Place) -> set[str]:
    return {path.name for path in place.folder.glob("out*")}


def check(place: Place, *, files: int = 1) -> None:
    """That the dataset and its tracks are right, and nothing else is there."""
    kinds = ("bin", "idx", "json", *TRACKS)
    pieces = [f"out-{n:05d}-of-{files:05d}" for n in range(files)] if files > 1 else ["out"]
    expected = {f"{piece}.{kind}" for piece in pieces for kind in kinds}
    assert names(place) == expected | {"out.json"}
    made = tokpack.MMapIndexedDataset(place.output)
    assert list(made.tracks) == list(TRACKS)
    trained = 0
    for shard in made.shards():
        ids = np.asarray(shard.tokens[:])
        assert (np.asarray(shard.track("mask")[:]) == ids % 2).all()
        assert (np.asarray(shard.track("weights")[:]) == ids % 5).all()
        trained += int((ids % 2).sum())
    assert made.manifest
    assert made.manifest.trained == trained
    if files == 1:
        assert dataset(place.output) == twin(place.tokenizer, place.texts)
    place.verify()


@pytest.mark.parametrize(("files", "workers"), [(1, 1), (1, 3), (3, 2)])
def test_they_belong_to_the_tokens_however_the_work_is_cut(
    place: Place, files: int, workers: int
) -> None:
    made = place.encode(files=files, workers=workers)
    check(place, files=files)
    assert place.encode(files=files) == made


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("change", ["removed", "cut off"])
def test_a_finished_one_that_lacks_a_track_is_not_taken_for_whole(
    place: Place, files: int, change: str
) -> None:
    place.encode(files=files)
    path = sorted(place.folder.glob("out*.weights"))[-1]
    path.write_bytes(path.read_bytes()[:-2])
    if change == "removed":
        path.unlink()
    with pytest.raises(tokpack.OutputError, match="exists"):
        place.encode(files=files)
    place.encode(files=files, overwrite=True)
    check(place, files=files)


@pytest.mark.parametrize("done", range(5))
def test_stopped_among_the_renames(place: Place, done: int) -> None:
    """In place of another dataset with tracks."""
    place.encode(limit=5)
    place.stop(MASKED + STOP_AT_RENAME.format(done=done), overwrite=True)
    place.encode(overwrite=True)
    check(place)


@pytest.mark.parametrize("files", [1, 3])
def test_stopped_at_the_end(place: Place, files: int) -> None:
    place.stop(MASKED + STOP_AT_END, files=files)
    place.encode(files=files)
    check(place, files=files)


def test_what_is_damaged_is_made_again_or_refused(place: Place) -> None:
    place.stop(MASKED + STOP_AT_RENAME.format(done=0))
    flip(place.work / "joined.text.mask")
    place.encode()
    check(place)
    for name in names(place):
        (place.folder / name).unlink()
    place.stop(MASKED + STOP_AT_RENAME.format(done=1))
    flip(place.output.with_suffix(".mask"))
    with pytest.raises(tokpack.OutputError, match=r"out\.mask is not what the run wrote.*remove"):
        place.encode()
    place.output.with_suffix(".mask").unlink()
    shutil.rmtree(place.work)
    place.encode()
    check(place)


def test_tracks_come_and_go_with_their_dataset(
    place: Place, masked: Callable[[bool], None]
) -> None:
    """A file of another program is not replaced, whatever is asked for, and no track."""
    mine = place.output.with_suffix(".mask")
    mine.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(tokpack.OutputError, match=r"out\.mask: exists and is not a track"):
            place.encode(overwrite=overwrite)
    masked(False)
    place.encode()
    assert tokpack.MMapIndexedDataset(place.output).tracks == {}
    assert mine.read_text() == "mine"
    mine.unlink()
    masked(True)
    place.encode(overwrite=True)
    check(place)
    masked(False)
    place.encode(overwrite=True)
    assert names(place) == {"out.bin", "out.idx", "out.json"}
    place.verify()
