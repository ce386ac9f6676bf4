"""Runs whose datasets have tracks: complete with the .bin or absent, whatever happens."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.chatml_twin import ChatTwin, conversations, write_records
from support.faults import flip
from support.stopped_runs import Place, stop_at_rename

import tokpack
from tokpack.dataset.manifest import ROLES

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("jinja2")
TRACKS = ("mask", "weights", "roles")
RECORDS = [
    {**one, "weight": (1 + one["id"] % 5) / 4}
    for one in conversations(100, words=80)
    if "<|im_start|>" not in str(one)
]
CHAT = {"chat": True, "weight_key": "weight"}


@pytest.fixture(scope="session")
def expected(chatty: Path, twin: ChatTwin) -> tuple[list[int], list[int], list[float], list[int]]:
    """The ids of all RECORDS, and their values in the tracks."""
    ids, mask, lengths = twin.arrays([one["messages"] for one in RECORDS])
    weights = np.repeat([one["weight"] for one in RECORDS], lengths)
    return ids.tolist(), mask.tolist(), weights.tolist(), _roles(ids, chatty)


def _roles(ids: Any, chatty: Path) -> list[int]:
    """Who speaks: a turn begins with a token that none of RECORDS has in a text."""
    begins = ids == tokpack.load_tokenizer(chatty).token_to_id("<|im_start|>")
    said = [ROLES.index(m["role"]) for one in RECORDS for m in one["messages"]]
    assert begins.sum() == len(said)
    return [said[turn] for turn in np.cumsum(begins) - 1]


class Chats(Place):
    """A place with one input of conversations."""

    def __init__(self, folder: Path, tokenizer: Path, kept: Path) -> None:
        super().__init__(folder, tokenizer, kept)
        write_records(self.source, RECORDS)

    def options(self, **more: Any) -> dict[str, Any]:
        return super().options(**{**CHAT, **more})

    @property
    def names(self) -> set[str]:
        """What there is of the output."""
        return {path.name for path in self.folder.glob("out*")}


@pytest.fixture
def chats(tmp_path: Path, chatty: Path, kept: Path) -> Chats:
    return Chats(tmp_path, chatty, kept)


Check = Any  # a function: see below


@pytest.fixture
def check(chats: Chats, expected: tuple[list[Any], ...]) -> Check:
    """Checks that the dataset and its tracks are right, and nothing else is there."""

    def check(files: int = 1) -> None:
        kinds = ("bin", "idx", "json", *TRACKS)
        pieces = [f"out-{n:05d}-of-{files:05d}" for n in range(files)] if files > 1 else ["out"]
        assert chats.names == {"out.json", *(f"{one}.{kind}" for one in pieces for kind in kinds)}
        made = tokpack.MMapIndexedDataset(chats.output)
        assert list(made.tracks) == list(TRACKS)
        assert made.manifest
        assert made.manifest.trained == sum(expected[1])
        read = [np.concatenate(one[:]).tolist() for one in (made, *map(made.track, TRACKS))]
        assert read == list(expected)
        chats.verify()

    return check


@pytest.mark.parametrize(("files", "workers"), [(1, 3), (3, 2)])
def test_they_belong_to_the_tokens_however_the_work_is_cut(
    chats: Chats, check: Check, files: int, workers: int
) -> None:
    made = chats.encode(files=files, workers=workers)
    check(files)
    assert chats.encode(files=files) == made


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("change", ["removed", "cut off"])
def test_a_finished_one_that_lacks_a_track_is_not_taken_for_whole(
    chats: Chats, check: Check, files: int, change: str
) -> None:
    chats.encode(files=files)
    path = sorted(chats.folder.glob("out*.weights"))[-1]
    path.write_bytes(path.read_bytes()[:-2])
    if change == "removed":
        path.unlink()
    with pytest.raises(tokpack.OutputError):
        chats.encode(files=files)
    chats.encode(files=files, overwrite=True)
    check(files)


def test_what_is_damaged_is_made_again_or_refused(chats: Chats, check: Check) -> None:
    chats.stop(stop_at_rename(0))
    flip(chats.work / "joined.text.mask")
    chats.encode()
    check()
    for name in chats.names:
        (chats.folder / name).unlink()
    chats.stop(stop_at_rename(1))
    flip(chats.output.with_suffix(".mask"))
    with pytest.raises(tokpack.OutputError, match=r"out\.mask .*out\.unfinished"):
        chats.encode()
    chats.output.with_suffix(".mask").unlink()
    shutil.rmtree(chats.work)
    chats.encode()
    check()


def test_tracks_come_and_go_with_their_dataset(chats: Chats, check: Check) -> None:
    """A file of another program is not replaced, whatever is asked for, and no track."""
    mine = chats.output.with_suffix(".mask")
    mine.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(tokpack.OutputError, match=r"out\.mask:"):
            chats.encode(overwrite=overwrite)
    chats.source.write_text('{"text": "a"}\n{"text": "b"}\n')
    text = {"chat": False, "weight_key": None}
    chats.encode(**text)
    assert tokpack.MMapIndexedDataset(chats.output).tracks == {}
    assert mine.read_text() == "mine"
    mine.unlink()
    write_records(chats.source, RECORDS)
    chats.encode(overwrite=True)
    check()
    chats.source.write_text('{"text": "a"}\n{"text": "b"}\n')
    chats.encode(overwrite=True, **text)
    assert chats.names == {"out.bin", "out.idx", "out.json"}
    chats.verify()


def test_a_table_of_one_of_several_files_that_is_gone_is_noticed(chats: Chats) -> None:
    """By another run, and by verify."""
    pytest.importorskip("pyarrow")
    made = chats.encode(files=2, trace=True)
    assert chats.encode(files=2, trace=True) == made
    table = chats.folder / "out-00001-of-00002.docs.parquet"
    data = table.read_bytes()
    table.unlink()
    with pytest.raises(tokpack.InputError, match=r"out-00001-of-00002\.docs\.parquet"):
        chats.verify()
    for content in (None, data[:-1]):
        if content is not None:
            table.write_bytes(content)
        with pytest.raises(tokpack.OutputError):
            chats.encode(files=2, trace=True)
    assert chats.encode(files=2) == made  # which needs no table
