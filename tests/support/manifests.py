"""Manifests of datasets that tests write, and whether one describes its dataset."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from support.indexed_twin import read_plainly
from tokpack.dataset import Manifest, digest_file, has_digest

if TYPE_CHECKING:
    from pathlib import Path


def manifest_for(prefix: str | Path, tokenizer: dict[str, Any], **more: Any) -> Manifest:
    """Write a manifest beside a dataset."""
    found = read_plainly(prefix)
    documents = len(found.doc_idx) - 1
    facts: dict[str, Any] = {
        "tokpack_version": "0.1.0",
        "created": "2026-11-20T18:00:00+00:00",
        "tokenizer": tokenizer,
        "options": {"append_eod": True, "workers": os.path.basename(prefix)},
        "inputs": [{"name": f"{os.path.basename(prefix)}.jsonl", "documents": documents}],
        "records": documents + 3,
        "documents": documents,
        "sequences": len(found.sequences),
        "tokens": sum(map(len, found.sequences)),
        "empty": 2,
        "rejected": 1,
        "text_bytes": 100,
        "dtype": "uint16",
        "bin": digest_file(f"{prefix}.bin"),
        "idx": digest_file(f"{prefix}.idx"),
    }
    manifest = Manifest(**{**facts, **more})
    manifest.save(prefix)
    return manifest


def in_order(manifest: Manifest, prefix: str | Path) -> None:
    """Check a written manifest against the files it describes."""
    assert manifest == Manifest.load(prefix)
    assert has_digest(f"{prefix}.bin", manifest.bin)
    assert "xxh3_blocks" in manifest.bin
    assert manifest.idx == digest_file(f"{prefix}.idx")
    found = read_plainly(prefix)
    assert manifest.sequences == len(found.sequences)
    assert manifest.tokens == sum(map(len, found.sequences))
    assert manifest.records == manifest.documents + manifest.empty + manifest.rejected
