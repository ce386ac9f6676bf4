"""A pass over documents gives each of them once, in order, however its runs are cut."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents import DOCUMENTS, Documents, plain
from support.indexed_twin import write_plainly

import tokpack
from tokpack.dataset import MMapIndexedDataset
from tokpack.documents import base


@given(
    st.lists(DOCUMENTS, min_size=1, max_size=3),
    st.sampled_from("Hiqb"),
    st.integers(1, 40),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_runs_are_all_documents_in_order(
    parts: list[Documents], letter: str, run_bytes: int, threads: int
) -> None:
    if letter == "b":
        parts = [[[[t % 100 for t in s] for s in d] for d in part] for part in parts]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "RUN_BYTES", run_bytes)
        for number, part in enumerate(parts):
            write_plainly(Path(name) / f"part{number}", plain(part, letter))
        prefixes = [Path(name) / f"part{number}" for number in range(len(parts))]
        tokpack.merge(prefixes, Path(name) / "whole", virtual=True)
        dataset = MMapIndexedDataset(Path(name) / "whole")
        expected = [[t for s in document for t in s] for part in parts for document in part]
        found: dict[int, list[int]] = {}

        def look(first: int, tokens: Any, spans: Any) -> int:
            assert tokens.dtype in (np.uint16, np.uint32, np.uint64)
            for number, (begin, end) in enumerate(spans.tolist(), first):
                assert number not in found
                found[number] = tokens[begin:end].tolist()
            return first

        sizes: list[int] = []
        runs = list(base.scan_documents(dataset, look, sizes.append, threads=threads))
        assert runs == sorted(runs)
        assert sum(sizes) == dataset.token_count * dataset.dtype.itemsize
        for number, document in enumerate(expected):
            assert found.get(number, []) == document
