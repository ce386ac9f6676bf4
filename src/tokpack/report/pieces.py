"""Tokens as text, one by one: what each id stands for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokpack.tokenizers import Tokenizer

_WINDOW = 8  # tokens before one that may change how it is written
_NO_TOKEN = "\N{REPLACEMENT CHARACTER}"


class Piece(NamedTuple):
    """Some tokens that make whole characters together; nearly always one."""

    ids: tuple[int, ...]
    text: str


class Pieces:
    """The bytes of single tokens of a tokenizer, as far as it can tell.

    A byte-level BPE has them in its vocabulary; what other tokenizers write for a token depends
    on those before it. An id that the tokenizer does not have stands for U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def table(self) -> list[bytes] | None:
        """The bytes of each id, for a tokenizer whose text is their plain sequence; else None."""
        if not self.tokenizer.native:
            return None
        return [self.alone(token) for token in range(self.tokenizer.vocab_size)]

    def alone(self, token: int) -> bytes:
        """The bytes of one token with nothing before it."""
        try:
            return self.tokenizer.decode_bytes([token])
        except TokenizerError:
            return _NO_TOKEN.encode()

    def text(self, ids: Sequence[int]) -> bytes:
        """The text of a document as UTF-8."""
        if self.table is not None:
            size = len(self.table)
            try:
                if not ids or min(ids) >= 0:
                    return b"".join(map(self.table.__getitem__, ids))
            except IndexError:
                pass
            none = _NO_TOKEN.encode()
            return b"".join(self.table[i] if 0 <= i < size else none for i in ids)
        try:
            return self.tokenizer.decode_bytes(ids)
        except TokenizerError:
            return b"".join(self.of(ids))

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

    def whole(self, ids: Sequence[int]) -> list[Piece]:
        """Tokens as text; those that share a character stay together."""
        pieces: list[Piece] = []
        held: list[int] = []
        pending = b""
        for token, piece in zip(ids, self.of(ids), strict=True):
            held.append(token)
            pending += piece
            if _is_cut(pending):
                continue
            pieces.append(Piece(tuple(held), pending.decode("utf-8", "replace")))
            held, pending = [], b""
        if held:
            pieces.append(Piece(tuple(held), pending.decode("utf-8", "replace")))
        return pieces


def _is_cut(text: bytes) -> bool:
    """Whether the last character of a text misses bytes."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
