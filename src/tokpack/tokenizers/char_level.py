"""GPT-NeoX's CharLevelTokenizer: the bytes of the text are the ids."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from tokpack.tokenizers.base import PackedIds, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from tokpack.tokenizers.base import Encoder

NAME = "CharLevelTokenizer"
_IDS = 512  # as GPT-NeoX builds it: 256 are never used
_EOD = 0


class CharLevelTokenizer(Tokenizer):
    """UTF-8 bytes as ids, and 0 after a document, of 512 ids in all; no special tokens."""

    kind = "UTF-8 bytes"
    why_not_native = "its ids are the bytes themselves"
    special_tokens_default = "text"

    def __init__(self) -> None:
        self.name = NAME
        self.arguments = {"tokenizer_type": NAME}
        self.vocab_size = _IDS
        self.eod_id = _EOD
        self.special_ids = {}

    def encoder(self, *, dtype: str, append_eod: bool, special_tokens: str = "auto") -> Encoder:
        self.special_mode(special_tokens)
        return CharLevelEncoder(self.check_dtype(dtype), self.eod_to_append(append_eod))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        known = list(map(int, ids))
        for token_id in known:
            if not 0 <= token_id < self.vocab_size:
                raise self.no_such_id(token_id)
        return bytes(token_id for token_id in known if token_id < 256)

    def definition_digest(self) -> str:
        return hashlib.sha256(f"{NAME} {_IDS}".encode()).hexdigest()


class CharLevelEncoder:
    """The settings of one run."""

    def __init__(self, dtype: str, eod: int | None) -> None:
        self._dtype = np.dtype(dtype)
        self._eod = eod

    def encode(self, data: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> PackedIds:
        lengths = spans[:, 1] - spans[:, 0]
        pieces = []
        for begin, end in spans.tolist():
            pieces.append(data[begin:end])
            if self._eod is not None and end > begin:
                pieces.append(np.array([self._eod], np.uint8))
        ids = np.concatenate(pieces, dtype=self._dtype) if pieces else np.empty(0, self._dtype)
        if self._eod is not None:
            lengths = lengths + (lengths > 0)
        return PackedIds(ids, lengths.astype(np.int32), np.empty(0, np.int64))
