"""A dataset is its documents, however they lie in files: the same fingerprint, the same samples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

import tokpack
from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.documents import write_view
from tokpack.samples import FIM, SampleIterator, open_blend, plan_blend, save_blend
from tokpack.samples.orders.rules import FLAVOURS, ORDERS

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 512
FORMS = ("split", "nested", "merged", "int32", "view", "view of views")
SAME_IDS = [form for form in FORMS if form != "int32"]
EOD = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of documents as ``single``, and in every one of FORMS; ``labels`` beside them."""
    folder = tmp_path_factory.mktemp("forms")
    draw = np.random.default_rng(3)
    # Long enough that the three places of the fingerprint are three, with empty sequences at ends.
    lengths = [0, *draw.integers(0, 1500, 700).tolist(), 0]
    sequences = [draw.integers(0, 60_000, length) for length in lengths]
    write(folder / "single", sequences, np.uint16)
    write(folder / "labels", [np.where(one % 3, one, -100) for one in sequences], np.int32)
    parts = [MMapIndexedDataset(part) for part in split(folder, "single", 5)]
    tokpack.merge([one.path_prefix for one in parts], folder / "split", virtual=True)
    write(folder / "empty", [[], []], np.uint16)
    tokpack.merge([part.path_prefix for part in parts[:2]], folder / "first", virtual=True)
    pieces = [folder / "first", *(part.path_prefix for part in parts[2:])]
    tokpack.merge(pieces, folder / "nested", virtual=True)
    tokpack.merge([folder / "nested"], folder / "merged")
    tokpack.convert(folder / "single", folder / "int32", dtype="int32")
    # Views of these documents among others, in another order.
    backwards = np.arange(len(lengths))[::-1]
    tokpack.merge([folder / "merged", folder / "empty"], folder / "more", virtual=True)
    view(folder / "backwards", folder / "more", np.concatenate([[len(lengths)], backwards]))
    view(folder / "view of views", folder / "backwards", backwards + 1)
    tokpack.merge([folder / "empty", folder / "nested"], folder / "behind", virtual=True)
    view(folder / "view", folder / "behind", np.arange(len(lengths)) + 2)
    return folder


def view(prefix: Path, source: Path, documents: Any) -> None:
    write_view(prefix, [MMapIndexedDataset(source)], documents, made_by={})


def write(prefix: Path, sequences: Any, dtype: Any) -> None:
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype) as builder:
        for sequence in sequences:
            builder.add_item(np.asarray(sequence, dtype))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")


def split(folder: Path, name: str, parts: int) -> list[str]:
    tokpack.split(folder / name, folder / "part", parts=parts)
    return [str(folder / f"part_{number:05}") for number in range(parts)]


def settings_of(order: str) -> dict[str, Any]:
    samples = 600 if order in FLAVOURS else None
    return {"order": order, "seed": 5, "samples": samples, "split": "8,1,1"}


FIM_SETTINGS = FIM(prefix_id=1, middle_id=2, suffix_id=3, rate=0.5)
PACKED = (
    {"packing": "best_fit"},
    {"packing": "document", "document_boundaries": False},
    {"packing": "pack_until_overflow", "order": "neox", "samples": 300},
    {"split_by": "tokens", "split": "8,1,1", "split_index": 1},
    {"fim": FIM_SETTINGS, "eod_id": EOD},
)


def test_the_fingerprint_is_of_the_documents(folder: Path) -> None:
    single = MMapIndexedDataset(folder / "single")
    assert single.token_count > 400_000
    for form in FORMS:
        assert MMapIndexedDataset(folder / form).fingerprint == single.fingerprint, form
    assert MMapIndexedDataset(folder / "first").fingerprint != single.fingerprint
    labels = MMapIndexedDataset(folder / "labels")  # the same lengths
    assert labels.fingerprint != single.fingerprint


@pytest.mark.parametrize(
    "settings", [*map(settings_of, ORDERS), *PACKED], ids=[*ORDERS, *(str(p)[:30] for p in PACKED)]
)
def test_samples_and_states_are_of_the_documents(
    folder: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    """A state that is saved on one form goes on with another, in every order."""
    here = GPTDataset(folder / "single", LENGTH, cache=tmp_path, **settings)
    assert here.fingerprint.startswith("v2:")
    assert len(here) > 30
    numbers = range(0, len(here), 3)
    began = SampleIterator(here, 4)
    for _ in range(3):
        next(began)
    state = json.dumps(began.state_dict())
    expected = next(began)
    for form in FORMS:
        there = GPTDataset(folder / form, LENGTH, cache=tmp_path, **settings)
        assert (there.fingerprint, len(there)) == (here.fingerprint, len(here)), form
        assert_same(there.batch(numbers), here.batch(numbers))
        assert there.cached is None or not there.cached.built
        resumed = SampleIterator(there, 4)
        resumed.load_state_dict(json.loads(state))
        assert_same(next(resumed), expected)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


def test_labels_and_blends(folder: Path) -> None:
    def blend(form: str) -> BlendedDataset:
        members = [
            GPTDataset(folder / form, LENGTH, labels=folder / "labels"),
            GPTDataset(folder / "first", LENGTH, labels=folder / "first_labels"),
        ]
        return BlendedDataset(members, schedule=[(0, [3, 1]), (50, [1, 1])], size=200)

    begin = MMapIndexedDataset(folder / "first")
    labels = MMapIndexedDataset(folder / "labels")
    write(folder / "first_labels", labels[: len(begin)], np.int32)
    here = blend("single")
    for form in FORMS:
        there = blend(form)
        assert there.fingerprint == here.fingerprint
        assert there.fingerprint_at(40) == here.fingerprint_at(40) != here.fingerprint
        assert_same(there.batch(range(200)), here.batch(range(200)))


def test_a_saved_blend_takes_the_same_documents(folder: Path, tmp_path: Path) -> None:
    """Its checksum is of the bytes of a .bin, and refuses only what it can be compared with."""
    for form in ("single", *SAME_IDS):
        save_blend(plan_blend([str(folder / form)], seq_length=LENGTH), tmp_path / "blend.yaml")
        values = yaml.safe_load((tmp_path / "blend.yaml").read_text())
        assert values["datasets"][0]["fingerprint"].startswith("v2:")
        for other in SAME_IDS:
            values["datasets"][0]["prefix"] = str(folder / other)
            (tmp_path / "other.yaml").write_text(yaml.safe_dump(values))
            assert len(open_blend(tmp_path / "other.yaml").train) > 0
