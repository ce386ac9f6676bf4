"""Small datasets with manifests, which tests break and verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.indexed_twin import Plain, write_plainly
from tokpack.dataset import Manifest, digest_file
from tokpack.dataset.verify import verify as check
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

EOD = 99
VOCAB = 100
# Two sentences in the first document, none in the second.
SEQUENCES = [[1, 2, 3], [4, EOD], [5, EOD], [6, 7, 8, EOD]]
BASE = Plain("H", SEQUENCES, [0, 2, 2, 3, 4])
# One sequence a document, and every document has one: what EODs alone can tell.
FLAT = Plain("H", [[1, 2, EOD], [EOD], [5, 6, 7, EOD]], [0, 1, 2, 3])


def manifest_of(plain: Plain, prefix: Path, **changes: Any) -> Manifest:
    documents = len(plain.doc_idx) - 1
    counts = {
        "documents": documents,
        "sequences": len(plain.sequences),
        "tokens": sum(map(len, plain.sequences)),
    }
    values: dict[str, Any] = {
        "tokpack_version": "0",
        "created": "2026-01-01T00:00:00+00:00",
        "tokenizer": {"name": "x", "vocab_size": VOCAB, "eod_id": EOD},
        "options": {"append_eod": True, "empty": "skip"},
        "inputs": [{"name": "a", "records": documents + 3, **counts}],
        "records": documents + 3,
        "empty": 1,
        "rejected": 2,
        "text_bytes": 10,
        "dtype": "uint16",
        "bin": digest_file(f"{prefix}.bin"),
        "idx": digest_file(f"{prefix}.idx"),
        **counts,
    }
    return Manifest(**{**values, **changes})


def make(prefix: Path, plain: Plain = BASE, *, manifest: bool = True) -> Path:
    prefix.parent.mkdir(exist_ok=True)
    write_plainly(prefix, plain)
    if manifest:
        manifest_of(plain, prefix).save(prefix)
    return prefix


def fault(prefix: Path, **options: Any) -> str:
    with pytest.raises(FormatError) as caught:
        check(prefix, **options)
    return str(caught.value)


# -- what is whole -------------------------------------------------------------------------------
