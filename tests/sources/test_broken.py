"""Whatever the bytes of a file are: documents in UTF-8, or an error of ours; no crash, no hang."""

from __future__ import annotations

import io
import json
import random
from typing import TYPE_CHECKING

import pytest
from support.archives import dat, tar, zipped
from support.sources_twin import COMPRESS, write

from tokpack.errors import InputError
from tokpack.sources import discover, make_parts, read

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [f"\u00e9{i} " * (i % 30) for i in range(200)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
MEMBERS = {"a.jsonl": LINES, "b.txt": LINES[:100]}


def tables() -> dict[str, bytes]:
    pa = pytest.importorskip("pyarrow", reason="needs the parquet extra")
    from pyarrow import parquet

    found = {}
    for kind in (pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        data = pa.table({"text": pa.array([*TEXTS, None], kind)})
        for name, writer in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
            raw = io.BytesIO()
            with writer(raw, data.schema) as open_writer:
                open_writer.write_table(data)
            found[f"{name} of {kind}"] = raw.getvalue()
        raw = io.BytesIO()
        parquet.write_table(data, raw, compression="none")
        found[f"parquet of {kind}"] = raw.getvalue()
    return found


def streams() -> dict[str, bytes]:
    found = {name or "plain": compress(LINES) for name, compress in COMPRESS.items()}
    found["frames"] = COMPRESS["zst"](LINES[:3000]) + COMPRESS["zst"](LINES[3000:])
    found["array"] = json.dumps([{"text": text} for text in TEXTS]).encode()
    found["tar"], found["zip"] = tar(MEMBERS), zipped(MEMBERS)
    found["tar.gz"] = COMPRESS["gz"](found["tar"])
    found["dat"] = dat(text.encode() for text in TEXTS)
    return found


def damaged(raw: bytes, chance: random.Random) -> bytes:
    broken = bytearray(raw)
    for _ in range(chance.choice([1, 1, 3, 10])):
        at = chance.randrange(len(broken))
        flipped = broken[at] ^ 1 << chance.randrange(8)
        broken[at] = chance.choice([0, 255, chance.randrange(256), flipped])
    return bytes(broken[: chance.randrange(len(broken))] if chance.random() < 0.2 else broken)


@pytest.mark.parametrize("kinds", [streams, tables])
def test_damaged_files(kinds, tmp_path: Path) -> None:
    chance = random.Random(20)
    messages = []
    for name, raw in kinds().items():
        suffix = ".dat" if name == "dat" else ""
        for _ in range(60):
            path = write(tmp_path, f"damaged{suffix}", damaged(raw, chance))
            try:
                read_everything(path)
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 200
    assert all(message.startswith(str(tmp_path)) for message in messages)


def read_everything(path: str) -> None:
    sources = discover([path])
    for part in make_parts(sources, ways=2, target_bytes=1000, smallest_bytes=1):
        for batch in read(sources[0], part, ["text"], max_document_bytes=1 << 20):
            documents = batch.documents["text"]
            assert batch.records == len(documents) + len(batch.bad)
            for index in range(len(documents)):
                documents.text(index).decode()
