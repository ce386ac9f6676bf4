"""What a run may be asked, and what it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokpack
from tokpack.encoding import EncodeOptions, megatron_names


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (["wiki.jsonl"], "wiki"),
        (["d/wiki.2023.jsonl.zst"], "wiki.2023"),
        (["d/books.txz"], "books"),
        (["the-pile/00.jsonl.zst", "the-pile/01.jsonl.zst"], "the-pile"),
        (["the-pile/*.jsonl.zst"], "the-pile"),
        (["pile/*/shard-?.jsonl"], "pile"),
        ([" pile/a.jsonl, pile/b.jsonl"], "pile"),
        (["pile/a/1.jsonl", "pile/b/1.jsonl"], "pile"),
        (["@lists/web.txt"], "web"),
        (["org/dataset"], "dataset"),
        (["folder.json/"], "folder.json"),
        (["wiki.json"], "wiki_tokens"),
        (["noext"], "noext"),
    ],
)
def test_default_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    options = EncodeOptions(inputs=tuple(inputs))
    assert options.output == name
    assert options.output_names == {"text": name}


def test_output_names() -> None:
    options = EncodeOptions(inputs=("a",), output="d/x", keys=("text", "title"))
    assert options.output_names == {"text": "d/x_text", "title": "d/x_title"}
    names = megatron_names("d/x", ["title", "text"], sentences=False)
    options = EncodeOptions(inputs=("a",), output="d/x", output_names=names, keys=("text", "title"))
    assert list(options.output_names.items()) == [
        ("text", "d/x_text_document"),
        ("title", "d/x_title_document"),
    ]
    assert megatron_names("x", ["text"], sentences=True) == {"text": "x_text_sentence"}


def test_paths_are_as_good_as_strings() -> None:
    paths: dict[str, Any] = {"tokenizer": Path("t.json"), "vocab_file": Path("v.json")}
    options = EncodeOptions(inputs=Path("a.jsonl"), workers=np.int64(2), **paths)  # type: ignore[arg-type]
    assert options.inputs == ("a.jsonl",)
    assert (options.tokenizer, options.vocab_file) == ("t.json", "v.json")


def test_help_loads_little() -> None:
    """What a command needs is loaded for that command only: each module takes half a millisecond.

    Python itself begins with about 50, argparse and logging take 50 more.
    """
    script = (
        "import sys; from tokpack.cli.main import main; main(['--help']); "
        "print(len(sys.modules), [m for m in ('numpy', 'argparse', 'ctypes') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    count, heavy = out.splitlines()[-1].split(" ", 1)
    assert int(count) < 150
    assert heavy == "[]"


def test_face() -> None:
    for name in tokpack.__all__:
        assert getattr(tokpack, name) is not None
    assert dir(tokpack) == sorted(tokpack.__all__)
    with pytest.raises(AttributeError, match="'detokenize'"):
        _ = tokpack.detokenize


def test_paths_and_integers_of_any_type_are_taken() -> None:
    options = EncodeOptions(
        inputs=("a",),
        chat=True,
        chat_template=Path("t.jinja"),  # type: ignore[arg-type]
        scratch=Path("s"),  # type: ignore[arg-type]
        limit=np.int64(3),  # type: ignore[arg-type]
    )
    assert (options.chat_template, options.scratch) == ("t.jinja", "s")
    assert type(options.limit) is int
