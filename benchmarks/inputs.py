"""Build large inputs from the corpora, and say which bytes a right dataset of them has.

The documents of a corpus, or of several in shuffled order, are repeated until there are enough
bytes. What the answer is follows from the datasets of the single corpora, which are held to the
checksums that other programs' datasets have.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import random
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from common import Data, Row

MIXES = {
    "english": ("english",),
    "code": ("code",),
    "multi": ("multi",),
    "owt": ("owt",),
    "mix": ("english", "code", "multi"),
}
LEVEL = 3
_SEED = 1


@dataclass(frozen=True)
class Corpus:
    """The documents of a mix: their lines, and tokens as an independent reader finds them."""

    lines: list[bytes]
    texts: npt.NDArray[np.int64]  # UTF-8 bytes of each document's text
    tokens: list[npt.NDArray[np.uint16]]


@dataclass(frozen=True)
class Inputs:
    """A large input: the same documents as plain and as compressed files, and the answer."""

    name: str
    jsonl: tuple[Path, ...]
    zst: tuple[Path, ...]
    documents: int
    text_bytes: int  # UTF-8 text of the documents
    json_bytes: int
    rounds: float  # how often a document of the corpora occurs
    bin_sha256: str
    idx_sha256: str

    def files(self, compression: str) -> tuple[Path, ...]:
        """The files with a compression: "" or zst."""
        return self.zst if compression else self.jsonl

    def sizes(self) -> Row:
        """What a row says of it."""
        names = ("documents", "rounds", "text_bytes", "json_bytes")
        return {"corpus": self.name} | {name: getattr(self, name) for name in names}


def build(
    data: Data, mix: str, size: int, files: int, work: Path, *, compressed: bool = True
) -> Inputs:
    """Write ``files`` files with ``size`` bytes of text together; reuse those written before."""
    folder = work / f"{mix}-{size}-{files}"
    folder.mkdir(parents=True, exist_ok=True)
    jsonl = tuple(folder / f"{number:02d}.jsonl" for number in range(files))
    zst = tuple(path.with_suffix(".jsonl.zst") for path in jsonl) if compressed else ()
    description = folder / "inputs.json"
    if description.exists():
        answer = json.loads(description.read_text())
    else:
        corpus = load(data, mix, work)
        order = _order(corpus, size)
        _write([corpus.lines[number] for number in order], jsonl)
        answer = _answer(corpus, order)
        description.write_text(json.dumps(answer))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(_compress, (path for path in zst if not path.exists())))
    return Inputs(mix, jsonl, zst, **answer)


def load(data: Data, mix: str, work: Path) -> Corpus:
    """The documents of a mix and their tokens, checked against the known checksums."""
    lines: list[bytes] = []
    tokens: list[npt.NDArray[np.uint16]] = []
    for name in MIXES[mix]:
        lines += [line + b"\n" for line in data.lines(name).split(b"\n")[:-1]]
        prefix = work / name
        if not prefix.with_suffix(".bin").exists():
            subprocess.run(
                encode_command(data, [data.corpus(name)], prefix, workers=1),
                check=True,
                capture_output=True,
            )
        expected = data.expected(name)
        for kind in ("bin", "idx"):
            if sha256(prefix.with_suffix(f".{kind}")) != expected[kind]:
                sys.exit(f"{prefix}.{kind} is not what other programs write: see expected.json")
        tokens += _documents(prefix)
    texts = np.array([len(json.loads(line)["text"].encode()) for line in lines])
    return Corpus(lines, texts, tokens)


def encode_command(data: Data, inputs: list[Path], prefix: Path, *, workers: int) -> list[str]:
    """The command that is measured."""
    return [
        *(sys.executable, "-m", "tokpack", "encode", *map(str, inputs), "-o", str(prefix)),
        *("--vocab-file", str(data.vocab_file), "--merge-file", str(data.merge_file)),
        *("--workers", str(workers), "--overwrite"),
    ]


def check(inputs: Inputs, prefix: Path) -> None:
    """Exit when a dataset is not the right one."""
    right = {".bin": inputs.bin_sha256, ".idx": inputs.idx_sha256}
    if any(sha256(prefix.with_suffix(suffix)) != sums for suffix, sums in right.items()):
        sys.exit(f"{prefix} is not the right dataset of {inputs.name}")


def remove(prefix: Path) -> None:
    """Remove a dataset and what an interrupted run left of it."""
    for suffix in (".bin", ".idx", ".json"):
        prefix.with_suffix(suffix).unlink(missing_ok=True)
    shutil.rmtree(prefix.with_suffix(".unfinished"), ignore_errors=True)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def _documents(prefix: Path) -> list[npt.NDArray[np.uint16]]:
    """The documents of a uint16 dataset: a reader of its own, to be no judge in its own cause."""
    index = prefix.with_suffix(".idx").read_bytes()
    count = struct.unpack_from("<Q", index, 18)[0]
    ends = np.cumsum(np.frombuffer(index, "<i4", count, 34), dtype=np.int64)
    return np.split(np.fromfile(prefix.with_suffix(".bin"), "<u2"), ends[:-1])


def _order(corpus: Corpus, size: int) -> list[int]:
    """Which documents, in order: round after round, each in an order of its own."""
    chance = random.Random(_SEED)
    everything = list(range(len(corpus.lines)))
    order: list[int] = []
    while size > 0:
        chance.shuffle(everything)
        for number in everything:
            order.append(number)
            size -= int(corpus.texts[number])
            if size <= 0:
                break
    return order


def _write(lines: list[bytes], paths: tuple[Path, ...]) -> None:
    """Cut lines into files of about the same size."""
    ends = np.cumsum([len(line) for line in lines])
    cuts = np.searchsorted(ends, [ends[-1] * n // len(paths) for n in range(1, len(paths))])
    begins = [0, *(cuts + 1).tolist(), len(lines)]
    for path, begin, end in zip(paths, begins, begins[1:], strict=False):
        with open(path, "wb", buffering=1 << 20) as file:
            file.writelines(lines[begin:end])


def _compress(path: Path) -> None:
    """Write ``x.jsonl.zst`` from ``x.jsonl``, as one frame at the usual level."""
    source = path.with_suffix("")
    begun = path.with_suffix(".begun")
    with open(source, "rb") as plain, open(begun, "wb") as packed:
        compressor = zstandard.ZstdCompressor(level=LEVEL)
        compressor.copy_stream(plain, packed, size=source.stat().st_size)
    begun.rename(path)


def _answer(corpus: Corpus, order: list[int]) -> dict[str, object]:
    """The sizes, and the checksums of the .bin and .idx that a right program writes."""
    lengths = np.array([len(corpus.tokens[number]) for number in order], "<i4")
    ends = 2 * np.cumsum(lengths, dtype="<i8")
    index = hashlib.sha256(b"MMIDIDX\x00\x00")
    index.update(struct.pack("<QBQQ", 1, 8, len(order), len(order) + 1))
    index.update(lengths.tobytes())
    index.update((ends - 2 * lengths).tobytes())
    index.update(np.arange(len(order) + 1, dtype="<i8").tobytes())
    content = hashlib.sha256()
    for number in order:
        content.update(np.ascontiguousarray(corpus.tokens[number]).data)
    return {
        "documents": len(order),
        "text_bytes": int(corpus.texts[order].sum()),
        "json_bytes": sum(len(corpus.lines[number]) for number in order),
        "rounds": round(len(order) / len(corpus.lines), 2),
        "bin_sha256": content.hexdigest(),
        "idx_sha256": index.hexdigest(),
    }
