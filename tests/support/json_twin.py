"""JSON lines as Python reads and writes them: the oracle of the native extractor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tokpack import _core

if TYPE_CHECKING:
    import random

LEVELS = _core.simd_levels()
JSON_SPACE = b" \t\r"


def oracle(line: bytes, key: str) -> bytes | None:
    """What Python's json finds under the key, as UTF-8; None when that is no Unicode text."""
    try:
        record = json.loads(line.decode("utf-8"))
        return record[key].encode("utf-8") if isinstance(record[key], str) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def extract(block: bytes, key: str = "text", level: _core.Level = "auto") -> list[bytes | None]:
    """The documents of a block; None for a slow one. Checks all that holds for every block."""
    result = _core.JsonLines(key, level).extract(block)
    lines = block.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    begins = np.cumsum([0] + [len(line) + 1 for line in lines])
    records = [i for i, line in enumerate(lines) if line.strip(JSON_SPACE)]
    assert result.line_count == len(lines)
    assert result.lines.tolist() == records
    assert result.spans.shape == (len(records), 2)
    data = result.data.tobytes()
    assert len(data) <= len(block)
    documents: list[bytes | None] = [data[begin:end] for begin, end in result.spans.tolist()]
    for document, begin, end in result.slow.tolist():
        line = records[document]
        assert (begin, end) == (begins[line], begins[line] + len(lines[line]))
        assert documents[document] == b""
        documents[document] = None
    for document, line in zip(documents, records, strict=True):
        if document is not None:
            assert document == oracle(lines[line], key)
    return documents


def extract_at_all_levels(block: bytes, key: str = "text") -> list[bytes | None]:
    results = [extract(block, key, level) for level in LEVELS]
    assert all(result == results[0] for result in results)
    return results[0]


def write_string(text: str, rng: random.Random) -> str:
    """A JSON string with each character in one of its spellings."""
    short = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "\\": "\\", "/": "/"}
    out = []
    for char in text:
        spellings = [] if char < " " or char in '"\\' else [char] * 8
        if char in short:
            spellings += ["\\" + short[char]] * 8
        units = char.encode("utf-16-be")
        hexes = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
        spellings.append("".join("\\u" + rng.choice([h, h.upper()]) for h in hexes))
        out.append(rng.choice(spellings))
    return '"' + "".join(out) + '"'


def write_value(value: object, rng: random.Random) -> str:
    """A JSON value with random white space."""

    def space() -> str:
        return rng.choice(["", "", "", " ", "\t", "\r", "  "])

    if isinstance(value, str):
        return write_string(value, rng)
    if isinstance(value, list):
        body = ",".join(space() + write_value(item, rng) + space() for item in value)
        return "[" + (body or space()) + "]"
    if isinstance(value, dict):
        members = (
            space()
            + (json.dumps(name, ensure_ascii=False) if name.isalnum() else '"k"')
            + space()
            + ":"
            + space()
            + write_value(item, rng)
            + space()
            for name, item in value.items()
        )
        return "{" + (",".join(members) or space()) + "}"
    return json.dumps(value)
