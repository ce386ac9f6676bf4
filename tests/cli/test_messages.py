"""What commands say of wrong requests, word for word: messages.txt.

There a line that begins with $ is a command line, and the lines behind it are what it prints. To
add one, write its command line; after ``TOKPACK_WRITE_MESSAGES=1 make test ROOM=cli`` the file has
what is said now, and ``git diff`` shows what has changed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import idx_and_bin
from support.report_tools import make, run

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 16,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.9]}},
    "fp16": {"enabled": True, "initial_scale_power": 12, "hysteresis": 3},
    "activation_checkpointing": {"partition_activations": True},
}
MESSAGES = Path(__file__).with_name("messages.txt")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the command lines name."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TOKPACK_CACHE", "cache"), ("WORLD_SIZE", None)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    make(tmp_path, "wiki", ["one two", "", "three"], trace=True)
    make(tmp_path, "prefs", ["one", "two", "three", "four five"], trace=True)
    manifest = json.loads(Path("prefs.json").read_text())
    Path("prefs.json").write_text(json.dumps(manifest | {"pairs": True}))
    tokens, index = idx_and_bin([[1, 2, 3, 4]] * 3, [4] * 3, range(4), "uint16")
    for name, end in (("raw", None), ("broken", -1)):
        Path(f"{name}.bin").write_bytes(tokens)
        Path(f"{name}.idx").write_bytes(index[:end])
    for name, text in (
        ("bad.jsonl", '{"text": "one"}\n{"text": null}\n'),
        ("void.jsonl", ""),
        ("blank.jsonl", '{"text": ""}\n'),
        ("a.txt", "one\n"),
        ("zero.yaml", "seq_length: 0\n"),
        ("list.yaml", "[1]"),
        ("typo.yaml", "num-layer: 3"),
        ("fim.yaml", "datasets: [raw]\nfim: 5\n"),
        ("blend.yaml", "datasets: [raw]\nseq_length: 2\n"),
        ("ds.json", json.dumps(DEEPSPEED)),
    ):
        Path(name).write_text(text)
    Path("folder").mkdir()


def said(path: Path) -> Iterator[str]:
    """The file as it would be now."""
    for line in MESSAGES.read_text(encoding="utf-8").splitlines():
        if line.startswith(("#", "$")) or not line:
            yield line
        if line.startswith("$ "):
            done = run(*shlex.split(line[2:])[1:], code=1)
            assert not done.stdout, line
            yield from done.stderr.replace(f"{path}/", "").splitlines()


@pytest.mark.usefixtures("world")
def test_what_commands_say_of_wrong_requests(tmp_path: Path) -> None:
    now = list(said(tmp_path))
    if os.environ.get("TOKPACK_WRITE_MESSAGES"):
        MESSAGES.write_text("\n".join([*now, ""]), encoding="utf-8")
    assert now == MESSAGES.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"tokpack: |[#$] |$", line) for line in now)
