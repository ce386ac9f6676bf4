"""Inputs of several kinds, one larger than a shard, and the dataset that one machine makes."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.encoding_tools import byte_tokenizer, documents, write_jsonl

import tokpack

if TYPE_CHECKING:
    from pathlib import Path

SHARD_BYTES = 2_500_000


class Corpus(NamedTuple):
    """``options`` are those of every run, ``whole`` what one machine makes, with a trace.

    Each of ``units`` is too large to share a part with another, and has two bad records.
    """

    inputs: list[str]
    units: list[str]
    options: dict[str, object]
    whole: Path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = byte_tokenizer(folder / "tokenizer.json")
    texts = documents(3000, words=150, seed=1)
    large = write_jsonl(folder / "large.jsonl", texts * 6)  # parts of 4 MiB: three, at least
    with large.open("a", encoding="utf-8") as file:
        file.write('{"text": 7}\nnot JSON\n\n')
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts[:500])
    packed = folder / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(write_jsonl(folder / "p", texts[:900]).read_bytes(), 1))
    small = [write_jsonl(folder / f"small{n}.jsonl", texts[n * 20 :][:20]) for n in range(5)]
    inputs = [str(path) for path in (*small[:2], large, packed, *small[2:])]
    options: dict[str, object] = {
        "tokenizer": str(tokenizer),
        "on_error": "skip",
        "max_rejects": 6,
        "trace": True,
        "empty": "document",
    }
    whole = folder / "whole"
    tokpack.encode(inputs, whole, workers=1, **options)
    units = [write_jsonl(folder / f"unit{n}.jsonl", texts * 2) for n in range(3)]
    for unit in units:
        with unit.open("a", encoding="utf-8") as file:
            file.write('{"text": 7}\n{"text": 8}\n')
    return Corpus(inputs, list(map(str, units)), options, whole)
