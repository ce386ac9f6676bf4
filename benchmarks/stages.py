"""Where the time of a worker goes: each stage of its work, in one thread, for a byte of text.

A worker is a loop over blocks of about a megabyte: read (and decompress) one, find its documents,
encode them, keep the tokens until the piece has its place, write them there. The loop here is the
same one with a clock between the stages; checksums of the input are of reading, those of the output
of writing. The share of the pretokenizer is measured by running it by itself over the same blocks.
It writes down every boundary then, which the encoder does not, so that its share is a little
overstated, and that of the rest of the encoder (finding a word in the cache, merging one that is
not there) understated.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import common
import numpy as np

from tokpack import _core, load_tokenizer
from tokpack.encoding.folder import WorkFolder
from tokpack.encoding.tracks import TrackBuffers, TrackFiles, Tracks
from tokpack.sources import discover
from tokpack.sources.lines import LineReader
from tokpack.sources.records import JsonLinesParser
from tokpack.sources.streams import FileStream, Region, open_stream
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from inputs import Inputs

    from tokpack.sources import Documents, Source

_BLOCK = 1 << 20
_LONGEST = 1 << 30
_PIECE = 16 << 20  # of ids
_ORDER = (
    *("read", "read and decompress", "JSON", "pretokens", "words and merges", "keep", "write"),
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
    encoder = tokenizer.encoder(dtype="uint16", append_eod=True)
    place = TrackFiles(WorkFolder(str(work)), "stages", ["ids"], new=True)
    memory = TrackBuffers(1)
    tracks, text_bytes, end = Tracks(memory, lambda *_: None), 0, 0
    clock = _Clock()
    for block, documents in _documents(source, clock):
        text_bytes += block
        ids = encoder.encode(documents.data, documents.spans).ids
        clock.lap("words and merges")
        tracks.write(0, ids)
        clock.lap("keep")
        if tracks.in_memory >= _PIECE:
            end = _stored(tracks, place, end)
            tracks = Tracks(memory, lambda *_: None)
            clock.lap("write")
    _stored(tracks, place, end)
    clock.lap("write")
    place.close()
    for path in place.paths:
        os.unlink(path)
    return clock.seconds | {"pretokens": _pretokens(tokenizer, source)}, text_bytes


def _stored(tracks: Tracks, place: TrackFiles, at: int) -> int:
    """Write a piece to its place, as workers do; where it ends."""
    tracks.store(place, (at,))
    tracks.stored()
    return tracks.ends[0]


def _documents(source: Source, clock: _Clock) -> Iterator[tuple[int, Documents]]:
    """The blocks of a source as documents, with the bytes of their text."""
    read = "read and decompress" if source.compression else "read"
    parser = JsonLinesParser(["text"])
    with closing(open_stream(source, file=FileStream(source, sums=True))) as stream:
        for block in LineReader(stream, _BLOCK, _LONGEST).blocks(Region()):
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
