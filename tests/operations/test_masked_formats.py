"""Convert, with masks: what other programs read, and the same mask again on the way back."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats_twin import (
    CHATS,
    Chat,
    Triple,
    bridge_predicts,
    labels_of,
    predicted,
    rows_of,
    write_chats,
    write_lists,
)
from support.cli_tools import tokpack
from support.converting import run, same
from support.documents import documents_of
from support.packing_twin import best_fit as best_fit_plainly

from tokpack import GPTDataset
from tokpack.dataset import Manifest, MMapIndexedDataset
from tokpack.errors import FormatError, UsageError
from tokpack.formats.conversion import detect
from tokpack.formats.lists import best_fit

EOD = 60001
NAMES = {
    "neox": ("x", "x_document"),
    "datatrove": ("x.ds", "x.ds"),
    "olmo": ("x.npy", "x.npy"),
    "bridge": ("x.idx.parquet", "x.idx.parquet"),
    "parquet": ("x.parquet", "x.parquet"),
    "arrow": ("x", "x"),
}
CHAT = ([5, 6, 7, EOD], [0, 0, 1, 1])


def mask_of(prefix: object) -> list[list[int]]:
    mask = MMapIndexedDataset(str(prefix)).mask
    assert mask is not None
    return [mask[number].tolist() for number in range(len(mask))]


@pytest.mark.parametrize("target", list(NAMES))
@settings(max_examples=8, deadline=None)
@given(chats=CHATS)
def test_there_and_back(target: str, chats: list[Chat]) -> None:
    if target in ("bridge", "parquet", "arrow"):
        pytest.importorskip("pyarrow")
    first = 0 if target == "bridge" else 1  # the first token of a document is never predicted there
    chats = [([*ids, EOD], [mask[0] & first, *mask[1:], 1]) for ids, mask in chats]
    output, again = NAMES[target]
    with tempfile.TemporaryDirectory() as folder:
        write_chats(f"{folder}/all", chats)
        made = run(f"{folder}/all", f"{folder}/{output}", to=target, eod=EOD)
        assert (made.documents, made.notes) == (len(chats), [])
        assert all(Path(path).exists() for path in made.paths)
        source = {"from_": "olmo"} if target == "olmo" else {}
        back = run(f"{folder}/{again}", f"{folder}/back", dtype="int32", **source)
        assert back.notes == []
        assert f"{folder}/back.mask" in back.paths
        same(f"{folder}/back", f"{folder}/all")
        masks = [Path(f"{folder}/{name}.mask").read_bytes() for name in ("back", "all")]
        assert masks[0] == masks[1] == bytes(one for _, mask in chats for one in mask)
        manifest = Manifest.load(f"{folder}/back")
        assert manifest.trained == sum(masks[0])


@settings(max_examples=8, deadline=None)
@given(chats=CHATS)
def test_what_neox_reads(chats: list[Chat]) -> None:
    ids, labels = [ids for ids, _ in chats], [labels_of(chat) for chat in chats]
    with tempfile.TemporaryDirectory() as folder:
        write_chats(f"{folder}/all", chats)
        run(f"{folder}/all", f"{folder}/n", to="neox")
        assert rows_of(f"{folder}/n_document") == ids
        assert rows_of(f"{folder}/n_label_document") == labels


def test_samples_of_both_are_the_same(tmp_path: Path) -> None:
    """What is trained of a dataset with a mask, and of GPT-NeoX's files with their labels."""
    chats = [([*range(size), EOD], [size % 2, *([0, 1] * size)[:size]]) for size in range(1, 30)]
    write_chats(tmp_path / "all", chats)
    run(tmp_path / "all", tmp_path / "x", to="neox")
    own = GPTDataset(tmp_path / "all", 16, order="stateless", seed=3)
    labels = tmp_path / "x_label_document"
    theirs = GPTDataset(tmp_path / "x_document", 16, labels=labels, order="stateless", seed=3)
    assert len(own) == len(theirs) > 9
    batches = [dataset.batch(range(len(own))) for dataset in (own, theirs)]
    for name in ("tokens", "loss_mask"):
        assert batches[0][name].tolist() == batches[1][name].tolist()


