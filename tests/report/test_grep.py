"""``tokpack inspect --grep``: what is found, where, and how far the search went."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

from support.report_tools import make, run, sample_texts

from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.overview import grep
from tokpack.dataset.spelling import Spelling, find_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_grep_finds_what_is_there(prefix: str) -> None:
    texts = sample_texts()
    wanted = texts[40][5:25]
    expected = [i for i, text in enumerate(texts) if wanted in text]
    opened = MMapIndexedDataset(prefix)
    tokenizer = find_tokenizer(opened).tokenizer
    assert tokenizer
    found = list(grep(opened, Spelling(tokenizer), wanted))
    assert [match.document for match in found] == expected
    for match in found:
        row = opened.document(match.document)
        assert texts[match.document].encode().find(wanted.encode()) == match.byte
        before = len(tokenizer.decode_bytes(row[: match.token].tolist()))
        assert before <= match.byte < before + len(tokenizer.decode_bytes([row[match.token]]))


def test_grep_says_how_far_it_went(prefix: str) -> None:
    done = run("inspect", prefix, "--grep", "the", "--limit", "2", "--json")
    assert len(json.loads(done.stdout)["documents"]) == 2
    assert re.search(r"found in 2 of \d+ documents searched, of 6\d", done.stderr)
    done = run("inspect", prefix, "--grep", "no such text anywhere")
    count = len(sample_texts())
    assert f"found in 0 of {count} documents searched" in done.stderr
    assert done.stdout == ""


def test_grep_shows_the_place(tmp_path: Path) -> None:
    rng = random.Random(5)
    words = ["the", "of", "and"]
    long = " ".join(rng.choice(words) for _ in range(3000))
    name = make(tmp_path, "long", [long + " needle " + long])
    out = run("inspect", name, "--grep", "needle", "--max-tokens", "30").stdout
    assert "needle" in re.sub(r"\| *", "", out)
    assert " before" in out
