"""``tokpack stats``: every figure against a slow, obviously right count."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import GOLDEN
from support.report_tools import make, make_words, run, run_json, sample_texts
from support.rounding import equal

import tokpack
from tokpack.dataset import MMapIndexedDataset, index_chunks
from tokpack.dataset.format import document_ends
from tokpack.dataset.sources import SourceShare
from tokpack.look.facts import source_table
from tokpack.look.statistics import EXAMPLES, count_tokens, stats
from tokpack.quantities import percent
from tokpack.storage.disk.durable import replace_file

V1 = GOLDEN / "v1"
EOD = 0


def write(path: Path, documents: list[list[int]], dtype: str = "int32") -> str:
    """A dataset with one sequence for each document."""
    lengths = np.array([len(row) for row in documents], np.int32)
    np.array([token for row in documents for token in row], dtype).tofile(f"{path}.bin")
    replace_file(f"{path}.idx", index_chunks(dtype, lengths, np.arange(len(documents) + 1)))
    return str(path)


def twin(documents: list[list[int]], eod: int) -> dict[str, Any]:
    """The figures, one document after the other."""
    counts = Counter(token for row in documents for token in row if 0 <= token < 1 << 22)
    seen: Counter[tuple[int, ...]] = Counter()
    found: dict[str, Any] = {
        "duplicates": 0,
        "wasted": 0,
        "inside": 0,
        "examples": [],
        "without": 0,
    }
    for number, row in enumerate(documents):
        if not row:
            continue
        found["duplicates"] += seen[tuple(row)] > 0
        found["wasted"] += len(row) if seen[tuple(row)] else 0
        seen[tuple(row)] += 1
        inside = [i for i, token in enumerate(row[:-1]) if token == eod]
        found["inside"] += len(inside)
        found["examples"] += [(number, inside[0])] if inside else []
        found["without"] += row[-1] != eod
    groups = sum(times > 1 for times in seen.values())
    return {**found, "counts": counts, "groups": groups}


# Against the twin


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(
        st.lists(st.sampled_from([0, 0, 1, 2, 3, 70000, -1, 2**31 - 1]), max_size=6), max_size=14
    ),
    chunk=st.sampled_from([1, 3, 1 << 24]),
)
def test_figures_equal_a_slow_count(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], chunk: int
) -> None:
    prefix = write(tmp_path_factory.mktemp("x") / "d", documents)
    expected = twin(documents, EOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("tokpack.look.statistics"), "CHUNK_BYTES", 4 * chunk)
        patch.setattr(import_module("tokpack.look.statistics"), "_BLOCK", chunk + 1)
        opened = MMapIndexedDataset(prefix)
        ends = document_ends(opened.sizes, opened.doc_idx)
        found, hashes = count_tokens(opened, ends, vocab_size=None, eod=EOD, threads=2)
    own = [np.array(row, "<i4").tobytes() for row in documents]
    assert hashes.tolist() == [xxhash.xxh3_128_intdigest(row) >> 64 for row in own]
    figures = stats(opened)
    assert {i: int(n) for i, n in enumerate(found.counts) if n} == dict(expected["counts"])
    assert found.outside == sum(len(row) for row in documents) - expected["counts"].total()
    assert found.inner_eods == expected["inside"]
    assert found.inner == expected["examples"][:EXAMPLES]
    assert found.without_eod == expected["without"]
    duplicates = figures.duplicates
    assert duplicates.documents == expected["duplicates"]
    assert duplicates.tokens == expected["wasted"]
    assert duplicates.groups == expected["groups"]
    assert sum(bin_.documents for bin_ in figures.histogram) == len(documents)
    assert sum(bin_.tokens for bin_ in figures.histogram) == sum(map(len, documents))
    assert figures.empty == sum(not row for row in documents)


def test_bins_hold_the_lengths_they_say(tmp_path: Path) -> None:
    rng = random.Random(3)
    documents = [[1] * int(2 ** (12 * rng.random())) for _ in range(300)] + [[]]
    figures = stats(MMapIndexedDataset(write(tmp_path / "d", documents)))
    for one in figures.histogram:
        inside = [len(row) for row in documents if one.begin <= len(row) < one.end]
        assert (one.documents, one.tokens) == (len(inside), sum(inside))
    ends = [(one.begin, one.end) for one in figures.histogram]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))


def test_frequencies(tmp_path: Path) -> None:
    documents = [[5] * 50 + [6] * 30 + [7] * 15 + [8] * 4 + [9]]
    frequency = stats(MMapIndexedDataset(write(tmp_path / "d", documents))).frequency
    assert [(token.id, token.count) for token in frequency.top] == [
        *((5, 50), (6, 30), (7, 15)),
        *((8, 4), (9, 1)),
    ]
    assert frequency.zipf == ((1, 50), (2, 30), (3, 15), (4, 4), (5, 1))
    assert frequency.coverage == {50: 1, 90: 3, 99: 4}
    assert frequency.used == 5
    expected = -sum(p * math.log2(p) for p in (0.5, 0.3, 0.15, 0.04, 0.01))
    assert frequency.entropy == equal(expected, 5 * 4)


def test_duplicates_name_documents(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4], [1, 2, 3], [4], [4], [9, 9, 9, 9], [1, 2, 4]]
    examples = stats(MMapIndexedDataset(write(tmp_path / "d", documents))).duplicates.examples
    assert [(g.copies, g.length, g.documents) for g in examples] == [
        (2, 3, (0, 2)),
        (3, 1, (1, 3, 4)),
    ]


@pytest.mark.parametrize(
    "name", ["uint8", "int8", "int16", "uint16", "int32", "int64", "empty", "multimodal"]
)
def test_every_dtype(name: str) -> None:
    dataset = tokpack.MMapIndexedDataset(V1 / name)
    figures = stats(MMapIndexedDataset(V1 / name))
    ids = [token for token in dataset.tokens.tolist() if 0 <= token < 1 << 22]
    assert {token.id: token.count for token in figures.frequency.top} == Counter(ids)
    ids = [token for token in ids if token < (figures.vocab_size or 1 << 22)]
    assert figures.outside == len(dataset.tokens) - len(ids)


# The command


def test_the_command_counts_what_encode_made(prefix: str) -> None:
    (figures,) = run_json("stats", prefix)["datasets"]
    manifest = tokpack.Manifest.load(prefix)
    texts = sample_texts()
    assert figures["documents"] == manifest.documents == len(texts)
    assert figures["duplicates"]["documents"] == len(texts) - len(set(texts))
    assert figures["duplicates"]["examples"][0]["text"]
    assert figures["bytes_per_token"] == manifest.text_bytes / manifest.tokens
    assert figures["eods"] == {
        "id": manifest.tokenizer["eod_id"],
        "inside": 0,
        "examples": [],
        "without": 0,
    }
    assert figures["vocab_size"] == manifest.tokenizer["vocab_size"]
    assert sum(source["tokens"] for source in figures["sources"]) == figures["tokens"]
    screen = run("stats", prefix).stdout
    for word in (f"{manifest.tokens:,}", "duplicate documents", "data.jsonl", "█"):
        assert word in screen


def test_eod_inside_documents_is_a_warning(tmp_path: Path) -> None:
    texts = ["one two", "three<|endoftext|>four five<|endoftext|>six", "seven"]
    name = make(tmp_path, "x", texts, special_tokens="encode")
    (figures,) = run_json("stats", name)["datasets"]
    (example,) = figures["eods"]["examples"]
    ids = tokpack.MMapIndexedDataset(name)[1].tolist()
    assert figures["eods"]["inside"] == 2
    assert example == [1, ids.index(figures["eods"]["id"])]
    assert "2 EOD tokens inside documents, the first in document 1" in run("stats", name).stdout


def test_unknown_words(tmp_path: Path) -> None:
    words = make_words(tmp_path, "a b x\ny z a\n")
    (figures,) = run_json("stats", words)["datasets"]
    assert (figures["unknown"], figures["tokens"]) == (3, 8)
    assert "3 (37.5%)" in run("stats", words).stdout
    assert {token["text"] for token in figures["frequency"]["top"]} >= {"<unk>", "a"}


def test_ids_outside_the_vocabulary(tmp_path: Path, prefix: str) -> None:
    name = write(tmp_path / "d", [[1, 2, 5000, -3, 2**31 - 1]])
    tokenizer = Path(prefix).parent / "tokenizer.json"
    (figures,) = run_json("stats", name, "--tokenizer", tokenizer)["datasets"]
    assert figures["outside"] == 3
    out = run("stats", name, "--tokenizer", tokenizer).stdout
    assert "3 tokens outside the vocabulary" in out


def test_datasets_side_by_side(prefix: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [[1, 2], [3]])
    done = run("stats", prefix, other, V1 / "empty", "--top", "3")
    head = done.stdout.splitlines()[0].split()
    assert head == ["data", "other", "empty"]
    assert len(run_json("stats", prefix, other)["datasets"]) == 2


def test_documents_of_several_datasets(tmp_path: Path) -> None:
    """Against sets of documents; repeated and empty ones, and a dataset that shares nothing."""
    source = random.Random(5)
    rows = [[source.randrange(3) for _ in range(source.randrange(4))] for _ in range(90)]
    datasets = {"a": rows[:40], "b": rows[40:], "c": [[9, 9]], "d": []}
    prefixes = [write(tmp_path / name, documents) for name, documents in datasets.items()]
    expected = []
    for name, documents in datasets.items():
        others = {tuple(row) for other in datasets if other != name for row in datasets[other]}
        also = [row for row in documents if row and tuple(row) in others]
        expected.append({"documents": len(also), "tokens": sum(map(len, also))})
    assert expected[0]["documents"] > 5
    found = run_json("stats", *prefixes)["datasets"]
    assert [one["shared"] for one in found] == expected
    assert f"{expected[0]['documents']} (" in run("stats", *prefixes).stdout
    assert run_json("stats", prefixes[0])["datasets"][0]["shared"] is None
    blend = ("blend", *prefixes[:3], "--seq-length", 1, "--duplicates")
    shared = run_json(*blend)["shared"]
    assert list(shared.values()) == expected[:3]
    rows = run(*blend).stdout.partition("documents shared")[2]
    assert f"  {expected[1]['documents']}  " in rows


def test_a_broken_dataset_is_an_error() -> None:
    broken = GOLDEN / "broken" / "inner-pointer"
    assert "sequence" in run("stats", broken, code=1).stderr


def test_real_text(shared: Path) -> None:
    data = shared / "megatron"
    prefix = data / "meg-gpt2-openwebtext_text_document"
    (figures,) = run_json(
        *("stats", prefix, "--vocab-file", data / "gpt2-tiny-vocab.json"),
        *("--merge-file", data / "gpt2-tiny-merges.txt"),
    )["datasets"]
    tokens = np.fromfile(f"{prefix}.bin", "<u2")
    counts = np.bincount(tokens)
    assert figures["frequency"]["used"] == np.count_nonzero(counts)
    assert figures["frequency"]["top"][0]["count"] == counts.max()
    assert figures["outside"] == 0
    # Exact: the bytes of every token, from the text of the whole dataset.
    tokenizer = tokpack.load_tokenizer(
        vocab_file=data / "gpt2-tiny-vocab.json", merge_file=data / "gpt2-tiny-merges.txt"
    )
    text = tokenizer.decode_bytes(tokens[tokens != tokenizer.eod_id].tolist())
    assert figures["bytes_per_token"] == equal(len(text) / len(tokens), 1)


# Words


def test_percent() -> None:
    shown = {percent(part, 100_000) for part in (0, 1, 2500, 25_000, 99_999, 100_000)}
    assert shown == {"0%", "<0.01%", "2.50%", "25.0%", ">99.9%", "100%"}
    assert percent(0, 0) == "0%"


def test_many_sources_are_summed_up() -> None:
    sources = [SourceShare(f"/d/{i}.jsonl", 1, i, 4 * i) for i in range(1, 41)]
    table = source_table(sources, 10)
    assert table
    assert (len(table.rows), table.note) == (11, "in /d/")
    assert list(table.rows[0]) == ["40.jsonl", "1", "40", "4.88%", "4.00"]
    assert list(table.rows[-1]) == ["30 others", "30", "465", "56.7%", "4.00"]
    assert [percent(share, 1) for share in table.bars] == [row[3] for row in table.rows]


def test_a_virtual_dataset_is_the_sum_of_its_pieces(tmp_path: Path) -> None:
    texts = sample_texts()
    pieces = [make(tmp_path, f"p{i}", texts[20 * i : 20 * i + 20]) for i in range(3)]
    whole = make(tmp_path, "whole", texts[:60])
    run("merge", *pieces, "-o", tmp_path / "all", "--virtual")
    (one,) = run_json("stats", whole)["datasets"]
    (many,) = run_json("stats", tmp_path / "all")["datasets"]
    different = {key for key in one if one[key] != many[key]}
    assert different <= {"prefix", "sources"}
    shown = [
        run_json("inspect", prefix, "--doc", "25")["documents"][0]
        for prefix in (whole, tmp_path / "all")
    ]
    assert shown[0]["text"] == shown[1]["text"] == texts[25] + "<|endoftext|>"
    assert shown[1]["source"].endswith("p1.jsonl")
    assert "3 pieces" in run("inspect", tmp_path / "all").stdout
