"""Removing copies against plain sets of n-grams: what stays, what goes, that nothing is lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.copies import Flat, flat, near_copies, write_all
from support.documents import DOCUMENTS, Documents, documents_of
from support.near_twin import alike, band_hashes, components, jaccard

import tokpack
from tokpack.dataset import Manifest, MMapIndexedDataset
from tokpack.dataset.manifest import FileDigest
from tokpack.dataset.table import table_metadata, table_path
from tokpack.documents import base
from tokpack.errors import FormatError, OutputError, UsageError


def tokens_of(prefix: str | Path) -> Flat:
    dataset = MMapIndexedDataset(prefix)
    return [dataset.document(number).tolist() for number in range(dataset.documents)]


def rows_of(output: str | Path) -> list[dict[str, Any]]:
    return list(pq.read_table(f"{output}.clusters.parquet").to_pylist())


def check_conserved(output: Path, prefixes: list[str], report: Any) -> None:
    """Every document is in the view or in the table as a copy of one that is, by their hashes."""

    def hashes(documents: Flat) -> Counter[str]:
        return Counter(xxhash.xxh3_128_hexdigest(str(one).encode()) for one in documents)

    all_tokens = {prefix: tokens_of(prefix) for prefix in prefixes}
    everything = hashes([one for prefix in prefixes for one in all_tokens[prefix]])
    kept = hashes(tokens_of(output))
    dropped: dict[str, Counter[str]] = {"exact": Counter(), "near": Counter()}
    for row in rows_of(output):
        document = all_tokens[row["dataset"]][row["document"]]
        first = all_tokens[row["first_dataset"]][row["first_document"]]
        assert hashes([first]) <= kept
        if row["reason"] == "kept":
            assert first == document
        else:
            dropped[row["reason"]] += hashes([document])
            assert row["reason"] == "near" or first == document or report.recall
    assert everything == kept + dropped["exact"] + dropped["near"]
    for share in report.datasets:
        counts = [getattr(share, kind) for kind in ("kept", "exact", "near")]
        assert share.read.documents == sum(one.documents for one in counts)
        assert share.read.tokens == sum(one.tokens for one in counts)
        assert share.read.documents == len(all_tokens[share.prefix])
    assert kept.total() == sum(share.kept.documents for share in report.datasets)
    assert dropped["exact"].total() == sum(share.exact.documents for share in report.datasets)
    assert dropped["near"].total() == sum(share.near.documents for share in report.datasets)


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.sampled_from("Hiq"), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_first_of_equal_documents_stays(
    parts: list[Documents], letter: str, doubled: bool
) -> None:
    parts = [*parts, *parts] if doubled else parts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefixes = write_all(folder, parts, letter)
        report = tokpack.dedup(prefixes, folder / "clean")
        everything = flat(parts)
        expected = [
            one
            for number, one in enumerate(everything)
            if not one or one not in everything[:number]
        ]
        assert tokens_of(folder / "clean") == expected
        check_conserved(folder / "clean", prefixes, report)
        found = sum(tokpack.stats(prefix).duplicates.documents for prefix in prefixes[:1])
        assert report.datasets[0].exact.documents == found


def edges(documents: Flat, ngram: int, bands: int, rows: int, least: float) -> set[tuple[int, int]]:
    """The pairs that are compared, by definition, and are alike enough."""
    signatures = [band_hashes(one, ngram, bands, rows) for one in documents]
    pairs = set()
    for band in range(bands):
        groups: dict[int, list[int]] = {}
        for number, signature in enumerate(signatures):
            groups.setdefault(signature[band], []).append(number)
        for group in groups.values():
            pairs |= {(group[0], one) for one in group[1:]}
            pairs |= set(pairwise(group))
    return {(a, b) for a, b in pairs if jaccard(documents[a], documents[b], ngram) >= least}


@pytest.mark.parametrize(
    ("shape", "near", "verify"),
    [
        ((5, 14, 8), 0.8, True),
        ((5, 14, 8), 0.8, False),
        ((2, 20, 4), 0.5, True),
        ((1, 3, 2), 1, True),
    ],
)
def test_clusters_are_the_components_of_what_is_alike(
    tmp_path: Path, shape: tuple[int, int, int], near: float, verify: bool
) -> None:
    ngram, bands, rows = shape
    documents = near_copies(1, 40)
    documents[20:20] = [[], documents[3], [7], [7], []]
    parts = [[[one] for one in documents[:70]], [[one[:9], one[9:]] for one in documents[70:]]]
    prefixes = write_all(tmp_path, parts)
    report = tokpack.dedup(
        prefixes, tmp_path / "clean", near=near, ngram=ngram, bands=bands, rows=rows, verify=verify
    )
    check_conserved(tmp_path / "clean", prefixes, report)
    pairs = edges(documents, ngram, bands, rows, near if verify else 0.0)
    pairs |= {
        (a, b) for a, b in combinations(range(len(documents)), 2) if documents[a] == documents[b]
    }
    pairs = {(a, b) for a, b in pairs if documents[a] and documents[b]}
    roots = components(len(documents), pairs)
    kept = [one for number, one in enumerate(documents) if roots[number] == number]
    assert tokens_of(tmp_path / "clean") == kept
    copies = {
        row["document"] + 70 * (row["dataset"] == prefixes[1]): row
        for row in rows_of(tmp_path / "clean")
    }
    for number, root in enumerate(roots):
        if number in copies:
            row = copies[number]
            assert row["first_document"] + 70 * (row["first_dataset"] == prefixes[1]) == root
        else:
            assert root == number
    assert report.clusters == len({root for number, root in enumerate(roots) if root != number})


def test_recall_and_precision_against_all_pairs(tmp_path: Path) -> None:
    """Near copies by comparing each with each, on documents with many pairs about the threshold."""
    documents = near_copies(2, 250)
    prefixes = write_all(tmp_path, [[[one] for one in documents]])
    report = tokpack.dedup(prefixes, tmp_path / "clean", near=0.8)
    expected = components(len(documents), alike(documents, 5, 0.8))
    first = {row["document"]: row["first_document"] for row in rows_of(tmp_path / "clean")}
    found = [first.get(number, number) for number in range(len(documents))]
    same = {(a, b) for a, b in combinations(range(len(documents)), 2) if expected[a] == expected[b]}
    paired = {(a, b) for a, b in combinations(range(len(documents)), 2) if found[a] == found[b]}
    assert len(same) > 200
    assert paired <= same  # precision 1: every link was compared
    assert len(paired) > 0.97 * len(same)  # most pairs are more alike than 0.8
    assert report.recall == pytest.approx(0.9235, abs=1e-4)


def test_the_result_depends_on_nothing_but_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = near_copies(3, 120)
    prefixes = write_all(tmp_path, [[[one] for one in documents], [[[1] * 5000], [[2]]]])

    def made(name: str, **options: Any) -> tuple[bytes, list[dict[str, Any]]]:
        tokpack.dedup(prefixes, tmp_path / name, near=0.7, **options)
        return (tmp_path / f"{name}.selection").read_bytes(), rows_of(tmp_path / name)

    expected = made("a")
    monkeypatch.setattr(base, "RUN_BYTES", 64)
    monkeypatch.setattr(import_module("tokpack.documents.keys"), "_PART", 7)
    assert made("b", threads=5) == expected
    assert made("c", threads=1) == expected


def test_a_view_and_a_virtual_dataset_are_read_like_any_other(tmp_path: Path) -> None:
    documents = near_copies(4, 60)
    prefixes = write_all(
        tmp_path, [[[one] for one in documents], [[one] for one in documents[5:20]]]
    )
    tokpack.dedup(prefixes, tmp_path / "plain", near=0.8)
    tokpack.merge(prefixes, tmp_path / "virtual", virtual=True)
    for name in ("virtual", "again"):
        tokpack.dedup(tmp_path / name if name == "virtual" else tmp_path / "virtual_clean",
                      tmp_path / f"{name}_clean", near=0.8)  # fmt: skip
        assert tokens_of(tmp_path / f"{name}_clean") == tokens_of(tmp_path / "plain")
    assert not rows_of(tmp_path / "again_clean")
    tokpack.merge(tmp_path / "plain", tmp_path / "whole")
    assert flat([documents_of(tmp_path / "whole")]) == tokens_of(tmp_path / "plain")


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    prefixes = write_all(tmp_path, [[[[1, 2]], [[1, 2]]]])
    tokpack.dedup(prefixes, tmp_path / "clean")
    with pytest.raises(OutputError):
        tokpack.dedup(prefixes, tmp_path / "clean")
    tokpack.dedup(prefixes, tmp_path / "clean", near=0.5, overwrite=True)
    (tmp_path / "mine.clusters.parquet").write_bytes(b"PAR1 mine")
    with pytest.raises(OutputError, match=r"mine\.clusters\.parquet"):
        tokpack.dedup(prefixes, tmp_path / "mine", overwrite=True)
    assert not (tmp_path / "mine.json").exists()
    with pytest.raises(UsageError):
        tokpack.dedup(prefixes, prefixes[0], overwrite=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"near": 0}, "near=0"),
        ({"near": 80}, "near=80"),
        ({"near": float("nan")}, "near=nan"),
        ({"near": 0.8, "rows": 0}, "rows=0"),
        ({"near": 0.8, "bands": 1000}, "bands=1000"),
    ],
)
def test_rules_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    prefixes = write_all(tmp_path, [[[[1, 2]]]])
    with pytest.raises(UsageError, match=said):
        tokpack.dedup(prefixes, tmp_path / "clean", **options)
    assert not list(tmp_path.glob("clean*"))


def give_table(prefix: Path) -> None:
    """A table of the documents, of the hashes of their tokens alone, and a manifest that has it."""
    manifest = Manifest.load(prefix)
    documents = tokens_of(prefix)
    hashes = [xxhash.xxh3_128_digest(np.array(one, "<i4").tobytes()) for one in documents]
    column = pyarrow.array(hashes, pyarrow.binary(16))
    schema = pyarrow.schema([("tokens_xxh3", column.type)], metadata=table_metadata(manifest.bin))
    path = table_path(prefix)
    pq.write_table(pyarrow.table([column], schema), path, row_group_size=3)
    digest = FileDigest(bytes=Path(path).stat().st_size, xxh3_128="")
    replace(manifest, table=digest).save(prefix)


@pytest.mark.parametrize("letter", ["H", "i"])
def test_hashes_of_a_table_and_of_tokens_are_the_same(tmp_path: Path, letter: str) -> None:
    documents = near_copies(6, 20)
    parts = [[[one] for one in documents], [[one] for one in documents[3:30]]]
    raw = write_all(tmp_path, parts, letter)
    prefixes = []
    for number, name in enumerate(raw):  # by merge, which makes a manifest
        prefixes.append(tmp_path / f"whole{number}")
        tokpack.merge(name, prefixes[-1])
    tokpack.merge(prefixes, tmp_path / "virtual", virtual=True)
    inputs: list[list[Path]] = [prefixes, [tmp_path / "virtual"], [tmp_path / "without_1"]]

    def made(name: str) -> list[Flat]:
        for number, some in enumerate(inputs):
            tokpack.dedup(some, tmp_path / f"{name}_{number}", overwrite=True)
        return [tokens_of(tmp_path / f"{name}_{number}") for number in range(len(inputs))]

    tokpack.dedup(tmp_path / "virtual", tmp_path / "without_1")
    expected = made("without")
    give_table(prefixes[0])
    assert made("some") == expected
    give_table(prefixes[1])
    assert made("all") == expected
    path = Path(table_path(prefixes[0]))
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(FormatError, match=path.name):
        made("broken")
