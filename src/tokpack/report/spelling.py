"""Tokens as text, one by one: what each id stands for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.errors import TokenizerError
from tokpack.indexed.lengths import numbers_in
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.tokenizers import Tokenizer

_BLOCK = 1 << 16  # tokens
_WINDOW = 8  # tokens before one that may change how it is written
_NO_TOKEN = "\N{REPLACEMENT CHARACTER}"


class TokenText(NamedTuple):
    """Some tokens that make whole characters together; nearly always one."""

    ids: tuple[int, ...]
    text: str


class Spelling:
    """The bytes of single tokens of a tokenizer, as far as it can tell.

    A byte-level BPE has them in its vocabulary; what other tokenizers write for a token depends
    on those before it. An id that the tokenizer does not have stands for U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def table(self) -> list[bytes] | None:
        """The bytes of each id, for a tokenizer whose text is their plain sequence; else None."""
        if not isinstance(self.tokenizer, NativeTokenizer):
            return None
        return [self.alone(token) for token in range(self.tokenizer.vocab_size)]

    def alone(self, token: int) -> bytes:
        """The bytes of one token with nothing before it, or after itself if it has none there."""
        try:
            first = self.tokenizer.decode_bytes([token])
            return first or self.tokenizer.decode_bytes([token, token])
        except TokenizerError:
            return _NO_TOKEN.encode()

    def text(self, ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
        """The text of a document as UTF-8; for a byte-level BPE some 20 ns a token."""
        if self.table is not None:
            array = np.asarray(ids)
            return b"".join(
                self._gather(array[begin : begin + _BLOCK])
                for begin in range(0, len(array), _BLOCK)
            )
        tokens = [int(token) for token in ids]
        try:
            return self.tokenizer.decode_bytes(tokens)
        except TokenizerError:
            return b"".join(self.of(tokens))

    @cached_property
    def _flat(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All bytes of the table in a row, and where each token begins and how long it is.

        One more at the end stands for ids that are no token.
        """
        rows = [*(self.table or []), _NO_TOKEN.encode()]
        lengths = np.array([len(row) for row in rows], np.int64)
        return np.frombuffer(b"".join(rows), np.uint8), np.cumsum(lengths) - lengths, lengths

    def _gather(self, ids: npt.NDArray[Any]) -> bytes:
        data, starts, lengths = self._flat
        none = len(lengths) - 1
        ids = np.where((ids >= 0) & (ids < none), ids, none)
        text: bytes = data[numbers_in(starts[ids], lengths[ids])].tobytes()
        return text

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token."""
        if self.table is not None:
            return [self.text([token]) for token in ids]
        return [self._after(ids[max(0, i - _WINDOW) : i], ids[i]) for i in range(len(ids))]

    def _after(self, before: Sequence[int], token: int) -> bytes:
        try:
            start = self.tokenizer.decode_bytes(before)
            whole = self.tokenizer.decode_bytes([*before, token])
        except TokenizerError:
            return self.alone(token)
        return whole[len(start) :] if whole.startswith(start) else self.alone(token)

    def whole(self, ids: Sequence[int]) -> list[TokenText]:
        """Tokens as text; those that share a character stay together."""
        spelled: list[TokenText] = []
        waiting: list[int] = []
        pending = b""
        for token, spelled_token in zip(ids, self.of(ids), strict=True):
            waiting.append(token)
            pending += spelled_token
            if _is_cut(pending):
                continue
            spelled.append(TokenText(tuple(waiting), pending.decode("utf-8", "replace")))
            waiting, pending = [], b""
        if waiting:
            spelled.append(TokenText(tuple(waiting), pending.decode("utf-8", "replace")))
        return spelled


def _is_cut(text: bytes) -> bool:
    """Whether the last character of a text misses bytes."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
