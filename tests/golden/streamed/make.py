"""Make the folders beside this file, by the libraries whose formats they are.

    pip install mosaicml-streaming litdata
    python tests/golden/streamed/make.py

It ran once, with mosaicml-streaming 0.13.0 and litdata 0.2.76. Each folder has the documents of
documents.json, those named blocks the same ids in blocks of 8, without the last few.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
from streaming.base.format.mds.writer import MDSWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
Ids = np.ndarray[Any, np.dtype[np.int64]]


def mds(
    name: str,
    documents: Sequence[Ids],
    columns: dict[str, str],
    make: Callable[[Ids], dict[str, Any]],
    **options: Any,
) -> None:
    (HERE / name).mkdir()
    with MDSWriter(out=str(HERE / name), columns=columns, **{"size_limit": 400, **options}) as file:
        for ids in documents:
            file.write(make(ids))


def litdata(
    name: str, documents: Sequence[Ids], make: Callable[[Ids], Any], **options: Any
) -> None:
    (HERE / name).mkdir()
    file = BinaryWriter(str(HERE / name), chunk_bytes=200, item_loader=TokensLoader(), **options)
    for number, ids in enumerate(documents):
        file.add_item(number, make(ids))
    file.done()
    file.merge()


def main() -> None:
    random = np.random.default_rng(5)
    documents = [np.append(random.integers(1, 300, size), 0) for size in (5, 0, 17, 3, 29, 1, 8)]
    ids = np.concatenate(documents)
    blocks = [ids[at : at + 8] for at in range(0, len(ids) - 7, 8)]
    (HERE / "documents.json").write_text(json.dumps([one.tolist() for one in documents]))
    mds(
        "mds-int32", documents, {"tokens": "ndarray:int32"},
        lambda one: {"tokens": one.astype(np.int32)}, hashes=["sha1", "xxh64"],
    )  # fmt: skip
    mds(
        "mds-dynamic", documents, {"input_ids": "ndarray", "source": "str", "n": "int"},
        lambda one: {"input_ids": one.astype(np.uint16), "source": "x", "n": len(one)},
    )  # fmt: skip
    mds(
        "mds-bytes-zstd", documents, {"tokens": "bytes"},
        lambda one: {"tokens": one.tobytes()}, compression="zstd:7", hashes=["sha1"],
    )  # fmt: skip
    mds(
        "mds-blocks-gz", blocks, {"tokens": "ndarray:uint16:8"},
        lambda one: {"tokens": one.astype(np.uint16)}, compression="gz", size_limit=300,
    )  # fmt: skip
    litdata("litdata-int32", documents, lambda one: torch.from_numpy(one.astype(np.int32)))
    litdata("litdata-numpy", documents, lambda one: one.astype(np.uint16))
    litdata(
        "litdata-zstd", documents, torch.from_numpy, compression="zstd", compression_level="chunk"
    )
    litdata("litdata-blocks", blocks, torch.from_numpy)


if __name__ == "__main__":
    main()
