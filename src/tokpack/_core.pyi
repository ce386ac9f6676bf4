"""The native core. Internal: the public API is ``tokpack``.

Arrays returned are views of scratch memory that is reused by the next call on the same object only
when nobody holds the view any more, so a view never changes under its holder.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

Level = Literal["auto", "scalar", "avx2", "avx512"]

def simd_levels() -> list[str]:
    """Instruction sets usable on this machine, best last; always starts with ``scalar``."""

class Extracted:
    data: npt.NDArray[np.uint8]  # text of all documents; valid UTF-8
    spans: npt.NDArray[np.int64]  # [n, 2] begin, end in data; an empty span for a slow record
    lines: npt.NDArray[np.int64]  # [n] 0-based line of document i within the block
    slow: npt.NDArray[np.int64]  # [k, 3] document index, begin and end of the line in the block
    line_count: int  # lines in the block, blank ones and an unterminated last one included

class JsonLines:
    """Extract the string under one top-level key from JSON lines (lines end at \\n alone).

    A line that is only JSON whitespace is no record. A record is *slow* when it is anything but a
    well-formed object (RFC 8259) with the key exactly once, unescaped, with a string value that is
    valid UTF-8 without lone surrogates.
    """

    def __init__(self, key: str, level: Level = "auto") -> None: ...
    def extract(self, block: Buffer) -> Extracted: ...

class JsonArray:
    """Turn one JSON array, fed in chunks, into JSON lines, an element a line."""

    def __init__(self) -> None: ...
    def feed(self, chunk: Buffer) -> bytes: ...
    @property
    def finished(self) -> bool: ...

def split_lines(block: Buffer) -> npt.NDArray[np.int64]:
    """Begin and end of each line, [n, 2], without its \\n; an unterminated last one counts."""

def invalid_utf8(
    data: Buffer, spans: npt.NDArray[np.int64], level: Level = "auto"
) -> npt.NDArray[np.int64]:
    """Indices of the documents that are not valid UTF-8."""

class Encoded:
    ids: npt.NDArray[Any]  # uint16 or int32: tokens of all documents, one after the other
    lengths: npt.NDArray[np.int32]  # [n] tokens of document i with EOD; 0 when it has none
    special: npt.NDArray[np.int64]  # document index of every special token found in the text

class ByteLevelBPE:
    """A byte-level BPE encoder with its own cache: one for each process, one thread at a time."""

    def __init__(
        self,
        *,
        vocab: Sequence[bytes | None],  # bytes of each id; None: no such byte-level token
        merges: npt.NDArray[np.int32],  # [m, 3] left id, right id, product id, in rank order
        pattern: str,  # a name of patterns()
        added: Sequence[tuple[bytes, int, bool, bool]],  # content, id, special, normalized
        special_tokens: Literal["text", "encode"],  # what a special token inside a document becomes
        nfc: bool = False,
        ignore_merges: bool = False,
        dtype: Literal["uint16", "int32"] = "uint16",
        cache_bytes: int = ...,
        level: Level = "auto",
    ) -> None: ...
    def encode(
        self, data: Buffer, spans: npt.NDArray[np.int64], eod: int | None = None
    ) -> Encoded:
        """Encode valid UTF-8 documents; ``eod`` is appended to each that has a token."""

    def cache_info(self) -> dict[str, int]: ...

def patterns() -> list[str]:
    """Names of the pretokenizers that the core knows."""

def pretokenize(
    data: Buffer, pattern: str, level: Level = "auto"
) -> npt.NDArray[np.int64]:
    """End offset of each pretoken of one document, for tests."""

def nfc(data: Buffer) -> bytes:
    """Unicode Normalization Form C of one document, as the Hugging Face library computes it."""
