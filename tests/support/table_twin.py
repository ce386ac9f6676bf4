"""Records of many kinds, what their dataset's table must have, and runs that are cut small."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
import zstandard
from pyarrow import parquet

import tokpack
from tokpack.dataset import Manifest, Origins, digest_file
from tokpack.encoding import part as part_module
from tokpack.encoding import plan as plan_module
from tokpack.encoding import worker as worker_module
from tokpack.sources import LineStream, Part, make_parts, read

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    import pytest

    from tokpack.sources import Source


def record(kind: str, number: int, rng: random.Random) -> bytes:
    """A line of one kind."""
    if kind == "blank":
        return rng.choice((b"", b" ", b"\r"))
    if kind == "bad":
        return rng.choice((b"{", b'{"text": null}', b'{"other": "a"}', b'"x"', b'{"text": "\xff"}'))
    text = "" if kind == "empty" else f"{number} " + "word é " * rng.randrange(60)
    values = {
        "id": f"é{number}",
        "n": number,
        "score": rng.choice((1, 0.5, -2e300, None)),
        "mixed": rng.choice(("a", "a", 1, 2.5, True, 2**70, ["b", {"c": None}])),
        "flag": rng.choice((True, False)),
        "meta": {"depth": {"x": rng.random()}},
    }
    chosen = {name: value for name, value in values.items() if rng.random() < 0.8}
    # In one order or the other, with escapes or without: what is read slowly, too.
    pairs = [("text", text), ("title", f"t{number}"), *chosen.items()]
    rng.shuffle(pairs)
    line = json.dumps(dict(pairs), ensure_ascii=rng.random() < 0.5)
    return (line.replace('"n"', '"\\u006e"') if rng.random() < 0.1 else line).encode()


KEPT = {"id": "id", "n": "n", "s": "score", "mixed": "mixed", "flag": "flag", "meta": "meta"}
KEPT |= {"x": "meta.depth.x", "none": "nothing"}
KEEP = [f"{name}={key}?" for name, key in KEPT.items()]  # few records may have none of them


def value_in(record: Any, key: str) -> Any:
    for name in key.split("."):
        record = record.get(name) if isinstance(record, dict) else None
    return record


def column_twin(values: list[Any]) -> list[Any]:
    """What a column has, plainly: its values if they are of one type, or else texts."""
    types = {type(value) for value in values} - {type(None)}
    if types == {int} and all(-(2**63) <= value < 2**63 for value in values if value is not None):
        return values
    if types in ({float}, {int, float}) and all(
        abs(value) < 2**63 for value in values if type(value) is int
    ):
        return [None if value is None else float(value) for value in values]
    if types == {bool}:
        return values
    return [
        value
        if value is None or isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for value in values
    ]


def check_table(prefix: Path, records: list[tuple[str, int, bytes]]) -> None:
    """The table against the (input, line, JSON) of each document."""
    table = parquet.read_table(f"{prefix}.docs.parquet")
    dataset = tokpack.MMapIndexedDataset(prefix)
    parsed = [json.loads(line) for _, _, line in records]
    texts = [record["text"].encode() for record in parsed]
    ids = [dataset.document(number).astype("<i4").tobytes() for number in range(len(records))]
    expected: dict[str, list[Any]] = {
        "source": [name for name, _, _ in records],
        "line": [line for _, line, _ in records],
        "bytes": list(map(len, texts)),
        "tokens": [len(one) // 4 for one in ids],
        "text_xxh3": [xxhash.xxh3_128_digest(text) for text in texts],
        "tokens_xxh3": [xxhash.xxh3_128_digest(one) for one in ids],
    }
    for name, key in KEPT.items():
        expected[name] = column_twin([value_in(record, key) for record in parsed])
    assert table.column_names == list(expected)
    for name, values in expected.items():
        assert table[name].to_pylist() == values, name


def packed(data: bytes, compression: str) -> bytes:
    if compression == "gz":
        return gzip.compress(data, 1)
    if compression == "zst":  # in frames
        frames = [data[at : at + 4000] for at in range(0, len(data), 4000)]
        return b"".join(zstandard.ZstdCompressor().compress(frame) for frame in frames)
    return data


def small_parts(patch: pytest.MonkeyPatch) -> None:
    """Cut inputs into many parts, segments and blocks however small they are."""

    def cut(sources: Sequence[Source], *, ways: int, target_bytes: int) -> list[Part]:
        parts = make_parts(sources, ways=max(ways, 3), target_bytes=2500, smallest_bytes=1)
        return [
            Part(part.source, "stream", 0, 3000, 1)
            if part.kind == "whole" and sources[part.source].compression == "gz"
            else part
            for part in parts
        ]

    patch.setattr(plan_module, "make_parts", cut)
    patch.setattr(part_module, "read", functools.partial(read, block_bytes=900))
    patch.setattr(worker_module, "LineStream", functools.partial(LineStream, block_bytes=900))


def check(prefix: Path, kinds: list[list[str]], names: list[str], *, empty: str = "skip") -> None:
    """The tables of a dataset against what the lines are."""
    origins = Origins(prefix)
    kept = ("doc", "empty") if empty == "document" else ("doc",)
    expected = [
        (names[source], line)
        for source, lines in enumerate(kinds)
        for line, kind in enumerate(lines, 1)
        if kind in kept
    ]
    assert [(origin.source, origin.line) for origin in origins] == expected
    words = {"doc": "document", "bad": "rejected", "blank": "nothing", "empty": "empty"}
    if empty == "document":
        words["empty"] = "document"
    for name, lines in zip(names, kinds, strict=True):
        for line, kind in enumerate(lines, 1):
            (origin,) = origins.find(name, line)
            assert origin.became == words[kind], (name, line, origin)
            if origin.document is not None:
                assert origins[origin.document] == origin
            if kind == "bad":
                assert origin.reason
        assert origins.find(name, len(lines) + 1)[0].became == "nothing"
    manifest = Manifest.load(prefix)
    assert manifest.table == digest_file(f"{prefix}.docs.parquet")
    dropped = Path(f"{prefix}.dropped.parquet")
    assert manifest.dropped == (digest_file(dropped) if dropped.exists() else None)
    assert dropped.exists() == any(
        kind == "bad" or (kind == "empty" and empty == "skip") for lines in kinds for kind in lines
    )
    assert tokpack.verify(prefix).unchecked == ()


def lines_of(prefix: Path) -> list[int]:
    return [origin.line for origin in Origins(prefix)]
