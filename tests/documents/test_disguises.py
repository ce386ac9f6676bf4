"""Copies of evaluation texts in disguise, of many languages: they are found, and no others."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.disguises import DISGUISES, LANGUAGES, Planted, planted

import tokpack
from tokpack.tokenizers import train_bpe

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

LEAST = 0.95


@cache
def made(each: int) -> Planted:
    return planted(each)


def found_by_tokpack(folder: Path, texts: Planted) -> set[int]:
    """The documents with a match, by a tokenizer that knows few words of them whole."""
    (folder / "tokenizer.json").write_text(train_bpe(texts.documents[::9], vocab_size=1500))
    for name, some in (("documents", texts.documents), ("evals", texts.texts)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
        (folder / f"{name}.jsonl").write_text(lines)
    tokpack.encode(
        folder / "documents.jsonl", folder / "d", tokenizer=folder / "tokenizer.json", workers=1
    )
    tokpack.decontaminate(
        folder / "d", against=folder / "evals.jsonl", table=folder / "spans.parquet", common=0
    )
    return {*pq.read_table(folder / "spans.parquet")["document"].to_pylist()}


def rates(texts: Planted, found: Collection[int]) -> dict[str, float]:
    """Recall of each language, of each disguise and of all; precision."""
    planted_of, found_of = Counter[str](), Counter[str]()
    for number, copy in enumerate(texts.copies):
        for name in (*(copy or ()), *(["all"] if copy else [])):
            planted_of[name] += 1
            found_of[name] += number in found
    recall = {name: found_of[name] / count for name, count in planted_of.items()}
    return recall | {"precision": found_of["all"] / max(len(found), 1)}


def test_copies_are_found_in_all_disguises(tmp_path: Path) -> None:
    texts = made(2)
    measured = rates(texts, found_by_tokpack(tmp_path, texts))
    assert {*measured} == {*LANGUAGES, *DISGUISES, "all", "precision"}
    assert min(measured.values()) >= LEAST, measured


@pytest.mark.slow
def test_as_many_are_found_as_by_datatrove(tmp_path: Path) -> None:
    """Its index and its filter, of 13 words; words are what stands between white space."""
    n_grams: Any = pytest.importorskip("datatrove.pipeline.decont.n_grams")
    cutters: Any = pytest.importorskip("datatrove.utils.word_tokenizers")
    data: Any = pytest.importorskip("datatrove.data")

    class Cutter(cutters.WordTokenizer):  # type: ignore[misc, name-defined]
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        sent_tokenize = span_tokenize = word_tokenize

    texts = made(4)
    sha1 = n_grams.HashConfig(hash_fc="sha1")  # the other one does not go with every xxhash
    config, cutter = n_grams.NGramsDecontConfig(n_grams=13, hash_config=sha1), Cutter()
    its_filter = n_grams.NGramsDecontFilter(str(tmp_path), config, language=cutter)
    # The indexer itself asks for a package that fetches tasks.
    indexer = SimpleNamespace(tokenizer=cutter, config=config, hash_func=its_filter.hash_func)
    its_filter._index_hashes = {
        one: "task"
        for text in texts.texts
        for one in n_grams.NGramsDecontIndexer.compute_hashes(indexer, text)
    }
    documents = (data.Document(text=text, id="") for text in texts.documents)
    of_datatrove = {i for i, one in enumerate(documents) if its_filter.filter(one) is not True}
    theirs, ours = rates(texts, of_datatrove), rates(texts, found_by_tokpack(tmp_path, texts))
    assert 0.3 < theirs["all"] < 1  # it does find what it can
    assert {name for name, rate in ours.items() if rate < theirs[name]} == set()
    assert min(ours.values()) >= LEAST, ours
