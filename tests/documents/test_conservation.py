"""No document lost, added or repeated: a dataset held against the files that it was made from."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.encoding_tools import byte_tokenizer, write_jsonl
from support.report_tools import run

import tokpack
from tokpack import MMapIndexedDataset, MMapIndexedDatasetBuilder, compare_with_inputs
from tokpack.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer(path)
    return str(path)


def encode(folder: Path, name: str, texts: list[str], tokenizer: str, **options: object) -> str:
    source, prefix = write_jsonl(folder / f"{name}.jsonl", texts), str(folder / name)
    more = {"workers": 1, "overwrite": True, **options}
    tokpack.encode([str(source)], prefix, tokenizer=tokenizer, **more)  # type: ignore[arg-type]
    return prefix


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    there=st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=8),
)
def test_counts_are_those_of_two_multisets(
    tmp_path: Path, tokenizer: str, made: list[str], there: list[str]
) -> None:
    prefix = encode(tmp_path, "made", made, tokenizer)
    inputs = str(write_jsonl(tmp_path / "there.jsonl", there))
    found = compare_with_inputs(prefix, inputs, threads=1)
    ours, theirs = Counter(made), Counter(text for text in there if text)
    assert (found.records, found.empty) == (len(there), there.count(""))
    assert found.documents + found.empty == found.records
    assert found.missing == sum((theirs - ours).values())
    assert found.foreign == sum(n for text, n in ours.items() if text not in theirs)
    assert found.repeated == sum((ours - theirs).values()) - found.foreign
    assert found.is_conserved == (ours == theirs)


def test_a_merged_dataset_has_what_its_inputs_have(tmp_path: Path, tokenizer: str) -> None:
    names = [
        encode(tmp_path, name, [f"{name} {i}" for i in range(40)], tokenizer) for name in "xyz"
    ]
    tokpack.merge(names, str(tmp_path / "all"))
    found = compare_with_inputs(
        str(tmp_path / "all"), [f"{name}.jsonl" for name in reversed(names)]
    )
    assert found.is_conserved
    assert found.in_dataset == 120
    tokpack.merge([*names, names[1]], str(tmp_path / "twice"), overwrite=True)
    twice = compare_with_inputs(str(tmp_path / "twice"), [f"{name}.jsonl" for name in names])
    assert (twice.missing, twice.repeated, twice.foreign) == (0, 40, 0)
    assert twice.examples[0].startswith("more often than there: document ")


def test_what_is_missing_is_named_by_file_and_line(tmp_path: Path, tokenizer: str) -> None:
    texts = [f"text number {i}" for i in range(30)]
    prefix = encode(tmp_path, "few", texts[:17] + texts[18:], tokenizer)
    inputs = write_jsonl(tmp_path / "all.jsonl", texts)
    said = run("verify", prefix, "--against", inputs, code=1).stdout
    assert "1 missing" in said
    assert f"missing: {inputs}:18" in said
    again = json.loads(run("verify", prefix, "--json", "--against", inputs, code=1).stdout)
    assert (again["is_conserved"], again["missing"]) == (False, 1)
    own = run("verify", prefix, "--against", tmp_path / "few.jsonl").stdout
    assert "ok, its documents are those of the inputs" in own


def test_rejected_records_and_frames_are_counted(tmp_path: Path, tokenizer: str) -> None:
    source = tmp_path / "some.jsonl"
    source.write_text('{"text": "a"}\nno JSON\n{"text": ""}\n{"text": "b"}\n')
    prefix = str(tmp_path / "some")
    tokpack.encode(
        [str(source)], prefix, tokenizer=tokenizer, on_error="skip", append_eod=False, workers=1
    )
    found = compare_with_inputs(prefix, str(source))
    assert found.is_conserved
    assert (found.records, found.documents, found.empty, found.rejected) == (4, 2, 1, 1)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, tokenizer: str) -> None:
    bare = str(tmp_path / "bare")
    with MMapIndexedDatasetBuilder(f"{bare}.bin", np.uint16) as builder:
        builder.add_item([1])
        builder.finalize(f"{bare}.idx")
    with pytest.raises(InputError, match="tokpack adopt"):
        compare_with_inputs(bare, "x.jsonl")
    prefix = encode(tmp_path, "where", ["a", "bb"], tokenizer, where="length(text) > 1")
    with pytest.raises(UsageError, match="was encoded with where"):
        compare_with_inputs(MMapIndexedDataset(prefix), str(tmp_path / "where.jsonl"))
    assert "one dataset" in run("verify", bare, prefix, "--against", "x", code=1).stderr
