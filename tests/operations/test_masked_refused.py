"""What convert refuses of masks and labels: files that do not belong together, and broken ones."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.chats_twin import rows_of, write_chats, write_lists
from support.converting import run
from support.documents import plain
from support.indexed_twin import write_plainly

from tokpack.errors import FormatError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_labels_that_do_not_belong_to_the_ids(tmp_path: Path) -> None:
    write_lists(tmp_path / "x_document", [[1, 2], [3]])
    for rows, message in (
        ([[1, 2]], "x_label_document: 1 sequences, expected 2, as in .*x_document"),
        ([[1, 2], [3, 4]], "x_label_document: sequence 1 has 2 tokens, expected 1, as in"),
    ):
        write_lists(tmp_path / "x_label_document", rows)
        with pytest.raises(FormatError, match=message):
            run(tmp_path / "x", tmp_path / "no")
    write_plainly(tmp_path / "x_label_document", plain([[[1, 2], [3]]], "i"))
    with pytest.raises(FormatError, match="x_label_document: has other documents than"):
        run(tmp_path / "x_document", tmp_path / "no")
    write_plainly(tmp_path / "x_label_document", plain([[[1, 2]], [[3]]], "H"))
    with pytest.raises(FormatError, match="x_label_document: holds uint16, expected int32"):
        run(tmp_path / "x_document.idx", tmp_path / "no")
    for key, rows in (("input_ids", [[1, 2]]), ("labels", [[1, 2]]), ("attention_mask", [[1]])):
        write_lists(tmp_path / f"m_packed_{key}_document", rows)
    with pytest.raises(FormatError, match="m_packed_attention_mask_document: sequence 0 has 1"):
        run(tmp_path / "m", tmp_path / "no")
    os.truncate(tmp_path / "m_packed_labels_document.bin", 4)
    with pytest.raises(FormatError, match=r"m_packed_labels_document.*cut off"):
        run(tmp_path / "m", tmp_path / "no")
    assert not list(tmp_path.glob("no*"))


def test_masks_of_other_lengths(tmp_path: Path) -> None:
    write_chats(tmp_path / "all", [([5, 6, 0], [0, 1, 1])])
    run(tmp_path / "all", tmp_path / "x.npy", to="olmo", eod=0)
    mask = tmp_path / "labels_mask_x.npy"
    for data, message in (
        (b"\0\1", r"labels_mask_x\.npy: 2 bytes, expected 3, one for each id"),
        (b"\0\1\7", "the mask of token 2 is 7, expected 0 or 1"),
    ):
        mask.write_bytes(data)
        with pytest.raises(FormatError, match=message):
            run(tmp_path / "x.npy", tmp_path / "no", from_="olmo")
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, dtype in ((0, "<u4"), (1, "<u2")):
        np.array([5, 0], dtype).tofile(folder / f"token_ids_part_{number:04d}.npy")
        packed = gzip.compress(b"0,2\n")
        (folder / f"token_ids_part_{number:04d}.csv.gz").write_bytes(packed)
    with pytest.raises(FormatError, match="its parts hold uint32 and uint16"):
        run(folder, tmp_path / "no", eod=0)
    np.array([5, 0], "<u4").tofile(folder / "token_ids_part_0001.npy")
    (folder / "labels_mask_part_0001.npy").write_bytes(b"\1\1")
    with pytest.raises(FormatError, match="only some of its parts have a labels_mask file"):
        run(folder, tmp_path / "no", eod=0)
    with pytest.raises(UsageError, match="nothing in this folder tells its format"):
        run(tmp_path, tmp_path / "no")
    assert not list(tmp_path.glob("no*"))


def test_wrong_rows(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    def write(**columns: Any) -> Path:
        pyarrow.parquet.write_table(arrow.table(columns), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    ids = [[1, 2], [3]]
    for columns, message in (
        ({"labels": [[1, 2], [3, 4]]}, "labels of row 1 has 2 values, expected 1, one for each"),
        ({"completion_mask": [[1], [1]]}, "completion_mask of row 0 has 1 values, expected 2"),
        ({"attention_mask": [[1, 1], []]}, "attention_mask of row 1 has 0 values, expected 1"),
        ({"labels": [[1, 2], None]}, "labels of row 1 is null"),
        ({"labels": [[1, 2**40], [3]]}, f"the label {2**40} does not fit int32"),
    ):
        with pytest.raises(FormatError, match=message):
            run(write(input_ids=ids, **columns), tmp_path / "no")
    mask = [[0, 0], [0]]
    for starts in ([[0], [1]], [[1], [0]], [[0, 3], [0]], [[0, 1, 0], [0]], [[], [0]], [[0], [-1]]):
        with pytest.raises(FormatError, match=r"seq_start_id of row [01] is not where documents"):
            run(write(input_ids=ids, loss_mask=mask, seq_start_id=starts), tmp_path / "no")
    (note,) = run(write(input_ids=ids, loss_mask=mask), tmp_path / "out").notes
    assert note.startswith("loss_mask is left out")
    assert rows_of(tmp_path / "out") == ids
    assert not list(tmp_path.glob("no*"))


def test_wrong_folders_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "both")
    with pytest.raises(UsageError, match="both: has several splits, each in a folder: name one"):
        run(tmp_path / "both", tmp_path / "no")
    folder = tmp_path / "both" / "train"
    run(folder, tmp_path / "out")
    assert rows_of(tmp_path / "out") == [[1, 2], [3]]
    state = folder / "state.json"
    right = json.loads(state.read_text())
    for wrong, message in (
        ([], "expected a JSON object"),
        ({}, "_data_files names no files"),
        ({"_data_files": [{"filename": 3}]}, "_data_files names no files"),
        ({"_data_files": [{"filename": "../x.arrow"}]}, "a file that is not in its folder"),
        ({**right, "_indices_data_files": [{}]}, r"a selection of rows: call flatten_indices\(\)"),
    ):
        state.write_text(json.dumps(wrong))
        with pytest.raises(FormatError, match=message):
            run(folder, tmp_path / "no")
    assert not list(tmp_path.glob("no*"))


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
            with contextlib.suppress(FormatError, UsageError):
                run(path, tmp_path / "out", overwrite=True)
