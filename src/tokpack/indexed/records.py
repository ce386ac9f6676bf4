"""What the manifest of a virtual dataset says about each dataset that it is made of.

A manifest, and so a message, calls such a dataset a piece; the code calls it a shard, and what the
manifest says of it a record.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import FormatError

if TYPE_CHECKING:
    from tokpack.indexed.shard import Shard

_OPTIONAL = ("fingerprint", "tracks")

MAX_TOTAL = 2**62  # sequences, tokens: sums of shards stay far inside 64 bits


@dataclass(frozen=True)
class ShardRecord:
    """One dataset of a virtual one, and what it had when the manifest was written."""

    prefix: str  # relative to the folder of the manifest
    sequences: int
    documents: int  # entries of the document index - 1
    tokens: int
    bin_bytes: int
    idx_bytes: int
    xxh3_128: str  # of the .bin, from the piece's own manifest; "" where it has none
    fingerprint: str = ""  # of its documents; only a view has it
    tracks: tuple[tuple[str, str], ...] = ()  # the name and the checksum of each

    @classmethod
    def of(
        cls,
        shard: Shard,
        prefix: str,
        digest: str = "",
        fingerprint: str = "",
        tracks: tuple[tuple[str, str], ...] = (),
    ) -> ShardRecord:
        """The facts of an opened shard, as ``prefix`` with the checksum ``digest``."""
        return cls(
            prefix=prefix,
            sequences=len(shard),
            documents=shard.index.header.entries - 1,
            tokens=len(shard.tokens),
            bin_bytes=shard.tokens.nbytes,
            idx_bytes=shard.idx_bytes,
            xxh3_128=digest,
            fingerprint=fingerprint,
            tracks=tracks,
        )

    def to_json(self) -> dict[str, Any]:
        """The record as a manifest has it."""
        values = asdict(self)
        values["tracks"] = dict(self.tracks)
        return {key: value for key, value in values.items() if value or key not in _OPTIONAL}


def parse_records(rows: object, name: str) -> tuple[ShardRecord, ...]:
    """The records in the manifest ``name``. Raises FormatError."""
    if not isinstance(rows, list):
        raise FormatError(f"{name}: pieces is {type(rows).__name__}, expected a list")
    return tuple(_record(row, f"{name}: piece {number}") for number, row in enumerate(rows))


def _record(row: Any, name: str) -> ShardRecord:
    if not isinstance(row, dict):
        raise FormatError(f"{name} is {brief(row)}, expected an object")
    row = {"fingerprint": "", **row}
    tracks = row.pop("tracks", {})
    if not isinstance(tracks, dict) or not all(isinstance(sum_, str) for sum_ in tracks.values()):
        raise FormatError(f"{name}: tracks is {brief(tracks)}, expected names with checksums")
    names = [field.name for field in fields(ShardRecord) if field.name != "tracks"]
    known: dict[str, Any] = {key: row.get(key) for key in names}
    for key, value in known.items():
        text = key in ("prefix", "xxh3_128", "fingerprint")
        right = isinstance(value, str) if text else type(value) is int and 0 <= value <= MAX_TOTAL
        if not right or (key == "prefix" and (not value or "\0" in value)):
            raise FormatError(
                f"{name}: {key} is {brief(value)}, expected a {'name' if text else 'count'}"
            )
    return ShardRecord(**known, tracks=tuple(tracks.items()))
