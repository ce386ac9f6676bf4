"""Datasets in several .bin files: the same documents, whole or not there, whatever happens."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.encoding_tools import dataset, documents, twin, write_jsonl
from support.small_parts import in_small_parts
from support.stopped_runs import PART_BYTES

import tokpack
from tokpack.dataset import Origins
from tokpack.encoding import plan, publish
from tokpack.encoding.options import EncodeOptions
from tokpack.encoding.plan import divided, file_count
from tokpack.encoding.publish import is_piece_name, piece_names
from tokpack.sources import Part, Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.stopped_runs import Place


def names(place: Place) -> set[str]:
    """What there is of the output."""
    return {path.name for path in place.folder.glob("out*")}


def files_of(count: int, kinds: Sequence[str] = ("bin", "idx", "json")) -> set[str]:
    """The names of a dataset in so many files."""
    pieces = [f"out-{n:05d}-of-{count:05d}" for n in range(count)]
    return {"out.json", *(f"{piece}.{kind}" for piece in pieces for kind in kinds)}


def joined(place: Place) -> tuple[bytes, bytes]:
    """What ``merge`` makes of the dataset, which it compares with all checksums."""
    with in_small_parts(PART_BYTES):
        tokpack.verify(str(place.output))
        tokpack.merge(str(place.output), place.folder / "merged", overwrite=True)
    return dataset(place.folder / "merged")


@pytest.mark.promises
def test_the_files_depend_on_nothing_but_their_number(place: Place) -> None:
    """Not on the workers; and the dataset is the same as in one file, also to samples."""
    expected = twin(place.tokenizer, place.texts)
    place.encode()
    one = tokpack.MMapIndexedDataset(place.output)
    fingerprint, manifest = one.fingerprint, one.manifest
    place.encode(files=3, workers=1, overwrite=True)
    assert names(place) == files_of(3)
    kept = {
        name: (place.folder / name).read_bytes() for name in names(place) if ".json" not in name
    }
    assert joined(place) == expected
    sizes = [len(content) for name, content in kept.items() if name.endswith(".bin")]
    assert max(sizes) < 1.5 * min(sizes)
    several = tokpack.MMapIndexedDataset(place.output)
    assert manifest
    assert several.manifest
    assert several.fingerprint == fingerprint
    assert several.manifest.records == manifest.records == len(place.texts)
    assert several.manifest.inputs == manifest.inputs
    for workers in (2, 5):
        place.encode(files=3, workers=workers, overwrite=True)
        assert {name: (place.folder / name).read_bytes() for name in kept} == kept


def test_a_finished_one_is_found(place: Place) -> None:
    made = place.encode(files=3)
    assert place.encode(files=3) == place.encode() == made
    with pytest.raises(tokpack.OutputError, match=r"\b3 \.bin .*\b1\)"):
        place.encode(files=1)
    (place.folder / "out-00001-of-00003.bin").unlink()
    with pytest.raises(tokpack.OutputError):
        place.encode(files=3)
    place.encode(files=1, overwrite=True)
    assert names(place) == {"out.bin", "out.idx", "out.json"}
    assert dataset(place.output) == twin(place.tokenizer, place.texts)


def test_resumed_with_another_number(place: Place) -> None:
    """The number of the run that began stays, unless another one is asked for by itself."""
    place.stop_at_part(4, files=3)
    with pytest.raises(tokpack.ResumeError, match=r"\b3 \.bin .*\b2\."):
        place.encode(files=2)
    place.encode(workers=2)
    assert names(place) == files_of(3)
    assert joined(place) == twin(place.tokenizer, place.texts)


def test_all_that_a_run_makes(tmp_path: Path, bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys, bad records, empty ones and a trace, over inputs that the files cut."""
    monkeypatch.setattr(plan, "MIN_PART_BYTES", 1)
    cut = plan.make_parts
    monkeypatch.setattr(plan, "make_parts", lambda *a, **k: cut(*a, **k, smallest_bytes=3000))
    paths = []
    for number in range(4):
        path = write_jsonl(
            tmp_path / f"{number}.jsonl", documents(80, words=30, seed=number), title="a b"
        )
        rows = path.read_text().splitlines(keepends=True)
        rows[10:10] = ["cut off\n", "\n"]
        path.write_text("".join(rows))
        paths.append(str(path))
    options: dict[str, Any] = {
        "tokenizer": str(bpe),
        "keys": ["title", "text"],
        "on_error": "skip",
        "trace": True,
    }
    one = tokpack.encode(paths, tmp_path / "one", **options)
    several = tokpack.encode(paths, tmp_path / "several", files=3, workers=2, **options)
    for key in ("title", "text"):
        made = several[key]
        assert len(made.pieces) == 3
        assert made.inputs == one[key].inputs
        assert (made.records, made.empty, made.rejected) == (one[key].records, one[key].empty, 4)
        tokpack.merge(tmp_path / f"several_{key}", tmp_path / f"merged_{key}")
        assert dataset(tmp_path / f"merged_{key}") == dataset(tmp_path / f"one_{key}")
        origins = [list(Origins(tmp_path / f"{name}_{key}")) for name in ("one", "several")]
        assert origins[0] == origins[1]
    rejects = [(tmp_path / f"{name}.rejects.jsonl").read_bytes() for name in ("one", "several")]
    assert rejects[0] == rejects[1]


