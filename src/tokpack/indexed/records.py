"""What the manifest of a virtual dataset says about each dataset that it is made of.

A manifest, and so a message, calls such a dataset a piece; the code calls it a shard, and what the
manifest says of it a record.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - decode asks for them
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokpack.indexed.shard import Shard

_OPTIONAL = ("fingerprint", "tracks")


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
    tracks: Mapping[str, str] = field(default_factory=dict)  # the checksum of each

    @classmethod
    def of(
        cls,
        shard: Shard,
        prefix: str,
        digest: str = "",
        fingerprint: str = "",
        tracks: Mapping[str, str] | None = None,
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
            tracks=tracks or {},
        )

    def __post_init__(self) -> None:
        if not self.prefix or "\0" in self.prefix:
            raise ValueError(f"prefix is {self.prefix!r}, which no file can have")

    def to_json(self) -> dict[str, Any]:
        """The record as a manifest has it."""
        values = asdict(self)
        return {key: value for key, value in values.items() if value or key not in _OPTIONAL}
