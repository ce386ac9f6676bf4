"""A dataset that is replaced while somebody opens it: the old one or the new one, never of both."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import forked

from tokpack.dataset import Manifest, MMapIndexedDataset, MMapIndexedDatasetBuilder, shards
from tokpack.dataset.merge import merge
from tokpack.dataset.verify import verify
from tokpack.errors import FormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEQUENCES = 64
KINDS = 3  # of datasets that take each other's place; the first two have as many tokens


def content(kind: int) -> list[list[int]]:
    """The sequences of a kind: every id tells the kind, every length the kind and the place."""
    lengths = [3 + (number % 2 == kind % 2) for number in range(SEQUENCES)]
    return [[kind + 1] * (length + (kind == 2)) for length in lengths]


def write(prefix: str, kind: int) -> None:
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for sequence in content(kind):
            builder.add_item(sequence)
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def kind_of(sequences: list[list[int]]) -> int:
    """Which kind a dataset is; -1 for a mixture."""
    return next((kind for kind in range(KINDS) if sequences == content(kind)), -1)


def read(prefix: str) -> int:
    return kind_of([sequence.tolist() for sequence in MMapIndexedDataset(prefix)])


# -- one replacement, at the worst moment ----------------------------------------------------------


def between(
    monkeypatch: pytest.MonkeyPatch, suffix: str, happens: Callable[[], object]
) -> list[str]:
    """Let something happen once, just before the file with ``suffix`` is mapped."""
    mapped: list[str] = []
    real = shards.map_file

    def map_file(path: str, *found: object) -> Any:
        if path.endswith(suffix) and not any(name.endswith(suffix) for name in mapped):
            happens()
        mapped.append(path)
        return real(path, *found)

    monkeypatch.setattr(shards, "map_file", map_file)
    return mapped


@pytest.mark.parametrize("kind", [1, 2])
def test_what_is_replaced_between_its_files_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    prefix = str(tmp_path / "x")
    write(prefix, 0)
    mapped = between(monkeypatch, ".bin", lambda: write(prefix, kind))
    assert read(prefix) == kind
    assert len(mapped) == 4  # both files, twice


def test_a_reader_waits_for_an_index_that_is_about_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = str(tmp_path / "x")
    write(prefix, 0)
    write(str(tmp_path / "new"), 1)

    def half() -> None:
        os.unlink(f"{prefix}.idx")
        os.replace(tmp_path / "new.bin", f"{prefix}.bin")
        threading.Timer(0.1, os.replace, (tmp_path / "new.idx", f"{prefix}.idx")).start()

    between(monkeypatch, ".idx", half)
    assert read(prefix) == 1


def test_an_index_that_does_not_come_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "PATIENCE_SECONDS", 0.05)
    write(str(tmp_path / "x"), 0)
    os.unlink(tmp_path / "x.idx")
    with pytest.raises(InputError, match=r"x\.idx"):
        MMapIndexedDataset(tmp_path / "x")


def test_a_manifest_of_the_dataset_that_came_after_is_not_taken(tmp_path: Path) -> None:
    for kind in range(2):
        write(f"{tmp_path}/k{kind}", kind)
    merge([f"{tmp_path}/k0"], f"{tmp_path}/x")
    dataset = MMapIndexedDataset(tmp_path / "x")
    merge([f"{tmp_path}/k1"], f"{tmp_path}/x", overwrite=True)
    with pytest.raises(InputError, match=r"/x: .*replaced"):
        _ = dataset.manifest
    assert kind_of([sequence.tolist() for sequence in dataset]) == 0


def test_a_builder_takes_the_old_manifest_away(tmp_path: Path) -> None:
    write(f"{tmp_path}/k", 0)
    merge([f"{tmp_path}/k"], f"{tmp_path}/x")
    write(f"{tmp_path}/x", 1)
    assert not (tmp_path / "x.json").exists()
    (tmp_path / "x.json").write_text('{"text": "somebody\'s data"}')
    write(f"{tmp_path}/x", 0)
    assert (tmp_path / "x.json").exists()


# -- the order of every writer ---------------------------------------------------------------------

WATCHED = """
import json, os, sys
from tokpack.cli import main
events = []
def hear(event, arguments):
    if event in ("os.rename", "os.remove"):
        path = arguments[1] if event == "os.rename" else arguments[0]
        events.append((event[3:], os.path.basename(os.fsdecode(path))))
