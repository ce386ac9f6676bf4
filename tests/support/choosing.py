"""Records to choose from, and runs that choose."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokpack
from support.encoding_tools import documents
from tokpack.encoding import columns
from tokpack.encoding.first_records import FirstInputs
from tokpack.encoding.options import EncodeOptions
from tokpack.sources import discover

with suppress(ImportError):  # each worker would: duckdb looks for it when it evaluates
    import pandas  # noqa: F401

Record = dict[str, Any]


def records(count: int = 1200) -> list[Record]:
    rng = random.Random(1)
    made = []
    for number, text in enumerate(documents(count, words=30)):
        record: Record = {"id": number, "text": text, "lang": rng.choice(("en", "de", None))}
        record["score"] = rng.choice((0, 1, 0.5, 0.25))
        record["meta"] = {"source": rng.choice("abc"), "tags": [1, "x"]}
        if number % 7 == 0:
            del record["lang"]
        made.append(record)
    return made


def write(path: Path, rows: list[Record]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def encoded(inputs: Any, output: Path, bpe: Path, **options: Any) -> Any:
    source = str(inputs) if isinstance(inputs, Path) else inputs
    return tokpack.encode(source, output, tokenizer=str(bpe), **options)


def settled(source: Path, **options: Any) -> Any:
    """What is looked at before any work is begun."""
    request = EncodeOptions((str(source),), **options)
    sources = discover([str(source)], input_format="auto")
    return columns.settle(request, FirstInputs(request, sources))
