"""The bytes of .bin/.idx: golden files, broken files, and an independent twin."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indexed_twin import CODES, NAMES, Plain, pack_index, read_plainly, write_plainly
from support.optional import SHARED
from support.places import GOLDEN

from tokpack.dataset import MMapIndexedDataset, best_fitting_dtype, index_chunks
from tokpack.dataset import format as binary_format
from tokpack.dataset.format import LengthSums
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = json.loads((GOLDEN / "v1" / "expected.json").read_text())
BROKEN = sorted(path.stem for path in (GOLDEN / "broken").glob("*.idx"))
REAL = [
    *("megatron/ag_news_prompt_inputs_document", "megatron/ag_news_prompt_targets_document"),
    *("megatron/meg-gpt2-openwebtext_text_document",),
    *("index/edge", "index/eod", "index/long", "index/short"),
]
BASE = Plain("H", [[1, 2, 3], [4], [5, 6]], [0, 2, 3])


@pytest.mark.promises
@pytest.mark.parametrize("name", EXPECTED)
def test_golden_datasets_stay_readable(name: str) -> None:
    dataset = MMapIndexedDataset(GOLDEN / "v1" / name, verify=True)
    expected = EXPECTED[name]
    assert str(dataset.dtype) == expected["dtype"]
    assert [sequence.tolist() for sequence in dataset] == expected["sequences"]
    assert dataset.doc_idx.tolist() == expected["doc_idx"]
    assert dataset.sizes.tolist() == [len(sequence) for sequence in expected["sequences"]]


def test_broken_datasets_are_all_here() -> None:
    assert len(BROKEN) == len(list((GOLDEN / "broken").glob("*.error"))) > 30


@pytest.mark.parametrize("name", BROKEN)
def test_broken_datasets_are_refused_with_their_message(name: str) -> None:
    folder = GOLDEN / "broken"
    with pytest.raises(FormatError) as caught:
        MMapIndexedDataset(folder / name, verify=True)
    message = str(caught.value).replace(f"{folder}/", "")
    assert message == (folder / f"{name}.error").read_text().rstrip("\n")


@pytest.mark.parametrize("name", [name for name in BROKEN if not name.startswith("inner-")])
def test_what_the_ends_show_is_refused_at_opening(name: str) -> None:
    with pytest.raises(FormatError):
        MMapIndexedDataset(GOLDEN / "broken" / name)


@pytest.mark.parametrize("name", ["inner-pointer", "inner-length", "inner-length-huge"])
def test_a_broken_entry_inside_is_refused_at_its_access(name: str) -> None:
    dataset = MMapIndexedDataset(GOLDEN / "broken" / name)
    assert [dataset[number].tolist() for number in (0, 3, -1)] == [[1, 2, 3], [7], [8]]
    for access in (
        lambda: dataset[2],
        lambda: dataset[2:],
        lambda: list(dataset)[2],
        lambda: dataset.get(2, 0, 1),
    ):
        with pytest.raises(FormatError, match=r"sequence [12]"):
            access()


def test_a_length_that_ends_with_the_file_is_broken_all_the_same(tmp_path: Path) -> None:
    idx, data = pack_index(BASE), struct.pack("<6H", 1, 2, 3, 4, 5, 6)
    (tmp_path / "x.idx").write_bytes(idx[:38] + struct.pack("<i", 3) + idx[42:])
    (tmp_path / "x.bin").write_bytes(data)
    dataset = MMapIndexedDataset(tmp_path / "x")
    with pytest.raises(FormatError, match=r"sequence 1 .* byte 12, .* 8$"):
        dataset[1]


def test_lengths_beyond_the_file_are_found_before_they_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary_format, "_CHUNK", 2)
    idx = pack_index(BASE)
    lengths, pointers = (3, 2**31 - 1, 2), (0, 6, 8)
    (tmp_path / "x.idx").write_bytes(
        idx[:34] + struct.pack("<3i3q", *lengths, *pointers) + idx[70:]
    )
    (tmp_path / "x.bin").write_bytes(bytes(12))
    with pytest.raises(FormatError, match=r"x\.idx: byte 54: sequence 1 .*\b4294967300, .*\b12,"):
        MMapIndexedDataset(tmp_path / "x", verify=True)


@given(st.lists(st.integers(0, 9), max_size=14), st.data())
def test_sums_of_lengths_in_steps(lengths: list[int], data: st.DataObject) -> None:
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binary_format, "STEP", 4)
        sums = LengthSums.of(np.array(lengths, np.int32), lambda chunk: seen.extend(chunk.tolist()))
        begin = data.draw(st.integers(0, len(lengths)))
        end = data.draw(st.integers(0, len(lengths)))
        assert sums.total(begin, end) == sum(lengths[begin:end])
        tokens = data.draw(st.integers(0, sum(lengths) + 1))
        fitting = [n for n in range(len(lengths) + 1) if sum(lengths[:n]) <= tokens]
        assert sums.ending_within(tokens) == fitting[-1]
    assert seen == lengths


@pytest.mark.parametrize("name", REAL if SHARED.is_dir() else REAL[-4:])
def test_real_datasets_are_read_and_rewritten_to_the_byte(
    name: str, data: Path, tmp_path: Path
) -> None:
    dataset = MMapIndexedDataset(data / name, verify=True)
    plain = read_plainly(data / name)
    assert str(dataset.dtype) == NAMES[plain.letter]
    assert [sequence.tolist() for sequence in dataset] == plain.sequences
    assert dataset.doc_idx.tolist() == plain.doc_idx
    again = index_chunks(dataset.dtype, dataset.sizes, dataset.doc_idx)
    assert b"".join(again) == (data / f"{name}.idx").read_bytes()


def _refused_or_right(folder: Path, idx: bytes, data: bytes) -> None:
    """The dataset is refused, or all that it gives is what the twin reads."""
    (folder / "x.idx").write_bytes(idx)
    (folder / "x.bin").write_bytes(data)
    try:
        dataset = MMapIndexedDataset(folder / "x")
    except FormatError:
        return
    letter = {code: letter for letter, code in CODES.items()}[idx[17]]
    for number in range(len(dataset)):
        try:
            found = dataset[number].tolist()
        except FormatError:
            continue
        (length,) = struct.unpack_from("<i", idx, 34 + 4 * number)
        (pointer,) = struct.unpack_from("<q", idx, 34 + 4 * len(dataset) + 8 * number)
        assert found == list(struct.unpack_from(f"<{length}{letter}", data, pointer))
    try:
        dataset.validate()
    except FormatError:
        return
    plain = read_plainly(folder / "x")
    assert pack_index(plain) == idx[: len(pack_index(plain))]


DATA = struct.pack("<6H", 1, 2, 3, 4, 5, 6)
FIELDS = [(9, "<Q"), (17, "<B"), (18, "<Q"), (26, "<Q")]
EXTREMES = [0, 1, 2, 4, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
EXTREMES += [2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1, (2**64 - 34) // 12, (2**64 + 12) // 12]


@pytest.mark.parametrize(("at", "layout"), FIELDS)
def test_every_header_field_at_its_extremes(at: int, layout: str, tmp_path: Path) -> None:
    whole = pack_index(BASE)
    for value in EXTREMES:
        if value < 2 ** (8 * struct.calcsize(layout)):
            broken = bytearray(whole)
            struct.pack_into(layout, broken, at, value)
            if broken != whole:
                _refused_or_right(tmp_path, bytes(broken), DATA)


def test_every_array_entry_at_its_extremes(tmp_path: Path) -> None:
    whole = pack_index(BASE)
    for at in range(34, len(whole), 4):
        for value in (-(2**31), -1, 0, 1, 2**31 - 1):
            broken = bytearray(whole)
            struct.pack_into("<i", broken, at, value)
            _refused_or_right(tmp_path, bytes(broken), DATA)


@pytest.mark.promises
def test_every_truncation_is_refused_or_right(tmp_path: Path) -> None:
    whole = pack_index(BASE)
    (tmp_path / "x.bin").write_bytes(DATA)
    for size in range(len(whole)):
        (tmp_path / "x.idx").write_bytes(whole[:size])
        with pytest.raises(FormatError):
            MMapIndexedDataset(tmp_path / "x")
    (tmp_path / "x.idx").write_bytes(whole)
    for size in [*range(len(DATA)), *range(len(DATA) + 1, 2 * len(DATA))]:
        (tmp_path / "x.bin").write_bytes((2 * DATA)[:size])
        with pytest.raises(FormatError):
            MMapIndexedDataset(tmp_path / "x")


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(pack_index(BASE)) - 1),
    patch=st.binary(min_size=1, max_size=12),
    size=st.integers(-8, 8),
)
def test_no_patched_index_gives_wrong_tokens(
    at: int, patch: bytes, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "patched"
    folder.mkdir(exist_ok=True)
    broken = bytearray(pack_index(BASE))
    broken[at : at + len(patch)] = patch
    whole = bytes(broken) + bytes(max(size, 0))
    _refused_or_right(folder, whole[: len(whole) + min(size, 0)], DATA)


SEQUENCES = st.lists(st.lists(st.integers(0, 127), max_size=5), max_size=12)


@pytest.mark.promises
@settings(max_examples=60, deadline=None)
@given(
    sequences=SEQUENCES,
    cuts=st.lists(st.integers(0, 12), max_size=6),
    letter=st.sampled_from(sorted(NAMES)),
)
def test_an_index_has_the_bytes_of_the_twin(
    sequences: list[list[int]],
    cuts: list[int],
    letter: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    prefix = tmp_path_factory.getbasetemp() / "twin"
    count = len(sequences)
    plain = Plain(letter, sequences, [0, *sorted(min(cut, count) for cut in cuts), count])
    write_plainly(prefix, plain)
    dataset = MMapIndexedDataset(prefix, verify=True)
    assert [sequence.tolist() for sequence in dataset] == sequences
    again = index_chunks(NAMES[letter], dataset.sizes, np.array(plain.doc_idx))
    assert b"".join(again) == pack_index(plain)


def test_chunks_join_without_a_seam(tmp_path: Path) -> None:
    """More entries than one chunk holds: pointers, and the check of them, go on across chunks."""
    lengths = np.arange(600_000, dtype=np.int32) % 5
    doc_idx = np.arange(len(lengths) + 1, dtype=np.int64)
    (tmp_path / "x.idx").write_bytes(b"".join(index_chunks(np.int32, lengths, doc_idx)))
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(4 * int(lengths.sum()))
    whole = (tmp_path / "x.idx").read_bytes()
    pointers_at = 34 + 4 * len(lengths)
    pointers = np.frombuffer(whole, "<i8", len(lengths), pointers_at)
    assert np.array_equal(pointers[1:], np.cumsum(lengths[:-1], dtype=np.int64) * 4)
    assert np.array_equal(np.frombuffer(whole, "<i8", -1, 34 + 12 * len(lengths)), doc_idx)
    MMapIndexedDataset(tmp_path / "x", verify=True)
    for field, at in [("sequence", pointers_at), ("document entry", 34 + 12 * len(lengths))]:
        for number in (1, 262_143, 262_144, 524_288, len(lengths) - 1):
            broken = bytearray(whole)
            broken[at + 8 * number + 7] = 0x80
            (tmp_path / "x.idx").write_bytes(broken)
            with pytest.raises(FormatError, match=rf"{field} ({number - 1}|{number}) "):
                MMapIndexedDataset(tmp_path / "x", verify=True)


def test_pointers_beyond_32_bits(tmp_path: Path) -> None:
    lengths = np.full(3, 2**31 - 1, np.int32)
    (tmp_path / "x.idx").write_bytes(b"".join(index_chunks(np.int64, lengths, np.array([0, 3]))))
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(3 * (2**31 - 1) * 8)  # sparse
        file.seek(2 * (2**31 - 1) * 8)
        file.write(struct.pack("<2q", 5, 6))
    dataset = MMapIndexedDataset(tmp_path / "x", verify=True)
    assert dataset.get(2, 0, 3).tolist() == [5, 6, 0]
    assert dataset.get(2, 2**31 - 2).tolist() == [0]


def test_best_fitting_dtype_is_megatrons() -> None:
    assert best_fitting_dtype(50257) == best_fitting_dtype(65499) == np.uint16
    assert best_fitting_dtype(65500) == best_fitting_dtype(None) == np.int32
