"""Multimodal datasets of Megatron: the mode of each sequence is read, kept, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.indexed_twin import Plain, pack_index, write_plainly
from support.places import GOLDEN

import tokpack
from tokpack import MMapIndexedDataset
from tokpack.errors import FormatError, UsageError
from tokpack.formats.export import EXPORTS

MODES = [3, 0, -1, 127, 0, 1, 2]
PLAIN = Plain("i", [[1, 2], [], [3], [4, 5], [6], [7], [8, 9]], [0, 2, 2, 3, 5, 7])


@pytest.fixture
def multimodal(tmp_path: Path) -> Path:
    write_plainly(tmp_path / "m", PLAIN)
    idx = tmp_path / "m.idx"
    idx.write_bytes(idx.read_bytes() + np.array(MODES, np.int8).tobytes())
    return tmp_path / "m"


def modes_of(prefix: Path) -> list[int]:
    with MMapIndexedDataset(prefix, verify=True) as dataset:
        assert dataset.modes is not None
        assert (dataset.modes.dtype, dataset.modes.flags.writeable) == (np.int8, False)
        return dataset.modes.tolist()


def test_modes_are_read(multimodal: Path, tmp_path: Path) -> None:
    assert modes_of(multimodal) == MODES
    assert MMapIndexedDataset(GOLDEN / "v1" / "multimodal").modes is not None
    assert MMapIndexedDataset(GOLDEN / "v1" / "int32").modes is None
    idx = Path(f"{multimodal}.idx")
    for wrong in (idx.read_bytes()[:-1], idx.read_bytes() + b"\0"):
        idx.write_bytes(wrong)
        with pytest.raises(FormatError, match=r"m\.idx"):
            MMapIndexedDataset(multimodal)


def test_merge_and_split_keep_them(multimodal: Path, tmp_path: Path) -> None:
    """The bytes of the .idx are those that Megatron's own builder would write."""
    tokpack.merge([multimodal], tmp_path / "one")
    assert Path(f"{tmp_path}/one.idx").read_bytes() == Path(f"{multimodal}.idx").read_bytes()
    tokpack.merge([multimodal, multimodal], tmp_path / "virtual", virtual=True)
    tokpack.merge([tmp_path / "virtual", multimodal], tmp_path / "three")
    assert modes_of(tmp_path / "virtual") == MODES * 2
    assert modes_of(tmp_path / "three") == MODES * 3
    for name, times in (("m", 1), ("virtual", 2)):
        parts = tokpack.split(tmp_path / name, tmp_path / f"{name}-part", documents=3)
        modes = [mode for prefix, _ in parts for mode in modes_of(Path(prefix))]
        assert modes == MODES * times


def test_a_part_without_sequences_goes_with_any(multimodal: Path, tmp_path: Path) -> None:
    write_plainly(tmp_path / "empty", Plain("i", [], [0, 0]))
    tokpack.merge([tmp_path / "empty", multimodal], tmp_path / "both")
    assert modes_of(tmp_path / "both") == MODES


def test_convert_keeps_them_or_refuses(multimodal: Path, tmp_path: Path) -> None:
    tokpack.convert(multimodal, tmp_path / "small", dtype="uint8")
    expected = pack_index(PLAIN._replace(letter="B")) + np.array(MODES, np.int8).tobytes()
    assert Path(f"{tmp_path}/small.idx").read_bytes() == expected
    for target in EXPORTS:
        with pytest.raises(UsageError, match=target):
            tokpack.convert(multimodal, tmp_path / "x", to=target)
