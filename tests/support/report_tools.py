"""Datasets for the tests of inspect and stats, and the commands."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import tokpack
from support.encoding_tools import byte_tokenizer, documents, write_jsonl
from tokpack.cli import main

if TYPE_CHECKING:
    from pathlib import Path


class Done(NamedTuple):
    """What a command said."""

    stdout: str
    stderr: str


def run(*arguments: object, code: int = 0, **env: str) -> Done:
    """Run the command in this process; it must end with ``code``."""
    out, err = io.StringIO(), io.StringIO()
    settings = {"TERM": "dumb", "COLUMNS": "100", **env}
    with mock.patch.dict(os.environ, settings), redirect_stdout(out), redirect_stderr(err):
        found = main([str(argument) for argument in arguments])
    assert found == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def run_json(*arguments: object) -> Any:
    """What the command prints with --json."""
    return json.loads(run(*arguments, "--json").stdout)


def make(folder: Path, name: str, texts: list[str], **options: Any) -> str:
    """Encode texts with the small tokenizer of the folder; the prefix."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        byte_tokenizer(tokenizer)
    source = write_jsonl(folder / f"{name}.jsonl", texts)
    prefix = str(folder / name)
    options = {"tokenizer": str(tokenizer), "workers": 1, **options}
    tokpack.encode([str(source)], prefix, overwrite=True, **options)
    return prefix


def sample_texts() -> list[str]:
    """Documents of many lengths, some of them twice."""
    texts = [text for text in documents(60, 40) if text]
    return [*texts, texts[3], texts[7], texts[3]]


def make_words(folder: Path, text: str) -> Path:
    """The dataset of the lines of a text, whose words other than "a" and "b" are unknown."""
    vocab, source = folder / "vocab.json", folder / "t.txt"
    vocab.write_text(json.dumps({"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 3}))
    source.write_text(text)
    tokpack.encode(
        [str(source)],
        str(folder / "w"),
        vocab_file=str(vocab),
        tokenizer_type="Whitespace",
        input_format="text",
    )
    return folder / "w"
