"""What a dataset says of itself in Python: texts, its tokenizer at work, its facts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.encoding_tools import byte_tokenizer
from support.report_tools import make, make_words, run, run_json, sample_texts

import tokpack
from tokpack.errors import TokenizerError

if TYPE_CHECKING:
    from pathlib import Path


def test_texts_are_those_that_were_encoded(prefix: str, folder: Path) -> None:
    texts = sample_texts()
    dataset = tokpack.MMapIndexedDataset(prefix)
    assert [dataset.text(number) for number in range(dataset.documents)] == texts
    assert dataset.text(-1) == dataset.text(np.int64(len(texts) - 1)) == texts[-1]
    for number in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            dataset.text(number)
    tokpack.merge([prefix, prefix], folder / "twice", virtual=True, overwrite=True)
    assert tokpack.MMapIndexedDataset(folder / "twice").text(len(texts) + 5) == texts[5]


@pytest.mark.parametrize(
    "options",
    [
        {"append_eod": False},
        {"prepend_bos": True, "bos_token": 0},
        {"empty": "document"},
    ],
    ids=str,
)
def test_the_frame_is_not_text(tmp_path: Path, options: dict[str, object]) -> None:
    """Nor does it take from a text what looks like a frame."""
    texts = ["One. Two there.", "<|endoftext|> at both ends <|endoftext|>", "x"]
    texts += [""] if "empty" in options else []
    dataset = tokpack.MMapIndexedDataset(
        make(tmp_path, "framed", texts, special_tokens="encode", **options)
    )
    assert [dataset.text(number) for number in range(len(texts))] == texts


def test_the_tokenizer_is_a_mapping_that_works(prefix: str) -> None:
    dataset = tokpack.MMapIndexedDataset(prefix)
    tokenizer = dataset.tokenizer
    assert tokenizer is not None
    assert dataset.manifest is not None
    assert tokenizer == dataset.manifest.tokenizer
    assert json.loads(json.dumps(tokenizer)) == tokenizer
    ids = tokenizer.encode("Tlön 7")
    assert tokenizer.decode(ids) == "Tlön 7"
    assert tokenizer.decode(dataset.document(0)[:-1]) == sample_texts()[0]
    assert tokenizer.load().fingerprint == tokenizer["sha256"]
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again == tokenizer
    assert again.decode(ids) == "Tlön 7"
    with pytest.raises(TokenizerError, match="1000000"):
        tokenizer.decode([1_000_000])


def test_a_tokenizer_that_is_not_found_is_told(tmp_path: Path) -> None:
    words = make_words(tmp_path, "a b\nb a\n")
    assert tokpack.MMapIndexedDataset(words).text(1) == "b a"
    manifest = json.loads(words.with_suffix(".json").read_text())
    manifest["tokenizer"]["sha256"] = "0" * 64
    words.with_suffix(".json").write_text(json.dumps(manifest))
    with pytest.raises(TokenizerError, match=r"vocab\.json"):
        tokpack.MMapIndexedDataset(words).text(1)
    words.with_suffix(".json").unlink()
    dataset = tokpack.MMapIndexedDataset(words)
    assert dataset.tokenizer is None
    with pytest.raises(TokenizerError, match=r"tokpack\.adopt.*load_tokenizer"):
        dataset.text(0)


def test_facts_are_those_of_the_command(prefix: str, tmp_path: Path) -> None:
    facts = tokpack.MMapIndexedDataset(prefix).describe()
    assert json.loads(json.dumps(facts)) == run_json("inspect", prefix)
    assert facts["documents"] == len(sample_texts())
    words = make_words(tmp_path, "a b\n")
    words.with_suffix(".json").unlink()
    bare = tokpack.MMapIndexedDataset(words).describe()
    assert json.loads(json.dumps(bare)) == run_json("inspect", words)
    assert bare["tokenizer"] == {}


def test_texts_alone_are_printed(prefix: str, tmp_path: Path) -> None:
    texts = sample_texts()
    lines = [text if text.endswith("\n") else text + "\n" for text in texts]
    assert run("inspect", prefix, "--doc", "2:5", "--text").stdout == "".join(lines[2:5])
    assert run("inspect", prefix, "--sample", "2", "--text").stdout == lines[0] + lines[-1]
    for flags in (["--json"], ["--grep", "a"], ["--max-tokens", "5"]):
        said = run("inspect", prefix, "--text", *flags, code=1).stderr
        assert f"--text and {flags[0]}" in said
    assert "--doc" in run("inspect", prefix, "--text", code=1).stderr
    byte_tokenizer(tmp_path / "tokenizer.json")
    words = make_words(tmp_path, "a b\n")
    words.with_suffix(".json").unlink()
    assert "--tokenizer" in run("inspect", words, "--doc", "0", "--text", code=1).stderr


def test_a_pipe_gets_the_bytes_whatever_the_locale(tmp_path: Path) -> None:
    text = "Tlön \x1b[31m\r\n 木"
    prefix = make(tmp_path, "data", [text])
    command = [sys.executable, "-m", "tokpack", "inspect", prefix, "--doc", "0", "--text"]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout == text.encode() + b"\n"
