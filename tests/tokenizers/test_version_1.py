"""Version 1 of the tokenizers library, which only encodes and decodes, gives the same ids.

It is in a folder of its own, since it cannot be installed beside version 0, which made what is
expected.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import sentencepiece_tools, told_tokenizers, wordpiece_tools
from support.places import ROOT
from support.tiny_tokenizers import EOD, OF_THE_LIBRARY, added, pair, save, tiny
from support.told_tokenizers import told

from tokpack.tokenizers import train_bpe

if TYPE_CHECKING:
    from pathlib import Path

VERSION_1 = ROOT / ".venv" / "tokenizers-1"
PATTERNS = ("gpt2", "llama3", "o200k", "qwen2", "tekken")  # it has not all that version 0 cuts by
FRAMED = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": EOD, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {EOD: {"id": EOD, "ids": [258], "tokens": [EOD]}},
}
STRIPPING = added("<strip>", 259, lstrip=True, rstrip=True, normalized=True, special=False)
STEPS = [{"type": "Lowercase"}, {"type": "StripAccents"}, OF_THE_LIBRARY]
LOWERCASE = {"type": "Sequence", "normalizers": STEPS}


def definitions() -> dict[str, Any]:
    """Tokenizers by their names: native ones, and some that the library itself must encode."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("src/tokpack/*.py"))]
    made: dict[str, Any] = {
        pattern: json.loads(
            train_bpe(sources, vocab_size=600, special_tokens=[EOD], pattern=pattern)
        )
        for pattern in PATTERNS
    }
    unigram = sentencepiece_tools.trained("unigram")
    bert = wordpiece_tools.trained(lowercase=True)
    bert["model"]["vocab"] = {t: i for t, i in bert["model"]["vocab"].items() if "\0" not in t}
    made |= {
        "framed": {**tiny(), "post_processor": FRAMED},
        "BERT": bert,
        "T5": json.loads(sentencepiece_tools.unigram_json(unigram, "T5")),
        "of the library: steps": {
            **tiny(unk_token=EOD),
            "added_tokens": [added(EOD, 258), STRIPPING],
            "normalizer": LOWERCASE,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
        },
        "of the library: words": {
            **tiny(),
            "model": {
                "type": "WordLevel",
                "vocab": {"abc": 0, "Some": 1, "English": 2, EOD: 258},
                "unk_token": EOD,
            },
            "normalizer": OF_THE_LIBRARY,
            "pre_tokenizer": {"type": "Whitespace"},
        },
    }
    return made


@pytest.mark.skipif(not VERSION_1.is_dir(), reason="no tokenizers 1: make .venv/tokenizers-1")
def test_ids_and_all_else_are_those_of_version_0(tmp_path: Path) -> None:
    folders = []
    for number, (name, definition) in enumerate(definitions().items()):
        folder = tmp_path / f"{number} {name.replace(':', '')}"
        folder.mkdir()
        save(folder, definition)
        folders.append(folder)
    (tmp_path / "gpt2 files").mkdir()
    model = tiny()["model"]
    pair(tmp_path / "gpt2 files", model["vocab"], "#version: 0.2\na b\nab c\n")
    folders.append(tmp_path / "gpt2 files")
    paths = os.pathsep.join([str(VERSION_1), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "TOKPACK_TOKENIZER_CACHE": "0"}
    command = [sys.executable, "-P", told_tokenizers.__file__, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version, *answers = map(json.loads, done.stdout.splitlines())
    assert version.startswith("1.")
    natives = 0
    for folder, answer in zip(folders, answers, strict=True):
        expected = told(folder)
        natives += expected["native"]
        assert answer == expected, folder.name
    assert 0 < natives < len(folders)


@pytest.mark.skipif(not VERSION_1.is_dir(), reason="no tokenizers 1: make .venv/tokenizers-1")
def test_workers_use_it_where_a_tokenizer_is_not_native(tmp_path: Path) -> None:
    """The library's threads are not in a fork, which must not wait for them."""
    definition = {**tiny(), "normalizer": OF_THE_LIBRARY}
    first = list(definition["model"]["vocab"])[:200]
    pairs = list(itertools.product(first, first))  # threads load so many
    ids = {x + y: 1000 + i for i, (x, y) in enumerate(pairs)}
    model = {"vocab": ids | definition["model"]["vocab"], "merges": [list(pair) for pair in pairs]}
    definition["model"] = {**definition["model"], **model}
    folder = save(tmp_path, definition).parent
    inputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]  # so large that each is a part
    for one in inputs:
        one.write_text(json.dumps({"text": "Some English abc", "more": "-" * (1 << 20)}) * 6)
    made = []
    for name, changed in (("one", {}), ("two", {"PYTHONPATH": str(VERSION_1)})):
        command = [sys.executable, "-m", "tokpack", "encode", *map(str, inputs), "-q"]
        command += ["-o", str(tmp_path / name), "--tokenizer", str(folder), "--workers", "2"]
        subprocess.run(command, env={**os.environ, **changed}, check=True, timeout=300)
        made.append((tmp_path / f"{name}.bin").read_bytes())
    assert made[0] == made[1]
