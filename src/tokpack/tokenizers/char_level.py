"""GPT-NeoX's CharLevelTokenizer: the bytes of the text are the ids."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from tokpack.tokenizers.base import PackedIds, Tokenizer
from tokpack.tokenizers.frame import token_id
from tokpack.tokenizers.token_bytes import TokenBytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoder, IdType, SpecialMode
    from tokpack.tokenizers.frame import Frame

NAME = "CharLevelTokenizer"
_IDS = 512  # as GPT-NeoX builds it: 256 are never used
_EOD = 0


class CharLevelTokenizer(Tokenizer):
    """UTF-8 bytes as ids, and 0 after a document, of 512 ids in all; no special tokens."""

    kind = "UTF-8 bytes"
    why_not_native = "its ids are the bytes themselves"
    special_tokens_default = "text"

    def __init__(self, eod_token: str | int | None = None) -> None:
        self.name = NAME
        self.arguments = {"tokenizer_type": NAME}
        self.vocab_size = _IDS
        self.special_ids = {}
        self.eod_id = _EOD if eod_token is None else token_id(self, eod_token, "EOD")

    def _encoder(self, dtype: IdType, mode: SpecialMode, frame: Frame) -> Encoder:
        return CharLevelEncoder(dtype, frame)

    def token_to_id(self, token: str) -> int | None:
        raw = token.encode("utf-8", "surrogatepass")
        return raw[0] if len(raw) == 1 else None

    def _decode_bytes(self, ids: list[int]) -> bytes:
        return bytes(token_id for token_id in ids if token_id < 256)

    def token_bytes(self) -> TokenBytes:
        return TokenBytes([bytes([byte]) for byte in range(256)])

    def definition_digest(self) -> str:
        return hashlib.sha256(f"{NAME} {_IDS}".encode()).hexdigest()


class CharLevelEncoder:
    """The settings of one run."""

    def __init__(self, dtype: str, frame: Frame) -> None:
        self._dtype = np.dtype(dtype)
        self._before = np.array(frame.before, self._dtype)
        self._after = np.array(frame.after, self._dtype)

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        lengths = spans[:, 1] - spans[:, 0]
        filled = spans[lengths > 0].tolist()
        pieces = [
            piece for begin, end in filled for piece in (self._before, data[begin:end], self._after)
        ]
        ids = np.concatenate(pieces, dtype=self._dtype) if pieces else np.empty(0, self._dtype)
        lengths = lengths + (lengths > 0) * (len(self._before) + len(self._after))
        return PackedIds(ids, lengths.astype(np.int32), np.empty(0, np.int64))
