"""What several files of these tests take."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
from support.encoding_tools import dataset, write_jsonl
from support.in_process_tools import TEXTS

import tokpack
from tokpack.encoding import plan
from tokpack.sources import columns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory, bpe: Path) -> tuple[bytes, bytes]:
    """The dataset of the same documents as JSON lines."""
    path = write_jsonl(tmp_path_factory.mktemp("lines") / "lines.jsonl", TEXTS)
    tokpack.encode(path, path.with_suffix(""), tokenizer=bpe, workers=1)
    return dataset(path.with_suffix(""))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = functools.partial(plan.make_parts, smallest_bytes=32 << 10)
    monkeypatch.setattr(plan, "make_parts", cut)
    monkeypatch.setattr(columns, "_GROUP_BYTES", 16 << 10)
