"""What a run may be asked, and what it is called."""

from __future__ import annotations

import io
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ()}, "no input"),
        ({"keys": ()}, r"keys is \[\]; it needs"),
        ({"keys": ("a", "a")}, "different names"),
        ({"dtype": "uint8"}, "dtype is 'uint8'; it can be auto, uint16, int32"),
        ({"special_tokens": "drop"}, "special_tokens is 'drop'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"empty": "keep"}, "empty is 'keep'"),
        ({"workers": -1}, "workers is -1; the least is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"max_document_bytes": 0}, "max_document_bytes is 0"),
        ({"workers": "2"}, "workers is '2', which is no whole number"),
        ({"max_document_bytes": None}, "max_document_bytes is None, which is no whole number"),
        ({"tokenizer": 7}, "tokenizer is a int: give a name or a path"),
        ({"max_rejects": 3}, "max_rejects needs on_error"),
        ({"keep_newlines": True}, "keep_newlines needs split_sentences"),
        ({"output": "d/"}, "'d/' is a folder"),
        ({"output": "x", "output_names": {"title": "y"}}, "output_names is"),
        ({"output": "x", "output_names": {"text": "d/y"}}, "not in the folder of 'x'"),
        ({"inputs": ("-",)}, "standard input has no name"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tokpack.UsageError, match=message):
        EncodeOptions(**{"inputs": ("a.jsonl",), **options})


@pytest.mark.parametrize("inputs", [42, None, b"a.jsonl", io.StringIO("a.jsonl")])
def test_what_names_no_inputs(inputs: Any) -> None:
    with pytest.raises(tokpack.UsageError, match=r"^inputs is .*: give names of files"):
        tokpack.encode(inputs, "out")


def test_paths_are_as_good_as_strings() -> None:
    paths: dict[str, Any] = {"tokenizer": Path("t.json"), "vocab_file": Path("v.json")}
    options = EncodeOptions(inputs=Path("a.jsonl"), workers=np.int64(2), **paths)  # type: ignore[arg-type]
    assert options.inputs == ("a.jsonl",)
    assert (options.tokenizer, options.vocab_file) == ("t.json", "v.json")


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokeniser'"):
        tokpack.encode("a.jsonl", tokeniser="gpt2")


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
    with pytest.raises(AttributeError, match="no attribute 'detokenize'"):
        _ = tokpack.detokenize
