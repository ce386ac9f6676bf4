"""Runs of every kind of dataset, killed where they may be: what is made in the end is the same."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support.chatml_twin import chat_tokenizer, conversations, write_records
from support.faults import PLANT
from support.stopped_runs import SMALL, STOP_AT_END, Place, stop_at_rename

import tokpack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Kind(NamedTuple):
    """How a dataset is made, and the file that makes it whole last."""

    options: dict[str, Any]
    renames: Sequence[int]  # how many are done when the run is killed
    old: dict[str, Any]  # how the dataset is made whose place it takes


CHAT = {"chat": True, "weight_key": "weight"}
KINDS = {
    "a file": Kind({}, (0, 1, 2), {"files": 3}),
    "two files": Kind({"files": 2}, (0, 1, 4, 6), {}),
    "tracks": Kind(CHAT, range(5), CHAT),
    "tracks in files": Kind({**CHAT, "files": 3}, (2, 12), {**CHAT, "files": 2}),
    "a table and bad records": Kind({"trace": True, "on_error": "skip"}, range(6), {}),
}
STOP_BEHIND_RENAMES = f"""{SMALL}{PLANT}
from tokpack.encoding.folder import WorkFolder
plant(WorkFolder, "remove", kill)
"""


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    if "chat" in KINDS[request.param].options:
        pytest.importorskip("jinja2")
    return KINDS[request.param]


@pytest.fixture
def stopped(kind: Kind, place: Place, bpe: Path, tmp_path: Path) -> Place:
    """A place whose input suits the kind."""
    if "chat" in kind.options:
        place.tokenizer = chat_tokenizer(tmp_path / "chatty", bpe)
        records = conversations(100, words=80)
        write_records(place.source, [{**one, "weight": one["id"] % 5 / 4} for one in records])
    elif kind.options.get("on_error"):
        lines = place.source.read_bytes().splitlines(keepends=True)
        place.source.write_bytes(b"".join([*lines[:300], b'{"text": 1}\n' * 5, *lines[300:]]))
    return place


def files(place: Place) -> dict[str, Any]:
    """What there is of the output; of a manifest what does not tell the time."""
    contents = {path.name: path.read_bytes() for path in place.folder.glob("out*")}
    return {
        name: {**json.loads(content), "created": ""} if name.endswith(".json") else content
        for name, content in contents.items()
    }


@pytest.mark.promises
def test_the_next_run_makes_what_one_run_makes(kind: Kind, stopped: Place) -> None:
    """In place of another dataset; meanwhile there is none, or the right one without a manifest."""
    stopped.encode(**kind.options)
    expected = files(stopped)
    fingerprint = tokpack.MMapIndexedDataset(stopped.output).fingerprint
    stopped.verify()
    stopped.encode(**kind.old, limit=5, overwrite=True)
    old = stopped.folder / "old"
    old.mkdir()
    for path in stopped.folder.glob("out*"):
        shutil.move(path, old)
    renames = [stop_at_rename(done) for done in kind.renames]
    for script in (STOP_AT_END, *renames, STOP_BEHIND_RENAMES):
        for path in stopped.folder.glob("out*"):
            path.unlink()
        shutil.copytree(old, stopped.folder, dirs_exist_ok=True)
        stopped.stop(script, **kind.options, overwrite=True)
        if script in renames:
            assert not stopped.output.with_suffix(".json").exists()
            with contextlib.suppress(tokpack.TokpackError):
                assert tokpack.MMapIndexedDataset(stopped.output).fingerprint == fingerprint
        made = stopped.encode(**kind.options, overwrite=True)
        assert files(stopped) == expected
        assert stopped.encode(**kind.options) == made
