"""``tokpack inspect --trace``, once ``tokpack trace``: from documents to lines and back."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.cli_tools import tokpack as command
from support.encoding_tools import word_tokenizer, write_jsonl

import tokpack
from tokpack.dataset import Origins
from tokpack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command(bpe: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n{"text": ""}\n{\n{"text": "c"}\n')
    out = tmp_path / "out"
    made = command(
        *("encode", path, "-o", out, "--trace", "--tokenizer", bpe, "--on-error", "skip")
    )
    assert made.returncode == 0
    assert ".docs.parquet (" in made.stderr
    assert ".dropped.parquet (" in made.stderr
    asked = command("trace", out, "--doc", "-2:")
    assert (asked.returncode, asked.stdout) == (0, f"{path}:3\n{path}:6\n")
    asked = command("inspect", out, "--trace", "--doc", "1,-1")
    assert (asked.returncode, asked.stdout) == (0, f"{path}:3\n{path}:6\n")
    lines = [f"x.jsonl:{line}" for line in range(1, 7)]
    asked = command("trace", out, "--source", *lines)
    assert asked.returncode == 0
    assert asked.stdout.splitlines()[:4] == [
        *("0", "no record: blank, or behind the last line", "1", "empty, left out: no token"),
    ]
    assert asked.stdout.splitlines()[4].startswith("rejected: malformed JSON")
    assert asked.stdout.splitlines()[5] == "2"
    ranges = command("trace", out, "--doc", "0:2", "--doc=-1").stdout
    assert ranges.splitlines() == [f"{path}:1", f"{path}:3", f"{path}:6"]
    for all_ in (("trace", out, "--all"), ("inspect", out, "--trace")):
        assert command(*all_).stdout == f"0\t{path}\t1\n1\t{path}\t3\n2\t{path}\t6\n"
    found = json.loads(command("trace", out, "--json", "--source", "x.jsonl:6").stdout)
    assert found == {
        "source": str(path),
        "line": 6,
        "became": "document",
        "document": 2,
        "reason": "",
        "kept": {},
    }
    shown = command("inspect", out, "--source", *lines[2:4], "--text")
    assert shown.stdout == "b\n"
    assert shown.stderr == f"tokpack: note: {path}:4: empty, left out: no token\n"


def test_tables_are_written_and_read_without_pandas(bpe: Path, tmp_path: Path) -> None:
    """Arrow loads it, where it is installed, to ask what an object is: a third of a second."""
    path, out = write_jsonl(tmp_path / "x.jsonl", ["a", "b"]), str(tmp_path / "out")
    commands = [
        ["encode", str(path), "-o", out, "--trace", "--tokenizer", str(bpe)],
        ["merge", out, out, "-o", str(tmp_path / "both")],
        ["inspect", str(tmp_path / "both"), "--trace", "--doc", "1,-1"],
    ]
    script = (
        "import sys\n"
        "from tokpack.cli import main\n"
        f"print([main(words) for words in {commands}], 'pandas' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[0, 0, 0] False\n")


def test_names_that_are_not_clear(bpe: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "x.jsonl", ["one"])
    out = tmp_path / "out"
    inputs = [str(tmp_path / folder / "x.jsonl") for folder in ("a", "b")]
    tokpack.encode(inputs, str(out), tokenizer=str(bpe), trace=True)
    assert Origins(out).find("b/x.jsonl", 1)[0].document == 1
    with pytest.raises(UsageError, match=r"'x\.jsonl' .*a/x\.jsonl, .*b/x\.jsonl"):
        Origins(out).find("x.jsonl", 1)


def test_a_slow_tokenizer_is_said_once(
    bpe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", ["the of"])
    slow = word_tokenizer(tmp_path / "slow.json")
    with caplog.at_level(logging.WARNING, logger="tokpack"):
        tokpack.encode(str(path), str(tmp_path / "fast"), tokenizer=str(bpe))
        assert not caplog.records
        for _ in range(2):  # the second time there is nothing to do
            tokpack.encode(str(path), str(tmp_path / "words"), tokenizer=str(slow))
    assert len(caplog.records) == 1
    assert "runs on a slower library: " in caplog.text  # too short for a speed
    reason = tokpack.load_tokenizer(str(slow)).why_not_native
    assert reason
    path = write_jsonl(path, ["the of " * 10_000])
    said = command("encode", path, "-o", tmp_path / "said", "--tokenizer", slow).stderr
    assert said.count("tokpack: note: the tokenizer") == 1
    assert reason in said
    assert re.search(r"runs on a slower library \(about \d+\.\d MB/s per worker\)", said)
    quiet = command("encode", path, "-o", tmp_path / "quiet", "--tokenizer", slow, "--quiet")
    assert quiet.stderr == ""


def test_a_blend_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "blend.yaml").write_text("train:\n")
    asked = command("inspect", tmp_path / "blend.yaml", "--trace", "--doc", "1")
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "is not a dataset; blend and settings files are for tokpack blend" in asked.stderr
