"""Evaluation texts in datasets: what is found, what is passed over, and that nothing is lost."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import plain
from support.indexed_twin import write_plainly

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.documents import base
from tokpack.errors import InputError, OutputError, TokenizerError, UsageError
from tokpack.tokenizers import load_tokenizer, train_bpe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.documents import Decontamination

Flat = list[list[int]]
TEXT = "the quick brown fox jumps over a lazy dog and then goes home to sleep until morning"
WORDS = TEXT.split()


def write(prefix: Path, documents: Flat) -> Path:
    write_plainly(prefix, plain([[one] for one in documents]))
    return prefix


def spans_of(path: str | Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def plain_spans(
    documents: Flat, texts: Flat, ngram: int, shortest: int, common: int
) -> list[tuple[int, int, int]]:
    """(document, begin, end) by comparing every place with every phrase."""
    phrases = set()
    for text in texts:
        length = min(len(text), ngram)
        if length >= shortest:
            phrases |= {tuple(text[i : i + length]) for i in range(len(text) - length + 1)}
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for number, document in enumerate(documents):
        for phrase in phrases:
            for begin in range(len(document) - len(phrase) + 1):
                if tuple(document[begin : begin + len(phrase)]) == phrase:
                    places.setdefault(phrase, []).append((number, begin))
    covered: list[tuple[int, int, int]] = []
    for phrase, found in places.items():
        if not common or len({number for number, _ in found}) <= common:
            covered += [(number, begin, begin + len(phrase)) for number, begin in found]
    spans: list[tuple[int, int, int]] = []
    for number, begin, end in sorted(covered):
        if spans and spans[-1][0] == number and begin < spans[-1][2]:
            spans[-1] = (number, spans[-1][1], max(end, spans[-1][2]))
        else:
            spans.append((number, begin, end))
    return spans


def check_conserved(output: Path, prefixes: Sequence[Path], result: Decontamination) -> None:
    """The view has the documents without a span, in order, and the counts add up."""
    matched = {(row["dataset"], row["document"]) for row in spans_of(f"{output}.spans.parquet")}
    kept = []
    for prefix, share in zip(prefixes, result.datasets, strict=True):
        dataset = MMapIndexedDataset(prefix)
        assert share.read == dataset.documents == share.kept + share.matched
        assert share.matched == sum(name == str(prefix) for name, _ in matched)
        own = [
            dataset.document(number).tolist()
            for number in range(dataset.documents)
            if (str(prefix), number) not in matched
        ]
        assert share.kept_tokens == sum(map(len, own))
        kept += own
    view = MMapIndexedDataset(output)
    assert [view.document(number).tolist() for number in range(view.documents)] == kept


ids = st.lists(st.integers(0, 2), max_size=25)


@given(
    st.lists(st.lists(ids, max_size=6), min_size=1, max_size=2),
    st.lists(ids, min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_spans_are_those_of_the_twin(
    parts: list[Flat], texts: Flat, ngram: int, shortest: int, common: int
) -> None:
    shortest = min(shortest, ngram)
    if not any(len(text) >= shortest for text in texts):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefixes = [write(folder / f"part{n}", part) for n, part in enumerate(parts)]
        against = write(folder / "evals", texts)
        result = tokpack.decontaminate(
            prefixes,
            folder / "fair",
            against=against,
            unit="tokens",
            ngram=ngram,
            shortest=shortest,
            common=common,
        )
        rows = spans_of(folder / "fair.spans.parquet")
        for prefix, part in zip(prefixes, parts, strict=True):
            found = [
                (row["document"], row["begin"], row["end"])
                for row in rows
                if row["dataset"] == str(prefix)
            ]
            assert found == plain_spans(part, texts, ngram, shortest, common)
        for row in rows:  # the text that is named has the beginning of the span
            text = texts[row["line"] - 1]
            length = min(len(text), ngram)
            tokens = MMapIndexedDataset(row["dataset"]).document(row["document"]).tolist()
            first = tokens[row["begin"] : row["begin"] + length]
            assert any(text[i : i + length] == first for i in range(len(text)))
        assert result.texts == len(texts)
        assert result.short == sum(len(text) < shortest for text in texts)
        assert result.spans == len(rows)
        check_conserved(folder / "fair", prefixes, result)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE in which words, spaces before them and line ends behind them are joined."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    texts = [" ".join(WORDS[i:] + WORDS[:i]) + ".\n\nQuick.\nThe fox.\n" for i in range(len(WORDS))]
    path.write_text(train_bpe(texts * 5, vocab_size=600, pattern="cl100k"))
    return path


def encode(folder: Path, name: str, texts: list[str], tokenizer: Path) -> Path:
    (folder / f"{name}.jsonl").write_text(
        "".join(json.dumps({"text": one}) + "\n" for one in texts)
    )
    tokpack.encode(
        folder / f"{name}.jsonl", folder / name, tokenizer=tokenizer, workers=1, append_eod=False
    )
    return folder / name


@pytest.mark.parametrize("length", [8, 9, 12, 13, 14, 15, 40])
@pytest.mark.parametrize(
    "surrounding", ["{}", "it {} it", "it\n{}\nit", "it\n\n{}\n\nit", '"{}"\n']
)
def test_a_text_is_found_wherever_it_stands_in_a_document(
    tmp_path: Path, tokenizer: Path, length: int, surrounding: str
) -> None:
    """Short or long, at its beginning and its end: also where tokens reach over both."""
    random = np.random.default_rng(length)
    text = " ".join(random.choice(WORDS, length)) + "."
    others = [" ".join(random.choice(WORDS, 300)) for _ in range(3)]
    dataset = encode(
        tmp_path, "data", [others[0], surrounding.format(text), *others[1:]], tokenizer
    )
    (tmp_path / "evals.jsonl").write_text(json.dumps({"text": f" {text}\n"}) + "\n")
    result = tokpack.decontaminate(
        dataset, tmp_path / "fair", against=tmp_path / "evals.jsonl", shortest=5
    )
    assert result.datasets[0].matched == 1
    rows = spans_of(tmp_path / "fair.spans.parquet")
    assert {row["document"] for row in rows} == {1}
    [row] = rows
    if length < 40:  # of longer ones the table has the beginning
        assert text[:-1].strip() in f" {row['text']}" or surrounding == '"{}"\n'


@pytest.mark.parametrize("ngram", [11, 12, 13, 14])
@pytest.mark.parametrize("surrounding", ["{}", "it {} it", "it {}\n\nit", "it\n{}\nit"])
def test_a_text_is_found_where_a_space_before_it_makes_it_longer(
    tmp_path: Path, tokenizer: Path, ngram: int, surrounding: str
) -> None:
    """``azy`` is ``az`` and ``y``, and behind a space `` a``, ``z`` and ``y``."""
    text = "azy " + " ".join(np.random.default_rng(1).choice(WORDS, 10))
    lengths = [len(load_tokenizer(tokenizer).encode(one)) for one in (text, f" {text}")]
    assert lengths == [12, 13]
    other = " ".join(np.random.default_rng(2).choice(WORDS, 300))
    dataset = encode(tmp_path, "data", [other, surrounding.format(text), "azy"], tokenizer)
    (tmp_path / "evals.jsonl").write_text(json.dumps({"text": text}) + "\n")
    result = tokpack.decontaminate(
        dataset, tmp_path / "fair", against=tmp_path / "evals.jsonl", ngram=ngram, common=0
    )
    rows = spans_of(tmp_path / "fair.spans.parquet")
    assert [row["document"] for row in rows] == [1]
    assert result.datasets[0].kept == 2


def test_texts_are_read_as_encode_reads_them(tmp_path: Path, tokenizer: Path) -> None:
    texts = [" ".join(np.random.default_rng(n).choice(WORDS, 30)) for n in range(6)]
    dataset = encode(tmp_path, "data", texts, tokenizer)
    lines = "".join(json.dumps({"q": texts[n], "a": texts[n + 1]}) + "\n" for n in (0, 2))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pyarrow.table({"q": [texts[4]], "a": ["short"]}), tmp_path / "b.parquet")
    result = tokpack.decontaminate(
        dataset,
        tmp_path / "fair",
        against=[tmp_path / "a.jsonl.gz", tmp_path / "b.parquet"],
        keys=("q", "a"),
    )
    assert (result.texts, result.short) == (6, 1)
    assert [share.matched for share in result.datasets] == [5]
    rows = spans_of(tmp_path / "fair.spans.parquet")
    assert [(Path(row["against"]).name, row["line"]) for row in rows] == [
        ("a.jsonl.gz", 1), ("a.jsonl.gz", 1), ("a.jsonl.gz", 2), ("a.jsonl.gz", 2),
        ("b.parquet", 1),
    ]  # fmt: skip
    alone = tokpack.decontaminate(
        dataset, against=tmp_path / "a.jsonl.gz", keys="q", table=tmp_path / "t.parquet"
    )
    assert alone.manifest is None
    assert len(spans_of(tmp_path / "t.parquet")) == alone.spans == 2
    as_dataset = encode(tmp_path, "evals", texts[:2], tokenizer)
    assert tokpack.decontaminate(dataset, against=as_dataset).datasets[0].matched == 2


def test_common_phrases_are_passed_over_and_told(tmp_path: Path, tokenizer: Path) -> None:
    licence = " ".join(np.random.default_rng(1).choice(WORDS, 20))
    exam = " ".join(np.random.default_rng(2).choice(WORDS, 20))
    texts = [f"{n} {licence} and {exam if n == 3 else ''}" for n in range(20)]
    dataset = encode(tmp_path, "data", texts, tokenizer)
    (tmp_path / "evals.txt").write_text(f"{licence}\n{exam}\n")
    found = tokpack.decontaminate(dataset, against=tmp_path / "evals.txt", common=10)
    assert found.datasets[0].matched == 1
    assert found.common
    assert all(one.strip() in licence for one in found.examples)
    assert len(found.examples) == 3
    assert found.spared == 19
    share = tokpack.decontaminate(dataset, against=tmp_path / "evals.txt", common="50%")
    assert share == found
    assert tokpack.decontaminate(dataset, against=tmp_path / "evals.txt", common=0.5) == found
    assert tokpack.decontaminate(dataset, against=tmp_path / "evals.txt", common="100%").common == 0
    every = tokpack.decontaminate(dataset, against=tmp_path / "evals.txt", common=0)
    assert every.datasets[0].matched == 20
    assert not every.common
    assert not every.spared


def test_the_result_depends_on_nothing_but_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    documents = [random.integers(0, 4, random.integers(0, 200)).tolist() for _ in range(100)]
    dataset, evals = write(tmp_path / "data", documents), write(tmp_path / "evals", documents[::9])

    def made(name: str, **options: Any) -> list[dict[str, Any]]:
        options |= {"common": 20, "unit": "tokens"}
        tokpack.decontaminate(dataset, tmp_path / name, against=evals, **options)
        return spans_of(tmp_path / f"{name}.spans.parquet")

    expected = made("a")
    assert expected
    monkeypatch.setattr(base, "RUN_BYTES", 64)
    assert made("b", threads=5) == expected
    assert made("c", threads=1) == expected


def test_what_cannot_be_compared_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    dataset = encode(tmp_path, "data", [" ".join(WORDS)], tokenizer)
    raw = write(tmp_path / "raw", [[1, 2, 3]])
    (tmp_path / "evals.jsonl").write_text('{"text": "a"}\n{"q": "b"}\n')
    (tmp_path / "few.txt").write_text("a\n")
    with pytest.raises(InputError, match=r"evals\.jsonl:2: .*'q'"):
        tokpack.decontaminate(dataset, against=tmp_path / "evals.jsonl")
    with pytest.raises(TokenizerError, match="raw"):
        tokpack.decontaminate(raw, against=tmp_path / "few.txt")
    with pytest.raises(UsageError, match=r"few\.txt"):
        tokpack.decontaminate(dataset, against=tmp_path / "few.txt")
    with pytest.raises(UsageError, match="shortest=20"):
        tokpack.decontaminate(dataset, against=tmp_path / "few.txt", shortest=20)
    with pytest.raises(UsageError, match="common=-1"):
        tokpack.decontaminate(dataset, against=tmp_path / "few.txt", common=-1)
    (tmp_path / "other.json").write_text(train_bpe(["a b"], vocab_size=300))
    other = encode(tmp_path, "other_data", ["a b"], tmp_path / "other.json")
    with pytest.raises(UsageError, match=r"/tokenizer\.json .*other_data .*/other\.json"):
        tokpack.decontaminate(dataset, against=other)
    with pytest.raises(UsageError, match=r"/tokenizer\.json'.* 257 ids"):
        tokpack.decontaminate(
            dataset, against=tmp_path / "few.txt", tokenizer=tmp_path / "other.json"
        )
    with pytest.raises(UsageError, match="other_data"):
        tokpack.decontaminate([dataset, other], against=tmp_path / "few.txt")
    with pytest.raises(UsageError, match="input"):
        tokpack.decontaminate(raw, against=dataset, table=tmp_path / "data.bin", overwrite=True)
    (tmp_path / "mine.parquet").write_bytes(b"PAR1 mine")
    with pytest.raises(OutputError, match=r"mine\.parquet"):
        tokpack.decontaminate(raw, against=dataset, table=tmp_path / "mine.parquet")