@settings(max_examples=15, deadline=None)
@given(chats=CHATS, room=st.integers(5, 20))
def test_what_megatron_bridge_reads(chats: list[Chat], room: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        write_chats(f"{folder}/all", chats)
        run(f"{folder}/all", f"{folder}/x.idx.parquet", seq_length=room)
        table = parquet.read_table(f"{folder}/x.idx.parquet")
        types = [str(table.schema.field(name).type.value_type) for name in table.schema.names]
        assert (table.schema.names, types) == (
            ["input_ids", "loss_mask", "seq_start_id", "tokpack_document"],
            ["int32", "int8", "int32", "int64"],
        )
        rows = table.to_pylist()
        found = [bridge_predicts(row) for row in rows]
        fills = [sum(len(ids) for ids, _, _ in row) for row in found]
        assert max(fills) <= room
        expected = sorted(map(predicted, chats))
        assert sorted(triple for row in found for triple in row) == expected
        (facts,) = json.loads(Path(f"{folder}/x.metadata.json").read_text())
        assert facts["max_samples_per_bin"] == max(map(len, found))
        assert facts["dataset_max_seqlen"] == max(len(ids) - 1 for ids, _ in chats)
        assert (facts["pack_size"], facts["min_packed_seqlen"]) == (room, min(fills))
        run(f"{folder}/x.idx.parquet", f"{folder}/back")
        assert read_back(f"{folder}/back") == [predicted(chat) for chat in chats]
        parquet.write_table(table.drop(["tokpack_document"]), f"{folder}/x.idx.parquet")
        run(f"{folder}/x.idx.parquet", f"{folder}/packed")
        assert read_back(f"{folder}/packed") == [triple for row in found for triple in row]


def read_back(prefix: str) -> list[Triple]:
    return list(map(predicted, zip(rows_of(prefix), mask_of(prefix), strict=True)))


def test_the_order_of_packed_documents_is_found_a_window_at_a_time(tmp_path: Path) -> None:
    """Also with documents without ids between them; an order that none can be is refused."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = random.Random(1)
    chats: list[Chat] = [
        ([rng.randrange(100) for _ in range(size)], [0, *[rng.randrange(2)] * (size - 1)][:size])
        for size in rng.choices(range(12), k=3000)
    ]
    write_chats(tmp_path / "all", chats)
    path = tmp_path / "x.idx.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokpack.formats.lists._WINDOW_IDS", 5000)
        patch.setattr("tokpack.formats.lists._ROWS", 100)
        run(tmp_path / "all", path, seq_length=20)
        run(path, tmp_path / "back")
    assert read_back(str(tmp_path / "back")) == [predicted(chat) for chat in chats if chat[0]]
    table = parquet.read_table(path)
    for wrong in (table.slice(1), table.slice(0, 100), table.take([0, *range(len(table))])):
        parquet.write_table(wrong, path)
        with pytest.raises(FormatError, match=r"x\.idx\.parquet: .*\btokpack_document\b"):
            run(path, tmp_path / "no")


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=40), room=st.integers(30, 50))
def test_best_fit(sizes: list[int], room: int) -> None:
    """As full as the plain one, which looks at every row for every document."""
    found = best_fit(np.array(sizes, np.int64), room)
    assert sorted(number for row in found for number in row) == list(range(len(sizes)))
    fills = sorted(sum(sizes[number] for number in row) for row in found)
    pieces = [(number, 0, size) for number, size in enumerate(sizes)]
    plainly = best_fit_plainly(sorted(pieces, key=lambda piece: -piece[2]), room)
    assert fills == sorted(sum(size for *_, size in row) for row in plainly)


def test_hugging_face_reads_and_writes_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    chats = [CHAT, ([8, EOD], [1, 0])]
    write_chats(tmp_path / "all", chats)
    run(tmp_path / "all", tmp_path / "x", to="arrow")
    loaded = datasets.load_from_disk(str(tmp_path / "x"))
    columns = {
        "input_ids": [ids for ids, _ in chats],
        "attention_mask": [[1] * len(ids) for ids, _ in chats],
        "labels": [labels_of(chat) for chat in chats],
    }
    assert loaded.to_dict() == columns
    texts = datasets.Dataset.from_dict({"text": ["a", "b"]})
    own = texts.map(lambda _: columns, batched=True, remove_columns=["text"])
    assert own.features == loaded.features  # so that both can be joined
    for number, masked in enumerate(
        (
            {"completion_mask": [mask for _, mask in chats]},
            {"assistant_masks": [[0, 1, 1, 1], [1, 0]], "completion_mask": [[1, 0, 1, 1], [1, 0]]},
            {"labels": columns["labels"]},
        )
    ):
        rows = datasets.Dataset.from_dict({"input_ids": columns["input_ids"], **masked})
        path = tmp_path / f"own{number}"
        rows.save_to_disk(path, num_shards=2)
        run(path, tmp_path / "back", overwrite=True)
        same(tmp_path / "back", tmp_path / "all")
        assert mask_of(tmp_path / "back") == [mask for _, mask in chats]
    run(tmp_path / "own0" / "data-00000-of-00002.arrow", tmp_path / "one")
    assert rows_of(tmp_path / "one") == [CHAT[0]]


def test_padding_is_left_out(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(
        {
            "input_ids": [[5, 6, 0, 0], [0, 7], []],
            "attention_mask": [[1, 1, 0, 0], [0, 1], []],
            "labels": [[-100, 6, -100, -100], [-100, 7], []],
        }
    )
    arrow.parquet.write_table(table, tmp_path / "x.parquet")
    run(tmp_path / "x.parquet", tmp_path / "out")
    assert rows_of(tmp_path / "out") == [[5, 6], [7], []]
    assert mask_of(tmp_path / "out") == [[0, 1], [1], []]


def test_parts_of_open_instruct(tmp_path: Path) -> None:
    """A document that two parts have is one again; that of one part alone is what it is."""
    ids = [[1, 2, 0, 3, 4], [5, 0], [6, 7, 0]]
    masks = [[0, 1, 1, 0, 1], [1, 1], [0, 0, 1]]
    lines = ["0,3\n3,5\n", "0,2\n", "0,3\n"]
    for number in range(3):
        name = f"part_{number:04d}"
        np.array(ids[number], "<u4").tofile(tmp_path / f"token_ids_{name}.npy")
        np.array(masks[number], np.bool_).tofile(tmp_path / f"labels_mask_{name}.npy")
        packed = gzip.compress(lines[number].encode())
        (tmp_path / f"token_ids_{name}.csv.gz").write_bytes(packed)
    assert detect(str(tmp_path)) == "olmo"
    with pytest.raises(UsageError, match=r"\b3 parts\b.*\beod\b"):
        run(tmp_path, tmp_path / "no")
    run(tmp_path, tmp_path / "out", eod=0)
    assert rows_of(tmp_path / "out") == [[1, 2, 0], [3, 4, 5, 0], [6, 7, 0]]
    assert mask_of(tmp_path / "out") == [[0, 1, 1], [0, 1, 1, 1], [0, 0, 1]]
    run(tmp_path / "token_ids_part_0001.npy", tmp_path / "one", from_="olmo")
    assert (rows_of(tmp_path / "one"), mask_of(tmp_path / "one")) == ([[5, 0]], [[1, 1]])
    run(tmp_path / "out", tmp_path / "o" / "token_ids_part_0000.npy", to="olmo", eod=0)
    written = np.fromfile(tmp_path / "o" / "labels_mask_part_0000.npy", np.bool_)
    assert written.tolist() == [bool(one) for mask in masks for one in mask]


def test_labels_that_are_not_the_token(tmp_path: Path) -> None:
    """They are kept as labels; what holds only a mask keeps which of them count."""
    labels = [[-100, 9, 7, -1]]
    write_lists(tmp_path / "x_document", [CHAT[0]])
    write_lists(tmp_path / "x_label_document", labels)
    run(tmp_path / "x", tmp_path / "out")
    assert list(MMapIndexedDataset(tmp_path / "out").tracks) == ["labels"]
    assert MMapIndexedDataset(tmp_path / "out").track("labels")[0].tolist() == labels[0]
    run(tmp_path / "out", tmp_path / "y", to="neox")
    same(tmp_path / "y_label_document", tmp_path / "x_label_document")
    made = run(tmp_path / "out", tmp_path / "x.ds")
    assert made.notes == ["only which labels count is kept: datatrove holds a mask"]
    assert (tmp_path / "x.ds.loss").read_bytes() == bytes([0, 1, 1, 0])


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    write_chats(tmp_path / "all", [CHAT], weights=[[0, 0.5, 1, 2]])
    for target, name, lost in (
        ("neox", "a", ["weights"]),
        ("datatrove", "a.ds", ["weights"]),
        ("npy", "a.npy", ["mask", "weights"]),
    ):
        notes = run(tmp_path / "all", tmp_path / name, to=target).notes
        said = [f"{one} of tokens is left out: {target} has no place for it" for one in lost]
        assert [note for note in notes if "left out" in note] == said
    run(tmp_path / "all", tmp_path / "narrow", dtype="uint16")
    opened = MMapIndexedDataset(tmp_path / "narrow")
    assert mask_of(tmp_path / "narrow") == [CHAT[1]]
    assert opened.track("weights")[0].tolist() == [0, 0.5, 1, 2]
    pytest.importorskip("pyarrow")
    write_chats(tmp_path / "first", [([3, 4], [1, 1]), ([], []), ([5], [0])])
    made = run(tmp_path / "first", tmp_path / "x.idx.parquet")
    assert made.notes == [
        "1 documents without ids are left out",
        "1 documents begin with a trained token, which Megatron-Bridge never predicts",
    ]
    with pytest.raises(UsageError, match=r"document 0 has 4 .*\b1 .*\bseq_length\b"):
        run(tmp_path / "all", tmp_path / "no.idx.parquet", seq_length=1)
    with pytest.raises(UsageError, match=r"NAME\.idx\.parquet"):
        run(tmp_path / "all", tmp_path / "no.parquet", to="bridge")
    with pytest.raises(UsageError, match=r"^seq_length .*\bbridge\b"):
        run(tmp_path / "all", tmp_path / "no", to="neox", seq_length=5)
    assert not list(tmp_path.glob("no*"))


def test_a_dataset_without_a_mask(tmp_path: Path) -> None:
    """All of its tokens count: GPT-NeoX gets them as labels, the others no mask."""
    write_lists(tmp_path / "all", [[1, 2, EOD], [EOD]])
    run(tmp_path / "all", tmp_path / "x", to="neox")
    assert documents_of(tmp_path / "x_label_document") == documents_of(tmp_path / "all")
    run(tmp_path / "all", tmp_path / "x.ds")
    assert not (tmp_path / "x.ds.loss").exists()
    write_lists(tmp_path / "x_reward_document", [[1], [-1]])
    (note,) = run(tmp_path / "x", tmp_path / "back").notes
    assert "x_reward_document is left out" in note
    assert mask_of(tmp_path / "back") == [[1, 1, 1], [1]]


def test_the_command(tmp_path: Path) -> None:
    write_chats(tmp_path / "chats", [CHAT])
    done = tokpack("convert", "chats", "n", "--to", "neox", "--json", cwd=tmp_path)
    made: dict[str, Any] = json.loads(done.stdout)
    assert made["paths"] == [
        "n_document.bin",
        "n_document.idx",
        "n_label_document.bin",
        "n_label_document.idx",
    ]
    done = tokpack("convert", "n_document", "back", cwd=tmp_path)
    assert done.stdout.split() == ["back.bin", "back.idx", "back.mask", "back.json"]
    assert tokpack("verify", "back", cwd=tmp_path).returncode == 0
