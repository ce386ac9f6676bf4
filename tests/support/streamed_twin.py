"""MDS and litdata folders as their formats are described, written one sample at a time."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CODES = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "uint32": 32, "int32": 33}
CODES |= {"uint64": 64, "int64": 65}
TORCH = {"uint8": 11, "int8": 12, "int16": 14, "int32": 16, "int64": 18, "uint16": 20}
COMPRESS = {"zstd": zstandard.compress, "gz": gzip.compress, "bz2": bz2.compress}


def _joined(samples: Sequence[bytes], between: bytes = b"") -> bytes:
    """Number of samples, offsets, what lies between, samples."""
    begin = 4 * (len(samples) + 2) + len(between)
    offsets = np.cumsum([begin, *map(len, samples)]).astype("<u4").tobytes()
    return len(samples).to_bytes(4, "little") + offsets + between + b"".join(samples)


def _value(ids: Sequence[int], dtype: str, encoding: str) -> bytes:
    """A value of MDS: its type and its length stand before it where the encoding has none."""
    array = np.array(ids, dtype)
    begin = b""
    if encoding == "ndarray":
        begin = bytes([CODES[dtype]])
    if encoding.startswith("ndarray") and encoding.count(":") < 2:
        width = next(w for w in range(4) if len(ids) < 1 << 8 * (1 << w))
        begin += bytes([1 << 2 | width]) + len(ids).to_bytes(1 << width, "little")
    return begin + array.tobytes()


def write_mds(
    folder: Path,
    shards: Sequence[Sequence[Sequence[int]]],
    dtype: str,
    encoding: str,
    *,
    compression: str = "",
    hashed: bool = False,
) -> None:
    """Write documents, by shards, with two other columns around that of the ids."""
    folder.mkdir()
    entries = []
    size = int(encoding.rpartition(":")[2]) * np.dtype(dtype).itemsize if ":" in encoding[8:] else 0
    for number, documents in enumerate(shards):
        samples = []
        for ids in documents:
            value, text = _value(ids, dtype, encoding), b"some text"
            sizes = ([] if size else [len(value)]) + [len(text)]
            head = np.array(sizes, "<u4").tobytes()
            samples.append(head + (7).to_bytes(8, "little") + value + text)
        content = _joined(samples, b'{"a": "config"}')
        name = f"shard.{number:05}.mds"
        raw: dict[str, Any] = {"basename": name, "bytes": len(content), "hashes": {}}
        if hashed:
            raw["hashes"] = {"sha256": hashlib.sha256(content).hexdigest()}
        packed = None
        if compression:
            content = COMPRESS[compression](content)
            name += f".{compression}"
            packed = {"basename": name, "bytes": len(content), "hashes": {}}
        (folder / name).write_bytes(content)
        entries.append(
            {
                "column_names": ["a", "tokens", "z"],
                "column_encodings": ["int", encoding, "str"],
                "column_sizes": [8, size or None, None],
                "format": "mds", "version": 2, "samples": len(documents), "raw_data": raw,
                "zip_data": packed, "compression": compression or None,
            }
        )  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


def write_litdata(
    folder: Path,
    chunks: Sequence[Sequence[Sequence[int]]],
    dtype: str,
    *,
    compression: str = "",
) -> None:
    """Write documents, by chunks, for the TokensLoader."""
    folder.mkdir()
    entries = []
    for number, documents in enumerate(chunks):
        content = _joined([np.array(ids, dtype).tobytes() for ids in documents])
        entry = {"chunk_bytes": len(content), "chunk_size": len(documents)}
        entry["dim"] = sum(map(len, documents))
        name = f"chunk-0-{number}.bin"
        if compression:
            content, name = COMPRESS[compression](content), f"chunk-0-{number}.{compression}.bin"
        (folder / name).write_bytes(content)
        entries.append({**entry, "filename": name})
    data_format = [f"no_header_tensor:{TORCH[dtype]}"]
    config = {"compression": compression or None, "data_format": data_format}
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config}))