def test_inputs_that_are_fewer_than_files(tmp_path: Path, bpe: Path) -> None:
    """A stream lies in one file, and so does what an iterable gives."""
    texts = documents(30)
    paths = [str(write_jsonl(tmp_path / f"{name}.jsonl", texts[:15])) for name in "ab"]
    made = tokpack.encode(paths, tmp_path / "out", tokenizer=str(bpe), files=9)
    assert made.pieces is None
    made = tokpack.encode(iter(texts), tmp_path / "iterable", tokenizer=str(bpe), files=9)
    assert made.pieces is None
    assert dataset(tmp_path / "iterable") == twin(bpe, texts)


def test_how_many_files() -> None:
    """One up to 20 workers, and where there is not much text; in Megatron's names always one."""

    def count(workers: int, gigabytes: int, **more: Any) -> int:
        source = Source("a", "a", "jsonl", "", gigabytes << 30, 0)
        return file_count(EncodeOptions(("a",), "out", **more), [source], workers)

    assert [count(workers, 1000) for workers in (1, 20, 21, 64, 192)] == [1, 1, 2, 4, 10]
    assert [count(64, size) for size in (1, 31, 32, 48)] == [1, 1, 2, 3]
    assert count(192, 1000, files=1) == 1
    assert count(1, 0, files=7) == 7


@given(weights=st.lists(st.integers(1, 100), min_size=1, max_size=40), count=st.integers(1, 50))
def test_parts_are_divided_evenly(weights: list[int], count: int) -> None:
    parts = [Part(number, "whole", 0, 0, weight) for number, weight in enumerate(weights)]
    starts = divided(parts, count)
    assert len(starts) == min(count, len(parts))
    assert starts[0] == 0
    assert list(starts) == sorted(set(starts))
    if all(weight == weights[0] for weight in weights):
        sizes = [b - a for a, b in zip(starts, [*starts[1:], len(parts)], strict=True)]
        assert max(sizes) - min(sizes) <= 1


def test_names_of_files_of_a_dataset() -> None:
    assert not any(map(is_piece_name, ("out", "out-1-of-2", "tou-00000-of-00002"), ["out"] * 3))
    assert all(is_piece_name(name, "out") for name in piece_names("out", 2))


def test_manifests_of_a_replaced_dataset_go_before_its_data(tmp_path: Path) -> None:
    """So none of them tells of what is gone; what came since stays, and what is renamed over."""
    options: Any = SimpleNamespace(
        output=f"{tmp_path}/out", output_names={"text": f"{tmp_path}/out"}
    )
    names = [f"out-0000{n}-of-00002.{end}" for n in range(2) for end in ("bin", "idx", "json")]
    for name in names:
        (tmp_path / name).touch()
    versions = {name: publish._identity(f"{tmp_path}/{name}") for name in names}
    (tmp_path / names[0]).write_text("another by now")
    paths = publish._stale(options, versions, [f"{tmp_path}/{names[3]}"])
    stale = [os.path.basename(path) for path in paths]
    assert stale == [*names[1:3], *names[4:], "out.rejects.jsonl"]


@pytest.mark.parametrize("end", ["bin", "idx", "json"])
def test_each_file_that_is_there_stays(tmp_path: Path, bpe: Path, end: str) -> None:
    mine = tmp_path / f"out.{end}"
    mine.write_text("mine")
    write_jsonl(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(tokpack.OutputError, match=rf"out\.{end}:? exists"):
        tokpack.encode(tmp_path / "a.jsonl", tmp_path / "out", tokenizer=bpe, workers=1)
    assert mine.read_text() == "mine"


def test_lists_of_inputs_are_inputs_too(tmp_path: Path, bpe: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["a"])
    list_ = tmp_path / "out.json"
    list_.write_text(f"{tmp_path}/a.jsonl\n")
    with pytest.raises(tokpack.UsageError, match=r"out\.json"):
        tokpack.encode([f"@{list_}"], tmp_path / "out", tokenizer=bpe, overwrite=True)