sys.addaudithook(hear)
code = main(sys.argv[1:])
print("events", json.dumps(events))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "command",
    [
        "encode new.txt -o x --tokenizer-type Whitespace --vocab-file vocab.json --overwrite",
        "merge k1 -o x --overwrite",
        "split k1 -o x --parts 1 --overwrite",
        "convert k1 x --dtype int32 --overwrite",
    ],
)
def test_every_command_replaces_in_the_order_that_readers_rely_on(
    tmp_path: Path, command: str
) -> None:
    name = "x_00000" if command.startswith("split") else "x"
    write(f"{tmp_path}/k0", 0)
    write(f"{tmp_path}/k1", 1)
    merge([f"{tmp_path}/k0"], f"{tmp_path}/{name}")
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "<eod>": 1, "a": 2}))
    (tmp_path / "new.txt").write_text("a a\n")
    done = forked.run(
        ["-c", WATCHED, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    events = [tuple(event) for event in json.loads(done.stdout.rpartition("events ")[2])]
    removed = {("remove", f"{name}.json"), ("remove", f"{name}.idx")}
    named = [("rename", f"{name}.{suffix}") for suffix in ("bin", "idx", "json")]
    events = [event for event in events if event in removed or event in named]
    assert set(events[:2]) == removed
    assert events[2:] == named
    assert Manifest.load(tmp_path / name)


# -- races -----------------------------------------------------------------------------------------


def replace_again_and_again(prefix: str, until: float) -> int:
    rounds = 0
    while time.time() < until or rounds < KINDS:
        write(prefix, rounds % KINDS)
        rounds += 1
    return rounds


def open_again_and_again(prefix: str, until: float) -> dict[str, int]:
    found: Counter[str] = Counter()
    while time.time() < until:
        try:
            found[str(read(prefix))] += 1
        except InputError as error:  # none at this moment, and none soon
            found["missing" if "no such file" in str(error) else str(error)] += 1
        except FormatError as error:
            found[str(error)] += 1
    return dict(found)


def test_readers_race_with_a_writer(tmp_path: Path) -> None:
    prefix, until = str(tmp_path / "x"), time.time() + 2
    write(prefix, 0)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        writer = pool.apply_async(replace_again_and_again, (prefix, until))
        readers = [pool.apply_async(open_again_and_again, (prefix, until)) for _ in range(2)]
        found = Counter[str]()
        for reader in readers:
            found.update(reader.get())
        assert writer.get() >= KINDS
    assert set(found) <= {"0", "1", "2", "missing"}, found
    assert sum(found[str(kind)] for kind in range(KINDS)) > 0


def use_again_and_again(prefix: str, output: str, until: float) -> list[str]:
    """Merge and verify what is replaced meanwhile; what is wrong with what came of it."""
    wrong = []
    while time.time() < until:
        for use in (
            lambda: merge([prefix, prefix], output, overwrite=True),
            lambda: verify(prefix),
        ):
            try:
                use()
            except (FormatError, InputError) as error:
                words = ("changed while it was merged", "was replaced while", "no such file")
                wrong += [] if any(word in str(error) for word in words) else [str(error)]
        if os.path.exists(f"{output}.idx"):
            rows = [sequence.tolist() for sequence in MMapIndexedDataset(output)]
            halves = kind_of(rows[:SEQUENCES]), kind_of(rows[SEQUENCES:])
            wrong += [str(halves)] if -1 in halves else []
    return wrong


def test_merge_and_verify_race_with_a_writer(tmp_path: Path) -> None:
    prefix, until = str(tmp_path / "x"), time.time() + 2
    write(prefix, 0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        writer = pool.apply_async(replace_again_and_again, (prefix, until))
        user = pool.apply_async(use_again_and_again, (prefix, f"{tmp_path}/out", until))
        assert user.get() == []
        assert writer.get() >= KINDS
