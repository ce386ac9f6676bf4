"""Masks and labels in files that are broken, or that are right in part; see messages.txt too."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest
from support.chats_twin import rows_of, write_chats
from support.converting import run

from tokpack.errors import FormatError, InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mask_of_a_table_that_says_no_documents_is_left_out(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    ids = [[1, 2], [3]]
    table = arrow.table({"input_ids": ids, "loss_mask": [[0, 0], [0]]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    (note,) = run(tmp_path / "x.parquet", tmp_path / "out").notes
    assert note.startswith("loss_mask is left out")
    assert rows_of(tmp_path / "out") == ids


def test_a_split_of_several_is_read_from_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "both")
    run(tmp_path / "both" / "train", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [[1, 2], [3]]


def test_damaged_files_of_lists(tmp_path: Path) -> None:
    """Each is refused by name, or still says the same; nothing else happens."""
    pytest.importorskip("pyarrow")
    write_chats(tmp_path / "all", [([5, 6, 0], [0, 1, 1]), ([7, 0], [0, 1])])
    run(tmp_path / "all", tmp_path / "x", to="arrow")
    run(tmp_path / "all", tmp_path / "x.idx.parquet")
    chance = random.Random(7)
    for path in (tmp_path / "x" / "data-00000-of-00001.arrow", tmp_path / "x.idx.parquet"):
        right = path.read_bytes()
        for _ in range(60):
            wrong = bytearray(right)
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
            path.write_bytes(wrong if chance.random() < 0.7 else wrong[: chance.randrange(99)])
            with contextlib.suppress(FormatError, InputError, UsageError):
                run(path, tmp_path / "out", overwrite=True)
