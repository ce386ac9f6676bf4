"""Functions for ``map``, as users would write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def shout(batch: pa.RecordBatch) -> dict[str, list[str]]:
    return {"text": [text.upper() for text in batch.column("text").to_pylist()]}


def shout_lists(batch: dict[str, list[Any]]) -> dict[str, Any]:
    """As Hugging Face's batched map."""
    return {"text": [text.upper() for text in batch["text"]], "__row__": batch["__row__"]}


def shout_scalars(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"text": [text.upper() for text in batch["text"]]}


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0))


def copies(batch: pa.RecordBatch) -> pa.Table:
    """Each record as often as the last digit of its id says."""
    times = np.array(batch.column("id").cast(pa.int64())) % 3
    return pa.Table.from_batches([batch]).take(np.repeat(np.arange(len(times)), times))


def first_of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 1)


def numbered(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"text": [f"{i} {text}" for i, text in enumerate(batch.column("text").to_pylist())]}


def lost(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"text": batch.column("text").to_pylist()[1:]}


def backwards(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(np.arange(batch.num_rows)[::-1]))


def nothing(_batch: pa.RecordBatch) -> None:
    return None


def other_column(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"body": batch.column("text")}


def numbers(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"text": batch.column("id")}


def fails_late(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 1100 in batch.column("id").to_pylist():
        _ = [{}["nothing for 1100"] for _ in "a"]
    return batch
