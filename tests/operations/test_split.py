"""Split: datasets whose documents, one after the other, are those of the one that was cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, documents_of, plain
from support.indexed_twin import write_plainly
from support.manifests import in_order, manifest_for

from tokpack.dataset import Manifest
from tokpack.dataset.merge import merge
from tokpack.dataset.split import split
from tokpack.errors import UsageError

CUTS = st.one_of(
    st.fixed_dictionaries({"documents": st.integers(1, 9)}),
    st.fixed_dictionaries({"tokens": st.integers(1, 40)}),
    st.fixed_dictionaries({"parts": st.integers(1, 8)}),
    st.just({"shares": (1.0, 0.0, 2.0, 1.0)}),
)


@pytest.mark.promises
@settings(max_examples=40, deadline=None)
@given(documents=DOCUMENTS.filter(lambda found: len(found) > 3), cut=CUTS)
def test_split_then_merge_is_where_it_began(documents: Documents, cut: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_plainly(f"{folder}/all", plain(documents))
        parts, most, long = (cut.get(way, 0) for way in ("parts", "documents", "tokens"))
        if parts > len(documents):
            with pytest.raises(UsageError, match=rf"\b{parts} datasets"):
                split(f"{folder}/all", f"{folder}/part", **cut)
            return
        results = split(f"{folder}/all", f"{folder}/part", **cut)
        found = [documents_of(prefix) for prefix, _ in results]
        assert [document for part in found for document in part] == documents
        for (prefix, manifest), part in zip(results, found, strict=True):
            in_order(manifest, prefix)
            assert part
            tokens = sum(len(sequence) for document in part for sequence in document)
            if most:
                assert len(part) == most or part is found[-1]
            if long:
                assert tokens <= long or len(part) == 1
        if parts:
            assert len(results) == parts
        merge([prefix for prefix, _ in results], f"{folder}/again")
        for suffix in ("bin", "idx"):
            again, before = Path(f"{folder}/again.{suffix}"), Path(f"{folder}/all.{suffix}")
            assert again.read_bytes() == before.read_bytes()


def test_shares_are_train_valid_and_test(tmp_path: Path) -> None:
    documents = [[[number]] for number in range(1000)]
    write_plainly(tmp_path / "all", plain(documents))
    manifest_for(tmp_path / "all", {"name": "gpt2", "sha256": "ab"}, records=1003)
    results = split(str(tmp_path / "all"), str(tmp_path / "my"), shares=(969, 30, 1))
    assert [os.path.basename(prefix) for prefix, _ in results] == [
        "my_train",
        "my_valid",
        "my_test",
    ]
    assert documents_of(tmp_path / "my_train") == documents[:969]
    assert documents_of(tmp_path / "my_valid") == documents[969:999]
    assert documents_of(tmp_path / "my_test") == documents[999:]
    manifest = results[1][1]
    assert manifest.tokenizer["name"] == "gpt2"
    assert manifest.options["split"] == [969, 999]
    assert manifest.inputs[0]["first_document"] == 969
    assert manifest.inputs[0]["checksum"] == Manifest.load(tmp_path / "all").bin["xxh3_128"]
    two = split(str(tmp_path / "all"), str(tmp_path / "two"), shares=(1, 1, 0))
    assert [prefix[-5:] for prefix, _ in two] == ["train", "valid"]


def test_parts_of_an_earlier_split_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_plainly(tmp_path / "a", plain([[[number]] for number in range(1, 6)]))
    output = f"{tmp_path}/x"
    split(f"{tmp_path}/a", output, documents=1)
    (tmp_path / "x_00004.json").write_text("{}")  # not of tokpack
    split(f"{tmp_path}/a", output, parts=2, overwrite=True)
    assert f"{output}_00002 to {output}_00003:" in caplog.text
    caplog.clear()
    split(f"{tmp_path}/a", f"{tmp_path}/y", parts=2, overwrite=True)
    assert not caplog.records
