"""Inputs of every kind, the run that is disturbed, and what must come out of it."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import zstandard
from support.encoding_tools import byte_tokenizer, documents

import tokpack

if TYPE_CHECKING:
    from collections.abc import Iterator


OPTIONS: dict[str, Any] = {"on_error": "skip", "keys": ["text"], "trace": True}
SUFFIXES = (
    "bin",
    "idx",
    "docs.parquet",
    "dropped.parquet",
    "rejects.jsonl",
)  # of the result, beside its manifest
KINDS = ("jsonl", "zst", "frames.zst", "gz", "parquet")


def make_inputs(folder: Path, total_bytes: int, files: int, seed: int = 0) -> list[Path]:
    """Files of all kinds, of about ``total_bytes`` of text in all, with empty and bad records."""
    rng = random.Random(seed)
    pool = [json.dumps(text) for text in documents(400, words=200, seed=seed)]
    paths = []
    for number in range(files):
        lines = _lines(rng, pool, total_bytes // files, number)
        paths.append(_write(folder / f"{number:03d}.{KINDS[number % len(KINDS)]}", lines))
    return paths


def _lines(rng: random.Random, pool: list[str], size: int, number: int) -> list[bytes]:
    lines: list[bytes] = []
    have = 0
    while have < size:
        text = rng.choice(pool)
        line = f'{{"id": "{number}-{len(lines)}", "text": {text}}}\n'
        if len(lines) == 3 or rng.random() < 0.002:
            line = '{"text": "cut off\n'
        lines.append(line.encode())
        have += len(line)
    return lines


def _write(path: Path, lines: list[bytes]) -> Path:
    kind = path.name.partition(".")[2]
    if kind == "parquet":
        good = [json.loads(line)["text"] for line in lines if line.endswith(b"}\n")]
        table = pyarrow.table({"text": good})
        pyarrow.parquet.write_table(table, path, row_group_size=max(1, len(good) // 7))
        return path
    data = b"".join(lines)
    if kind == "zst":
        data = zstandard.ZstdCompressor(level=1).compress(data)
    elif kind == "frames.zst":
        step = max(1, len(data) // 9)
        chunks = [data[at : at + step] for at in range(0, len(data), step)]
        data = b"".join(zstandard.ZstdCompressor(level=1).compress(chunk) for chunk in chunks)
    elif kind == "gz":
        data = gzip.compress(data, 1, mtime=0)
    path.write_bytes(data)
    return path


@dataclass(frozen=True)
class Whole:
    """A finished dataset: digests of its files, and its counts.

    Of several .bin files these are of what ``merge`` makes of them, and there are no tables.
    """

    digests: dict[str, str]
    counts: dict[str, Any]

    @classmethod
    def read(cls, prefix: Path) -> Whole:
        manifest = tokpack.Manifest.load(prefix)
        paths = {suffix: Path(f"{prefix}.{suffix}") for suffix in SUFFIXES}
        merged = Path(f"{prefix}-merged")
        if manifest.pieces:
            del paths["docs.parquet"], paths["dropped.parquet"]
            tokpack.merge([prefix], merged)
            paths |= {suffix: Path(f"{merged}.{suffix}") for suffix in ("bin", "idx")}
        digests = {}
        for suffix, path in paths.items():
            if suffix.endswith(".parquet"):  # its footer has a sum of blocks, smaller here
                rows = repr(pyarrow.parquet.read_table(path).to_pydict()).encode()
                digests[suffix] = hashlib.sha256(rows).hexdigest()
                continue
            with path.open("rb") as file:
                digests[suffix] = _digest(file)
        for path in merged.parent.glob(f"{merged.name}.*"):
            path.unlink()
        names = ("records", "documents", "sequences", "tokens", "empty", "rejected", "text_bytes")
        counts = {name: getattr(manifest, name) for name in names}
        assert counts["records"] == counts["documents"] + counts["empty"] + counts["rejected"]
        for entry in manifest.inputs:
            assert entry["records"] == entry["documents"] + entry["empty"] + entry["rejected"]
        counts["inputs"] = [{name: entry[name] for name in names} for entry in manifest.inputs]
        assert sum(1 for _ in _rejects(prefix)) == counts["rejected"]
        return cls(digests, counts)


def names_of(prefix: Path) -> set[str]:
    """The names of the files of a finished run."""
    records = tokpack.Manifest.load(prefix).pieces or ()
    pieces = [record.prefix for record in records] or [prefix.name]
    kinds = ("json", *SUFFIXES[:-1])
    names = {f"{piece}.{kind}" for piece in pieces for kind in kinds}
    return names | {f"{prefix.name}.json", f"{prefix.name}.{SUFFIXES[-1]}"}


def _digest(file: Any) -> str:
    state = hashlib.sha256()
    while block := file.read(1 << 20):
        state.update(block)
    return state.hexdigest()


def check_same(made: Whole, expected: Whole) -> None:
    """Assert that a dataset is the expected one, as far as both have the same files."""
    assert made.digests == {name: expected.digests[name] for name in made.digests}
    assert made.counts == expected.counts


def _rejects(prefix: Path) -> Iterator[dict[str, Any]]:
    with Path(f"{prefix}.rejects.jsonl").open() as file:
        for line in file:
            yield json.loads(line)


@dataclass(frozen=True)
class Setting:
    """Inputs, tokenizer, and the undisturbed result."""

    inputs: list[Path]
    tokenizer: Path
    expected: Whole

    @classmethod
    def make(cls, folder: Path, total_bytes: int, files: int, seed: int = 0) -> Setting:
        source = folder / "in"
        source.mkdir(parents=True)
        inputs = make_inputs(source, total_bytes, files, seed)
        tokenizer = byte_tokenizer(folder / "tokenizer.json")
        prefix = folder / "undisturbed"
        tokpack.encode(
            [str(path) for path in inputs], str(prefix), tokenizer=str(tokenizer), **OPTIONS
        )
        return cls(inputs, tokenizer, Whole.read(prefix))

    def request(self, output: Path, **more: Any) -> dict[str, Any]:
        """The keyword arguments of ``tokpack.encode``."""
        return {
            "inputs": [str(path) for path in self.inputs],
            "output": str(output),
            "tokenizer": str(self.tokenizer),
            **OPTIONS,
            **more,
        }
