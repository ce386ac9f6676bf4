"""Folders of MosaicML's streaming and of litdata become datasets; see messages.txt too."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.converting import run
from support.places import GOLDEN
from support.streamed_twin import TORCH, write_litdata, write_mds

from tokpack import MMapIndexedDataset
from tokpack.errors import InputError, TokpackError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

STREAMED = GOLDEN / "streamed"
DOCUMENTS: list[list[int]] = json.loads((STREAMED / "documents.json").read_text())
FOLDERS = sorted(path.name for path in STREAMED.iterdir() if path.is_dir())


def documents(prefix: Path) -> list[list[int]]:
    return [ids.tolist() for ids in MMapIndexedDataset(prefix, verify=True)]


def options(folder: str) -> dict[str, Any]:
    return {"input_dtype": "int64"} if "bytes" in folder else {}


def test_all_are_here() -> None:
    assert len(FOLDERS) == 8


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_the_libraries_wrote(folder: str, tmp_path: Path) -> None:
    made = run(STREAMED / folder, tmp_path / "samples", **options(folder))
    cut = run(STREAMED / folder, tmp_path / "cut", eod=0, **options(folder))
    if "blocks" not in folder:
        assert documents(tmp_path / "samples") == documents(tmp_path / "cut") == DOCUMENTS
        assert not made.notes
        return
    flat = [token for one in DOCUMENTS for token in one]
    flat = flat[: len(flat) // 8 * 8]
    assert documents(tmp_path / "samples") == np.reshape(flat, (-1, 8)).tolist()
    assert "blocks of documents" in made.notes[0]
    found = documents(tmp_path / "cut")
    assert [token for one in found for token in one] == flat
    assert found[:-1] == DOCUMENTS[: len(found) - 1]
    assert not cut.notes


def test_the_type_of_bytes_has_to_be_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="input_dtype='int64'"):
        run(STREAMED / "mds-bytes-zstd", tmp_path / "x")
    assert not list(tmp_path.iterdir())


def cut_at(eod: int, shards: list[list[list[int]]]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token in (token for documents in shards for ids in documents for token in ids):
        found[-1].append(token)
        if token == eod:
            found.append([])
    return [ids for ids in found if ids]


DOCUMENT = st.lists(st.integers(0, 127), max_size=300)
SHARDS = st.lists(st.lists(DOCUMENT, max_size=4), min_size=1, max_size=4)
WRITING = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(list(TORCH)),
        "encoding": st.sampled_from(["ndarray", "ndarray:{}", "bytes"]),
        "compression": st.sampled_from(["", "zstd", "gz", "bz2"]),
        "hashed": st.booleans(),
    }
)


@given(SHARDS, WRITING)
def test_made_up_folders(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[list[int]]],
    writing: dict[str, Any],
) -> None:
    folder = tmp_path_factory.mktemp("made-up")
    dtype, compression = writing["dtype"], writing["compression"]
    writing["encoding"] = writing["encoding"].format(dtype)
    write_mds(folder / "mds", shards, **writing)
    write_litdata(folder / "litdata", shards, dtype, compression=compression)
    expected = [ids for documents in shards for ids in documents]
    for name, more in (("mds", {"input_dtype": dtype}), ("litdata", {})):
        source, out = folder / name, folder / f"{name}-out"
        if not expected:
            with pytest.raises(TokpackError, match=r"index\.json"):
                run(source, out, **more)
            continue
        run(source, out, **more)
        assert documents(out) == expected
        eod = max((token for ids in expected for token in ids), default=None)
        if eod is not None:
            run(source, out, eod=eod, overwrite=True, **more)
            assert documents(out) == cut_at(eod, shards)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("compression", "known"), [("zstd", "zst"), ("gz", "gz"), ("bz2", "bz2")])
@pytest.mark.parametrize("library", ["mds", "litdata"])
def test_damaged_compression_is_told_as_of_any_input(
    library: str, compression: str, known: str, tmp_path: Path
) -> None:
    folder, shards = tmp_path / library, [[list(range(200)) for _ in range(50)]]
    if library == "mds":
        write_mds(folder, shards, "int32", "ndarray", compression=compression)
    else:
        write_litdata(folder, shards, "int32", compression=compression)
    (path,) = (path for path in folder.iterdir() if path.name != "index.json")
    index, whole = folder / "index.json", path.read_bytes()
    told = index.read_text()

    def refused(content: bytes) -> str:
        path.write_bytes(content)
        # Else the size of the file in the index would tell it first.
        index.write_text(told.replace(f'"bytes": {len(whole)}', f'"bytes": {len(content)}'))
        with pytest.raises(InputError) as error:
            run(folder, tmp_path / "out")
        assert not list(tmp_path.glob("out*"))
        return str(error.value)

    at = f"{path}: the {known} stream is"
    assert refused(whole[: len(whole) // 2]).startswith(f"{at} cut off after ")
    assert refused(b"no stream of it").startswith(f"{at} corrupt after 0 decompressed bytes (")


def test_blocks_of_one_shape(tmp_path: Path) -> None:
    blocks = [[[1, 2, 3, 0], [4, 0, 5, 6]], [[7, 0, 8, 9]]]
    write_mds(tmp_path / "m", blocks, "uint16", "ndarray:uint16:4")
    run(tmp_path / "m", tmp_path / "samples")
    assert documents(tmp_path / "samples") == blocks[0] + blocks[1]
    run(tmp_path / "m", tmp_path / "cut", eod=0)  # documents cross shards
    assert documents(tmp_path / "cut") == [[1, 2, 3, 0], [4, 0], [5, 6, 7, 0], [8, 9]]


@pytest.mark.parametrize("folder", FOLDERS)
def test_broken_bytes_are_refused_or_change_nothing_else(folder: str, tmp_path: Path) -> None:
    """Files with a byte changed, cut off, longer or missing: an error of ours, never another."""
    chance = random.Random(folder)
    for number in range(150):
        broken = tmp_path / str(number)
        shutil.copytree(STREAMED / folder, broken)
        path = chance.choice(sorted(broken.iterdir()))
        content = bytearray(path.read_bytes())
        at = chance.randrange(len(content))
        kind = chance.choice(["byte", "byte", "byte", "cut", "more", "gone"])
        if kind == "byte":
            content[at] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del content[at:]
        elif kind == "more":
            content += b"\0" * 4
        path.write_bytes(content)
        if kind == "gone":
            path.unlink()
        out = tmp_path / f"out{number}"
        try:
            run(broken, out, **options(folder))
        except TokpackError as error:
            said = str(error)
        else:
            said = ""
        # Only the value of an id may pass that no hash vouches for, or a word that nobody asks.
        is_hashed = folder == "mds-int32" and path.suffix == ".mds"
        assert said or (kind == "byte" and not is_hashed)
        assert bool(said) == (not list(tmp_path.glob(f"out{number}.*")))
        assert not said or str(broken) in said
        shutil.rmtree(broken)
