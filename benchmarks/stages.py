"""Where the time of a worker goes: each stage of its work, in one thread, for a byte of text.

A worker is a loop over blocks of about a megabyte: read (and decompress) one, find its documents,
encode them, write the tokens. The loop here is the same one with a clock between the stages, and
the join behind it, which a thread of the command does beside the workers. The share of the
pretokenizer is measured by running it by itself over the same blocks. It writes down every boundary
then, which the encoder does not, so that its share is a little overstated, and that of the rest of
the encoder (finding a word in the cache, merging one that is not there) understated.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import common
import numpy as np
import xxhash

from tokpack import _core, load_tokenizer
from tokpack.files.copying import Digest, copy_range
from tokpack.sources import discover
from tokpack.sources.lines import LineReader, Region
from tokpack.sources.records import JsonLinesParser
from tokpack.sources.streams import open_stream
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from inputs import Inputs

    from tokpack.sources import Documents, Source

_BLOCK = 1 << 20
_LONGEST = 1 << 30
_ORDER = (
    *("read", "read and decompress", "JSON", "pretokens", "words and merges", "write", "join"),
    "all",
)


def profile(data: common.Data, given: Inputs, work: Path, runs: int) -> list[dict[str, Any]]:
    """Rows of the stages for the first file of an input, plain and compressed."""
    tokenizer = load_tokenizer(vocab_file=str(data.vocab_file), merge_file=str(data.merge_file))
    if not isinstance(tokenizer, NativeTokenizer):
        raise SystemExit("the stages are those of the native tokenizer")
    sources = discover([str(given.files(kind)[0]) for kind in ("", "zst")])
    rows = []
    for source in sources:
        nanoseconds: dict[str, list[float]] = defaultdict(list)
        text_bytes = 0
        for _ in range(runs):
            seconds, text_bytes = _once(tokenizer, source, work)
            seconds["words and merges"] -= seconds["pretokens"]
            seconds["all"] = sum(seconds.values())
            for stage in _ORDER:
                if stage in seconds:
                    nanoseconds[stage].append(1e9 * seconds[stage] / text_bytes)
        rows += [
            {
                "benchmark": "stages",
                "corpus": given.name,
                "compression": source.compression,
                "text_bytes": text_bytes,
                "stage": stage,
                "ns_per_byte": {k: round(v, 4) for k, v in common.spread(values).items()},
                "runs": [round(value, 4) for value in values],
            }
            for stage, values in nanoseconds.items()
        ]
    return rows


class _Clock:
    """Adds up the processor seconds of stages that follow each other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._at = time.thread_time()

    def lap(self, stage: str) -> None:
        """The time since the last call belongs to ``stage``."""
        now = time.thread_time()
        self.seconds[stage] += now - self._at
        self._at = now


def _once(tokenizer: NativeTokenizer, source: Source, work: Path) -> tuple[dict[str, float], int]:
    """Seconds of each stage over one source, and the bytes of its text."""
    path, joined = work / "stages.ids", work / "stages.bin"
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    text_bytes = written = 0
    track, target = (os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for p in (path, joined))
    checksum = xxhash.xxh3_64()
    clock = _Clock()
    for block, documents in _documents(source, clock):
        text_bytes += block
        ids = encoder.encode(documents.data, documents.spans).ids
        clock.lap("words and merges")
        content = ids.data.cast("B")
        checksum.update(content)
        written += os.write(track, content)
        clock.lap("write")
    copy_range(track, target, 0, written, 0)
    Digest().follow(target, written, written)
    clock.lap("join")
    for file in (track, target):
        os.close(file)
    path.unlink()
    joined.unlink()
    return clock.seconds | {"pretokens": _pretokens(tokenizer, source)}, text_bytes


def _documents(source: Source, clock: _Clock) -> Iterator[tuple[int, Documents]]:
    """The blocks of a source as documents, with the bytes of their text."""
    read = "read and decompress" if source.compression else "read"
    parser = JsonLinesParser(["text"])
    with closing(open_stream(source)) as stream:
        for block in LineReader(stream, _BLOCK, _LONGEST).blocks([Region()]):
            clock.lap(read)
            documents = parser.parse(block.data, 0).documents["text"]
            clock.lap("JSON")
            yield int(np.diff(documents.spans, axis=1).sum()), documents


def _pretokens(tokenizer: NativeTokenizer, source: Source) -> float:
    """Seconds that the pretokenizer takes by itself."""
    clock = _Clock()
    for _, documents in _documents(source, clock):
        _core.pretokenize(documents.data.data, tokenizer.spec.pattern)
        clock.lap("pretokens")
    return clock.seconds["pretokens"]
