"""Datasets with tables of their documents, made without the encoder."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_128_digest

from support.indexed_twin import Plain, write_plainly
from tokpack.dataset import Manifest, MMapIndexedDataset, digest_file
from tokpack.dataset.outputs import new_datasets
from tokpack.dataset.table import MARK, table_metadata, table_path
from tokpack.dataset.writer import NewDataset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def token_digest(tokens: Sequence[int]) -> bytes:
    """XXH3-128 of ids as int32, little endian."""
    return xxh3_128_digest(np.array(tokens, "<i4").tobytes())


def make_with_table(prefix: Path, documents: Sequence[list[int]], **kept: Any) -> Path:
    """A dataset of documents of one sequence each, with a table that has ``kept`` columns."""
    write_plainly(f"{prefix}.raw", Plain("H", list(documents), list(range(len(documents) + 1))))
    with (
        MMapIndexedDataset(f"{prefix}.raw") as raw,
        new_datasets([str(prefix)], [], overwrite=True) as new,
    ):
        dataset = NewDataset(str(prefix), new)
        dataset.append(raw.tokens)
        total = len(documents)
        counts = {"records": total, "documents": total, "empty": 0, "rejected": 0}
        facts: dict[str, Any] = {"tokenizer": {"sha256": "0" * 64, "name": "made up"}}
        facts |= {"options": {}, "inputs": [], "text_bytes": 4 * len(raw.tokens), **counts}
        dataset.complete(np.uint16, raw.sizes, raw.doc_idx, facts)
        new.publish()
    add_table(prefix, **kept)
    return prefix


def ids_of(prefix: Path | str) -> list[list[int]]:
    """The ids of each sequence."""
    return [sequence.tolist() for sequence in MMapIndexedDataset(prefix, verify=True)]


def add_table(prefix: Path | str, **kept: Any) -> None:
    """Give a dataset a table of its documents, with ``kept`` columns."""
    manifest = Manifest.load(prefix)
    with MMapIndexedDataset(prefix) as dataset:
        documents = [dataset.document(number).tolist() for number in range(dataset.documents)]
    lengths = pa.array([len(one) for one in documents], pa.int64())
    digests = pa.array([token_digest(one) for one in documents], pa.binary(16))
    columns = {
        "source": pa.array(["in.jsonl"] * len(documents), pa.string()).dictionary_encode(),
        "line": pa.array(range(1, len(documents) + 1), pa.int64()),
        "bytes": lengths,
        "tokens": lengths,
        "text_xxh3": digests,
        "tokens_xxh3": digests,
    }
    table = pa.table({**columns, **{name: pa.array(values) for name, values in kept.items()}})
    pq.write_table(table.replace_schema_metadata(table_metadata(manifest.bin)), table_path(prefix))
    replace(manifest, table=digest_file(table_path(prefix))).save(prefix)


def other_table() -> bytes:
    """The file of a table of documents of some other dataset."""
    raw = io.BytesIO()
    pq.write_table(pa.table({"line": [1]}).replace_schema_metadata({MARK: b"{}"}), raw)
    return raw.getvalue()


def table_is_gone(prefix: Path) -> None:
    """Leave a dataset without its table."""
    replace(Manifest.load(prefix), table=None).save(prefix)
